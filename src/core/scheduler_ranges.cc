// Sequences in ranges of consecutive blocks (allocator=reserve and range). A range is claimed whole
// at admission and given back whole; the table takes its blocks in order, row by row and group by
// group, so block k of a range is cell k of the table.
#include <algorithm>
#include <utility>

#include "base/check.h"
#include "core/scheduler.h"

namespace sluice {

// Blocks of the range that a waiting sequence needs. The last token that it samples is never read
// back, so that its K and V need no position.
int Scheduler::range_blocks(Index i) const {
  const Sequence& s = seqs_[i];
  int positions = config_.max_len;
  if (config_.allocator == KvAllocator::range)
    positions = std::max(prompt_len(s) + std::max(claims_[i].predicted, 1) - 1, known_len(s));
  return blocks_for(positions) * layout_.num_groups;
}

RangeRest Scheduler::range_rest(Index i) const {
  auto taken = static_cast<size_t>(seqs_[i].table.ready() * layout_.num_groups);
  return RangeRest(claims_[i].range, taken);
}

// Takes nothing on failure.
bool Scheduler::claim_range(Index i) {
  Sequence& s = seqs_[i];
  claims_[i].range = ranges_.take(range_blocks(i));
  if (claims_[i].range.size == 0) return false;
  s.num_registered = 0;
  RangeRest rest = range_rest(i);
  s.table.claim(layout_, rest, blocks_for(known_len(s)), 0, 0);
  return true;
}

// A row for the next position of a decode. An output that is longer than predicted grows into the
// blocks behind its range; where those are taken, the sequence goes back to the queue and asks for
// a range for twice as many tokens, the third time for all that it may sample.
bool Scheduler::grow_range(Index i, StepPlan& out) {
  Sequence& s = seqs_[i];
  Claim& claim = claims_[i];
  int missing = (s.table.ready() + 1) * layout_.num_groups - claim.range.size;
  if (missing > 0 && !ranges_.extend(claim.range, missing)) {
    CHECK(config_.allocator == KvAllocator::range);
    // The token in flight may be its last.
    if (s.unknown > 0) return false;
    int most = std::max(claim.predicted, static_cast<int>(s.output.size()));
    bool last = s.timing.num_preemptions + 1 >= kMaxPreemptions;
    claim.predicted = last ? s.max_new : std::min(2 * most, s.max_new);
    preempt(i);
    return false;
  }
  RangeRest rest = range_rest(i);
  CHECK(s.table.grow(layout_, rest, s.planned, edits_of(s, out)));
  return true;
}

// Steps in flight may name any block of the range.
void Scheduler::release_range(Index i) {
  seqs_[i].table.release([](BlockId) {}, [](BlockId) {});
  BlockRange range = std::exchange(claims_[i].range, {});
  if (seqs_[i].in_flight > 0) {
    pending_ranges_.push_back({next_step_ - 1, range});
  } else {
    ranges_.release(range);
  }
}

void Scheduler::range_uses(std::span<BlockUse> out) const {
  std::ranges::fill(out, BlockUse::free);
  auto mark = [&](BlockId first, size_t count, BlockUse use) {
    auto at = std::min(static_cast<size_t>(first - 1), out.size());
    std::ranges::fill(out.subspan(at, std::min(count, out.size() - at)), use);
  };
  for (Index i : running_) {
    BlockRange r = claims_[i].range;
    mark(r.first, static_cast<size_t>(r.size), BlockUse::reserved);
    mark(r.first, static_cast<size_t>(seqs_[i].table.ready() * layout_.num_groups),
         BlockUse::owned);
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
  for (size_t i = 0; i < seqs_.size(); ++i) {
    const std::vector<BlockId>& blocks = seqs_[i].table.blocks();
    BlockRange r = claims_[i].range;
    c.owned += hold(r);
    CHECK(blocks.size() <= static_cast<size_t>(r.size));
    size_t taken = static_cast<size_t>(seqs_[i].table.ready() * layout_.num_groups);
    for (size_t k = 0; k < blocks.size(); ++k)
      CHECK(blocks[k] == (k < taken ? r.first + static_cast<BlockId>(k) : kNullBlock));
  }
  for (const PendingRange& p : pending_ranges_) c.pending += hold(p.range);
  return c;
}

}  // namespace sluice
