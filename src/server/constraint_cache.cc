#include "server/constraint_cache.h"

#include <utility>

#include "base/failure.h"

namespace sluice {

using constrain::Constraint;
using constrain::ConstraintSource;

namespace {

constexpr size_t kEntryBytes = 512;  // of an entry, beside its key and what was compiled

}  // namespace

ConstraintCache::ConstraintCache(MakeVocab make_vocab, Limits limits)
    : make_vocab_(std::move(make_vocab)),
      out_of_memory_(std::make_shared<const Compiled>(
          Error{503, "the server is out of memory: try again later"})),
      limits_(limits),
      compiler_(limits.waiting, "compiler") {}

bool ConstraintCache::has_room(size_t held) const {
  return num_waiting_ < limits_.waiting.pieces &&
         (waiting_bytes_ == 0 || waiting_bytes_ + held <= limits_.waiting.bytes);
}

bool ConstraintCache::get(const ConstraintSource& source, size_t held, Done done) {
  std::string key = source.key();
  std::unique_lock lock(mutex_);
  auto at = entries_.find(key);
  if (at != entries_.end() && at->second.compiled) {
    uses_.splice(uses_.begin(), uses_, at->second.at_use);
    at->second.used = true;
    Answer answer{at->second.compiled, true, Time{0}};
    lock.unlock();
    done(std::move(answer));
    return true;
  }
  held += 2 * key.size();
  if (!has_room(held)) return false;
  if (at == entries_.end()) {
    at = entries_.try_emplace(key).first;
    bool taken = false;
    try {
      at->second.use.push_back(&*at);
      at->second.waiting.reserve(1);
      taken = compiler_.push([this, key, source] { compile(key, source); }, 0);
    } catch (...) {
      entries_.erase(at);
      throw;
    }
    if (!taken) {
      entries_.erase(at);
      return false;
    }
  }
  at->second.waiting.push_back({std::move(done), held});
  ++num_waiting_;
  waiting_bytes_ += held;
  return true;
}

void ConstraintCache::compile(const std::string& key, const ConstraintSource& source) {
  RealClock clock;
  std::shared_ptr<const Compiled> made = out_of_memory_;
  try {
    if (!vocab_) {
      vocab_ = make_vocab_();
      std::lock_guard lock(mutex_);
      bytes_.fetch_add(vocab_->memory_bytes());
    }
    made = std::make_shared<const Compiled>(Constraint::compile(source, vocab_, limits_.compile));
  } catch (...) {
    log_exception("a constraint was not compiled");
  }
  const Time took = clock.now();
  bool found = false;
  for (Waiter& w : keep(key, made)) {
    try {
      w.done({made, found, found ? Time{0} : took});
    } catch (...) {
      log_exception("request failed");
    }
    found = true;
  }
}

// Those who wait for it. Allocates nothing: they must hear of it.
std::vector<ConstraintCache::Waiter> ConstraintCache::keep(
    const std::string& key, const std::shared_ptr<const Compiled>& made) {
  std::lock_guard lock(mutex_);
  auto at = entries_.find(key);
  Entry& e = at->second;
  std::vector<Waiter> waiting = std::move(e.waiting);
  num_waiting_ -= waiting.size();
  for (const Waiter& w : waiting) waiting_bytes_ -= w.held;
  if (made == out_of_memory_) {
    entries_.erase(at);
    return waiting;
  }
  e.compiled = made;
  e.fixed = kEntryBytes + 2 * key.size();
  e.bytes = e.fixed;
  if (made->has_value()) {
    const Constraint& c = ***made;
    size_t grows = c.dfa().memory_bytes();
    e.fixed += c.memory_bytes() - grows;
    e.bytes = e.fixed + grows;
  }
  uses_.splice(uses_.begin(), e.use);
  e.at_use = uses_.begin();
  bytes_.fetch_add(e.bytes);
  evict();
  return waiting;
}

void ConstraintCache::evict() {
  while (bytes_.load() > limits_.bytes && !uses_.empty()) {
    auto at = entries_.find(uses_.back()->first);
    bytes_.fetch_sub(at->second.bytes);
    uses_.pop_back();
    entries_.erase(at);
  }
}

void ConstraintCache::stop() {
  compiler_.stop();
  Entries last;  // ends outside of the lock
  std::lock_guard lock(mutex_);
  uses_.clear();
  last.swap(entries_);
  num_waiting_ = waiting_bytes_ = 0;
}

void ConstraintCache::trim() {
  std::lock_guard lock(mutex_);
  for (auto* entry : uses_) {
    Entry& e = entry->second;
    if (!e.used || !e.compiled->has_value()) continue;
    const std::shared_ptr<const Constraint>& c = **e.compiled;
    e.used = c.use_count() > 1 || e.compiled.use_count() > 1;  // by a request
    size_t now = e.fixed + c->dfa().memory_bytes();
    bytes_.fetch_add(now);
    bytes_.fetch_sub(e.bytes);
    e.bytes = now;
  }
  evict();
}

}  // namespace sluice
