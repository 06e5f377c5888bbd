// Sequences in ranges of consecutive blocks (allocator=reserve and range). A range is claimed whole
// at admission and given back whole; the table takes its blocks in order, row by row and group by
// group, so block k of a range is cell k of the table.
#include <algorithm>

#include "base/check.h"
#include "core/scheduler.h"

namespace sluice {

// Blocks of the range that a waiting sequence needs. The last token that it samples is never read
// back, so that its K and V need no position.
int Scheduler::range_blocks(const Sequence& s) const {
  int positions = config_.max_len;
  if (config_.allocator == KvAllocator::range)
    positions = std::max(prompt_len(s) + std::max(s.predicted, 1) - 1, known_len(s));
  return blocks_for(positions) * layout_.num_groups;
}

// Takes nothing on failure.
bool Scheduler::claim_range(Sequence& s) {
  s.range = ranges_.take(range_blocks(s));
  if (s.range.size == 0) return false;
  s.num_registered = 0;
  RangeRest rest(s.range, 0);
  int rows = blocks_for(known_len(s));
  s.table.claim(layout_, rest, rows, 0, rows * config_.block_size);
  return true;
}

// A row for the next position of a decode. An output that is longer than predicted grows into the
// blocks behind its range; where those are taken, the sequence goes back to the queue and asks for
// a range for twice as many tokens, the third time for all that it may sample.
bool Scheduler::grow_range(Index i, StepPlan& out) {
  Sequence& s = seqs_[i];
  size_t taken = s.table.blocks().size();
  int missing = static_cast<int>(taken) + layout_.num_groups - s.range.size;
  if (missing > 0 && !ranges_.extend(s.range, missing)) {
    CHECK(config_.allocator == KvAllocator::range);
    // The token in flight may be its last.
    if (s.unknown > 0) return false;
    int most = std::max(s.predicted, static_cast<int>(s.output.size()) + s.unknown);
    bool last = s.timing.num_preemptions + 1 >= kMaxPreemptions;
    s.predicted = last ? s.max_new : std::min(2 * most, s.max_new);
    preempt(i);
    return false;
  }
  RangeRest rest(s.range, taken);
  CHECK(s.table.grow(layout_, rest, s.planned, edits_of(s, out)));
  return true;
}

// Steps in flight may name any block of the range.
void Scheduler::release_range(Sequence& s) {
  s.table.release([](BlockId) {}, [](BlockId) {});
  if (s.in_flight > 0) {
    pending_ranges_.push_back({next_step_ - 1, s.range});
  } else {
    ranges_.release(s.range);
  }
  s.range = {};
}

void Scheduler::range_uses(std::span<BlockUse> out) const {
  std::ranges::fill(out, BlockUse::free);
  auto mark = [&](BlockId first, size_t count, BlockUse use) {
    auto at = std::min(static_cast<size_t>(first - 1), out.size());
    std::ranges::fill(out.subspan(at, std::min(count, out.size() - at)), use);
  };
  for (Index i : running_) {
    const Sequence& s = seqs_[i];
    mark(s.range.first, static_cast<size_t>(s.range.size), BlockUse::reserved);
    mark(s.range.first, s.table.blocks().size(), BlockUse::owned);
  }
  for (const PendingRange& p : pending_ranges_)
    mark(p.range.first, static_cast<size_t>(p.range.size), BlockUse::pending);
}

BlockCounts Scheduler::count_ranges() const {
  BlockCounts c;
  c.total = config_.num_blocks;
  c.free = ranges_.num_free();
  std::vector<bool> held(static_cast<size_t>(c.total) + 1);
  auto hold = [&](BlockRange r) {
    for (BlockId b = r.first; b < r.end(); ++b) {
      CHECK(!held[static_cast<size_t>(b)]);
      held[static_cast<size_t>(b)] = true;
    }
    return r.size;
  };
  for (const Sequence& s : seqs_) {
    c.owned += hold(s.range);
    CHECK(s.table.blocks().size() <= static_cast<size_t>(s.range.size));
    for (size_t k = 0; k < s.table.blocks().size(); ++k)
      CHECK(s.table.blocks()[k] == s.range.first + static_cast<BlockId>(k));
  }
  for (const PendingRange& p : pending_ranges_) c.pending += hold(p.range);
  return c;
}

}  // namespace sluice
