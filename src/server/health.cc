#include "server/health.h"

#include <algorithm>
#include <utility>

#include "base/str.h"

namespace sluice {

void Health::watch(std::string name, Ask ask, std::function<uint64_t()> progress) {
  threads_.push_back({std::move(name), std::move(ask), std::move(progress), 0,
                      std::make_shared<std::atomic<int64_t>>(0)});
}

bool Health::beat(Time now) {
  int64_t at = std::max<int64_t>(now.count(), 1);
  bool any = false;
  for (Thread& t : threads_) {
    uint64_t count = t.progress ? t.progress() : 0;
    bool moved = std::exchange(t.seen, count) != count;
    any |= moved;
    int64_t none = 0;
    if (t.owes_since->compare_exchange_strong(none, at)) {
      try {
        t.ask([owes = t.owes_since] { owes->store(0); });
      } catch (...) {  // not asked, for want of memory: it owes nothing
        t.owes_since->store(0);
      }
    } else if (moved && none != 0) {
      t.owes_since->compare_exchange_strong(none, at);
    }
  }
  last_beat_.store(at);
  return any;
}

void Health::fail(std::string code, std::string reason) {
  std::lock_guard lock(mutex_);
  if (failed_.load()) return;
  failure_ = {std::move(code), std::move(reason)};
  failed_.store(true);
}

std::optional<Health::Problem> Health::failure() const {
  if (!failed_.load()) return {};
  std::lock_guard lock(mutex_);
  return failure_;
}

std::optional<Health::Problem> Health::problem(Time now) const {
  if (auto f = failure()) return f;
  int64_t beat = last_beat_.load();
  if (beat == 0 || resting_.load()) return {};
  auto stuck = [&](const char* name, int64_t since) -> std::optional<Problem> {
    if (since == 0 || now - Time(since) <= limit_) return {};
    return Problem{"stuck", strf("the thread %s has given no sign of life for %.0f s", name,
                                 seconds(now - Time(since)))};
  };
  for (const Thread& t : threads_) {
    if (auto p = stuck(t.name.c_str(), t.owes_since->load())) return p;
  }
  return stuck("main", beat);
}

}  // namespace sluice
