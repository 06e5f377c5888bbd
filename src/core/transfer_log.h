// Transfers of blocks that the scheduler planned: those of the plan being made, in the order in
// which executors begin them, and those that no result has named yet. Owned by the scheduler's
// BlockCache; copyable.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/check.h"
#include "core/step_plan.h"

namespace sluice {

struct Moving {
  Transfer transfer;
  uint32_t seq = 0, epoch = 0;  // in: who waits for it
  bool operator==(const Moving&) const = default;
};

class TransferLog {
 public:
  void add(Transfer::Kind kind, BlockId from, BlockId to, uint32_t seq = 0, uint32_t epoch = 0) {
    Transfer t{kind, from, to, next_++};
    planned_.push_back(t);
    moving_.push_back({t, seq, epoch});
  }
  // Those of the plan being made.
  std::vector<Transfer>& planned() { return planned_; }
  // The oldest one that no result has named, or else the next one's.
  TransferId oldest() const { return moving_.empty() ? next_ : moving_.front().transfer.id; }
  // Those that no result has named, oldest first.
  std::span<const Moving> moving() const { return moving_; }
  // Hands each of those that a result names to `take`, and forgets it.
  void complete(std::span<const TransferId> ids, auto&& take) {
    if (ids.empty()) return;
    size_t at = 0;
    for (TransferId id : ids) {
      // Results name most of them in order: the search goes on where the last one ended.
      size_t num = moving_.size(), k = 0;
      while (k < num && moving_[(at + k) % num].transfer.id != id) ++k;
      CHECK(k < num);
      at = (at + k) % num;
      take(moving_[at]);
      moving_[at].transfer.id = 0;
    }
    std::erase_if(moving_, [](const Moving& m) { return m.transfer.id == 0; });
  }
  void clear() noexcept { planned_.clear(), moving_.clear(); }
  bool operator==(const TransferLog&) const = default;

 private:
  friend struct SchedulerState;
  std::vector<Transfer> planned_;
  std::vector<Moving> moving_;
  TransferId next_ = 1;
};

}  // namespace sluice
