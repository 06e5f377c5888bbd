// Publishes what the prefix caches hold, as vLLM does (docs/kv-events.md): a thread of its own
// takes changes from the engine's KvEventLog, encodes them and sends them to all who subscribe.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "engine/kv_event_log.h"
#include "net/event_socket.h"

namespace sluice {

// Header of answers where events are published: the hash of the last full block of the prompt, a
// number as in the events.
inline constexpr const char* kKvBlockHeader = "x-kv-block";

// The events of one message.
struct KvEncoding {
  uint64_t epoch = 0;  // of this run of the server
  int num_groups = 1;  // above 1 events name theirs
};
// Puts blocks of a snapshot behind those that they follow on, where these are in it.
void order_by_parent(std::span<KvChange> blocks);
// Appends the payload: [seconds since 1970, [events], 0]. Blocks that follow one another are one
// event.
void encode_kv_events(const KvChanges& changes,
                      std::span<const KvChange> part,
                      const KvEncoding& encoding,
                      double now,
                      std::string& out);

class KvPublisher {
 public:
  static constexpr size_t kKeptBytes = size_t{64} << 20;  // for those who missed something
  struct Options {
    EventSocket::Options sockets;  // sockets.publish empty: none
    int kept = 10'000;             // messages, likewise
  };

  static Result<std::unique_ptr<KvPublisher>> open(const Options& options);
  ~KvPublisher();

  KvEventLog& log() { return log_; }
  // `poke` has log().hand_over() called soon, though nothing runs. Begins to send.
  void start(int num_groups, std::function<void()> poke);
  // No more is sent; before what `poke` points to goes away.
  void stop();

  struct Stats {
    uint64_t events = 0, dropped = 0, snapshots = 0;
  };
  Stats stats() const;
  uint64_t epoch() const { return encoding_.epoch; }
  const std::string& publish_address() const { return socket_->publish_address(); }
  const std::string& replay_address() const { return socket_->replay_address(); }
  const std::string& topic() const { return topic_; }

 private:
  struct Kept {
    uint64_t number;
    std::string message;
  };
  KvPublisher(std::unique_ptr<EventSocket> socket, const Options& options);
  void thread_main();
  void send(KvChanges& changes);
  void send_part(const KvChanges& changes, std::span<const KvChange> part);
  void answer(const EventSocket::Replay& asked);

  std::unique_ptr<EventSocket> socket_;
  std::string topic_;
  size_t most_kept_;
  KvEventLog log_;
  KvEncoding encoding_;
  std::function<void()> poke_;
  std::atomic<uint64_t> num_events_{0};
  std::atomic<bool> quit_{false};
  // The thread's.
  uint64_t next_number_ = 0;
  std::deque<Kept> kept_;
  size_t kept_bytes_ = 0;
  Time last_snapshot_{0};
  RealClock clock_;
  std::thread thread_;
};

}  // namespace sluice
