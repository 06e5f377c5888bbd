// The other end of EventSocket: follows several publishers of numbered messages, and asks them for
// those that were missed. By ZeroMQ where the build has it (event_subscriber_zmq.cc);
// event_subscriber_none.cc refuses. Knows nothing of what is published.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"

namespace sluice {

class EventSubscriber {
 public:
  // Connects to nobody yet. `key_file`: CURVE keys of all sources (read_curve_client_keys); empty:
  // none. 400: this build cannot, or the keys will not do.
  static Result<std::unique_ptr<EventSubscriber>> open(size_t num_sources,
                                                       const std::string& key_file);
  ~EventSubscriber();

  // Ends wait(), now or the next time. Any thread; needs no memory.
  void wake() noexcept;

  // All below: one thread.
  struct Source {
    std::string publish, replay, topic;
    bool operator==(const Source&) const = default;
  };
  // In place of whom it was before. One that does not answer is no error.
  Result<void> follow(size_t source, const Source& to);
  void forget(size_t source);
  // The messages from this one on come as `replayed`, then one that is their end. False: there is
  // no connection.
  bool ask(size_t source, uint64_t first);

  struct Message {
    size_t source = 0;
    bool replayed = false, end = false;
    uint64_t number = 0;
    std::string bytes;
  };
  // What has come, or nothing after so long.
  std::vector<Message> wait(std::chrono::milliseconds timeout);

 private:
  struct State;
  explicit EventSubscriber(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace sluice
