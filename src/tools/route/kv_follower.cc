#include "tools/route/kv_follower.h"

#include <pthread.h>

#include "base/failure.h"
#include "base/log.h"

namespace sluice {

namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr milliseconds kAskEvery{250};   // for messages that are missing
constexpr milliseconds kAskQuiet{2000};  // whether any are
constexpr milliseconds kAnswerTime{5000};

}  // namespace

KvFollower::KvFollower(std::unique_ptr<EventSubscriber> subscriber,
                       size_t num_workers,
                       std::function<void(News)> tell)
    : subscriber_(std::move(subscriber)), tell_(std::move(tell)), followed_(num_workers) {}

Result<std::unique_ptr<KvFollower>> KvFollower::open(size_t num_workers,
                                                     const std::string& key_file,
                                                     std::function<void(News)> tell) {
  Result<std::unique_ptr<EventSubscriber>> subscriber =
      EventSubscriber::open(num_workers, key_file);
  if (!subscriber) return subscriber.error();
  std::unique_ptr<KvFollower> f(
      new KvFollower(std::move(*subscriber), num_workers, std::move(tell)));
  f->thread_ = std::thread([p = f.get()] { p->thread_main(); });
  return f;
}

KvFollower::~KvFollower() {
  quit_.store(true);
  subscriber_->wake();
  if (thread_.joinable()) thread_.join();
}

void KvFollower::follow(size_t worker, uint64_t turn, std::optional<Source> source) {
  orders_.push({worker, turn, std::move(source)});
  subscriber_->wake();
}

void KvFollower::obey(const Order& order) {
  Followed& f = followed_[order.worker];
  f = {};
  f.turn = order.turn;
  subscriber_->forget(order.worker);
  if (!order.source) return;
  if (auto ok = subscriber_->follow(order.worker, order.source->sockets); !ok)
    return LOG(warn, "%s", ok.error().message.c_str());
  f.feed.emplace(order.source->epoch);
}

// A subscriber joins late, and what is published meanwhile passes it by: so it asks until it has
// everything. What was lost at the end shows only when somebody asks. One answer at a time.
void KvFollower::ask_for_missing() {
  const auto now = steady_clock::now();
  for (size_t i = 0; i < followed_.size(); ++i) {
    Followed& f = followed_[i];
    if (!f.feed) continue;
    const std::optional<uint64_t> first = f.feed->missing();
    const milliseconds wait = f.waiting ? kAnswerTime : first ? kAskEvery : kAskQuiet;
    if (now - f.asked < wait) continue;
    f.asked = now;
    f.waiting = subscriber_->ask(i, first.value_or(f.feed->next()));
  }
}

void KvFollower::thread_main() {
  pthread_setname_np(pthread_self(), "kv-events");
  std::vector<Order> orders;
  while (!quit_.load()) {
    try {
      for (const EventSubscriber::Message& m : subscriber_->wait(kAskEvery)) {
        Followed& f = followed_[m.source];
        if (m.end) f.waiting = false;
        if (!f.feed || m.end) continue;
        std::vector<KvUpdate> updates = f.feed->take(m.number, m.bytes);
        if (!updates.empty()) tell_({m.source, f.turn, std::move(updates)});
      }
      orders_.drain(orders);
      for (const Order& o : orders) obey(o);
      ask_for_missing();
    } catch (...) {
      log_exception("KV events were lost");
      for (Followed& f : followed_) {
        if (f.feed) f.feed->restart();
      }
    }
  }
}

}  // namespace sluice
