// Compiled constraints of one model, kept by their source. They are compiled on one thread,
// in order of arrival; requests with the same source wait for one compilation. Refusals are
// kept too, so that a bad schema costs its work once. Past the limit of bytes the least recently
// used goes first; a request that runs keeps its own. Any thread may call.
#pragma once

#include <atomic>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "base/keyed_hash.h"
#include "base/result.h"
#include "constrain/constraint.h"
#include "server/worker.h"

namespace sluice {

inline constexpr size_t kMaxConstraintBytes = size_t{256} << 20;

class ConstraintCache {
 public:
  struct Limits {
    size_t bytes = kMaxConstraintBytes;  // of what is kept, the vocabulary included
    Worker::Limits waiting{4'096, size_t{64} << 20};
    constrain::ConstraintLimits compile{};
  };
  using Compiled = Result<std::shared_ptr<const constrain::Constraint>>;
  struct Answer {
    std::shared_ptr<const Compiled> compiled;
    bool found = false;  // compiled before, or for another request
    Time took{0};        // to compile; 0 if found
  };
  using Done = std::function<void(Answer)>;
  using MakeVocab = std::function<std::shared_ptr<const constrain::VocabTrie>()>;

  // `make_vocab` runs once, with the first compilation.
  explicit ConstraintCache(MakeVocab make_vocab, Limits limits);
  explicit ConstraintCache(MakeVocab make_vocab)
      : ConstraintCache(std::move(make_vocab), Limits{}) {}

  // Calls `done` at once where the answer is known, else on the compiler's thread. `held`: bytes
  // that the caller keeps until then. False: too much waits already; `done` is not called.
  bool get(const constrain::ConstraintSource& source, size_t held, Done done);
  // Once a second or so: constraints grow while they are used.
  void trim();
  // Runs `f` on the compiler's thread, as Worker::ask().
  void ask(std::function<void()> f) { compiler_.ask(std::move(f)); }
  // Ends after the compilation in hand; those who wait are dropped, and all that is kept.
  void stop();
  size_t bytes() const { return bytes_.load(std::memory_order_relaxed); }

 private:
  struct Waiter {
    Done done;
    size_t held;
  };
  struct Entry;
  using Uses = std::list<std::pair<const std::string, Entry>*>;
  struct Entry {
    std::shared_ptr<const Compiled> compiled;  // null: not yet
    std::vector<Waiter> waiting;
    size_t fixed = 0, bytes = 0;  // fixed: the part that does not grow
    bool used = true;             // since it was measured
    Uses use;                     // its node of uses_, until it is compiled
    Uses::iterator at_use{};
  };
  using Entries = std::unordered_map<std::string, Entry, KeyedHash, std::equal_to<>>;

  void compile(const std::string& key, const constrain::ConstraintSource& source);
  std::vector<Waiter> keep(const std::string& key, const std::shared_ptr<const Compiled>& made);
  bool has_room(size_t held) const;
  void evict();

  MakeVocab make_vocab_;
  std::shared_ptr<const Compiled> out_of_memory_;
  Limits limits_;
  std::shared_ptr<const constrain::VocabTrie> vocab_;  // compiler's thread
  std::mutex mutex_;                                   // of all below but the compiler
  Entries entries_;
  Uses uses_;  // entries that are compiled, the last used first
  size_t num_waiting_ = 0, waiting_bytes_ = 0;
  std::atomic<size_t> bytes_{0};  // written under mutex_
  Worker compiler_;               // last: its thread uses the others
};

}  // namespace sluice
