// Virtual token counters for order=fair. An account (an API key) is charged for every token that a
// step computes for it, and the next sequence to start belongs to the account that was charged
// least. So accounts that wait get equal numbers of tokens, however much each of them sends.
// Owned by the scheduler. Deterministic: ties go to the older entry.
#pragma once

#include <cstdint>
#include <vector>

#include "core/request.h"

namespace sluice {

class FairShare {
 public:
  using Account = uint32_t;  // index of an entry
  static constexpr size_t kMaxIdle = 1024;

  // Memory for one more account: join() after it does not throw.
  void reserve();
  // A request of the account is here. An account that had none starts at the smallest counter of
  // the active ones (with nobody active, at that of the last one to leave) or at its own, if that
  // is larger: nobody saves up a share while away, and leaving is no way to lose a charge.
  Account join(TenantId id) noexcept;
  // A request of the account has ended.
  void leave(Account a) noexcept;

  void charge(Account a, int tokens) { entries_[a].charged += tokens; }
  int64_t charged(Account a) const { return entries_[a].charged; }

  // Sequences in the queue.
  void add_waiting(Account a, int by) { entries_[a].num_waiting += by; }
  // The account to serve next, of those with waiting sequences, and how many waiting sequences the
  // accounts of smaller index have. At least one must wait.
  struct Next {
    Account account = 0;
    size_t num_before = 0;
  };
  Next next() const;

  void clear() noexcept;
  bool operator==(const FairShare&) const = default;

 private:
  friend struct SchedulerState;
  struct Entry {
    TenantId id = 0;
    int64_t charged = 0;
    int num_live = 0;  // requests that have not ended
    int num_waiting = 0;
    bool operator==(const Entry&) const = default;
  };
  int64_t level() const;

  std::vector<Entry> entries_;
  int64_t last_left_ = 0;  // the counter of the account that last became idle
};

}  // namespace sluice
