// Follows the KV events of all workers, on a thread of its own, and hands them on as updates.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "base/mailbox.h"
#include "net/event_subscriber.h"
#include "tools/route/kv_feed.h"

namespace sluice {

class KvFollower {
 public:
  struct Source {
    EventSubscriber::Source sockets;
    uint64_t epoch = 0;  // of the run of the worker
    bool operator==(const Source&) const = default;
  };
  struct News {
    size_t worker = 0;
    uint64_t turn = 0;  // of the follow() that it belongs to
    std::vector<KvUpdate> updates;
  };
  // `tell` is called on the thread here, and must not block.
  static Result<std::unique_ptr<KvFollower>> open(size_t num_workers,
                                                  const std::string& key_file,
                                                  std::function<void(News)> tell);
  ~KvFollower();

  // Any thread. In place of what was followed before; nothing: the worker is left alone.
  void follow(size_t worker, uint64_t turn, std::optional<Source> source);

 private:
  struct Order {
    size_t worker = 0;
    uint64_t turn = 0;
    std::optional<Source> source;
  };
  struct Followed {
    uint64_t turn = 0;
    std::optional<KvFeed> feed;
    std::chrono::steady_clock::time_point asked{};
    bool waiting = false;  // for the end of an answer
  };
  KvFollower(std::unique_ptr<EventSubscriber> subscriber,
             size_t num_workers,
             std::function<void(News)> tell);
  void thread_main();
  void obey(const Order& order);
  void ask_for_missing();

  std::unique_ptr<EventSubscriber> subscriber_;
  std::function<void(News)> tell_;
  Mailbox<Order> orders_;
  std::atomic<bool> quit_{false};
  std::vector<Followed> followed_;  // the thread's
  std::thread thread_;
};

}  // namespace sluice
