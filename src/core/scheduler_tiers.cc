// Blocks outside the pool: where a preempted sequence's blocks and evicted prefixes go, and how
// they come back. A sequence whose blocks come in has its slot, and runs when all of them are
// there.
#include <algorithm>
#include <utility>

#include "base/check.h"
#include "core/scheduler.h"

namespace sluice {

// Moves a running sequence's blocks to host memory, unless computing them again is cheaper or there
// is no room. Steps in flight are done before the step that moves them. False: nothing is moved.
bool Scheduler::swap_out(Index i) {
  const Sequence& s = seqs_[i];
  if (config_.preempt != Preempt::swap || s.fetching || s.fork_pending) return false;
  // What these computed is not in their blocks alone.
  if (s.pooling != Pooling::none) return false;
  if (request_of(s).sampling->prompt_logprobs >= 0 && s.num_scored < prompt_len(s) - 1)
    return false;
  // The last known token runs again: its sample is what comes next.
  int positions = std::min(s.planned, known_len(s) - 1), rows = blocks_for(positions);
  if (positions <= 0) return false;
  int num = 0;
  for (int g = 0; g < layout_.num_groups; ++g) num += rows - layout_.first_seen(g, positions);
  if (num > blocks_.tiers.num_swap_free() || !swap_pays(num, positions, config_.swap_cost))
    return false;
  Away& away = away_[i];
  away.positions = positions;
  away.places.assign(static_cast<size_t>(rows * layout_.num_groups), kNullBlock);
  for (int g = 0; g < layout_.num_groups; ++g) {
    for (int index = layout_.first_seen(g, positions); index < rows; ++index) {
      PlaceId place = blocks_.tiers.take_swap();
      away.places[static_cast<size_t>(index * layout_.num_groups + g)] = place;
      blocks_.tiers.retain(place);  // the transfer's
      blocks_.moves.add(Transfer::out, s.table.at(layout_, index, g), place);
    }
  }
  ++tier_totals_.num_swapped;
  return true;
}

// Takes what there is of a waiting sequence's K and V: blocks of the pool at once, those outside it
// are noted in fetch_. Returns the rows that these make.
int Scheduler::restore(Index i) {
  Sequence& s = seqs_[i];
  fetch_.clear();
  int num = match_prefix(s), pos = num * config_.block_size;
  const Away* away = away_.empty() || away_[i].positions <= pos ? nullptr : &away_[i];
  if (away) pos = away->positions;
  s.num_registered = num;
  s.planned = s.computed = pos;
  if (num > 0) s.last_hash = chain_[static_cast<size_t>(num - 1)];
  if (pos == 0) return 0;
  int rows = blocks_for(pos);
  s.table.begin(layout_, rows, pos);
  for (int g = 0; g < layout_.num_groups; ++g) {
    for (int index = layout_.first_seen(g, pos); index < rows; ++index) {
      auto k = static_cast<size_t>(index);
      auto at = k * static_cast<size_t>(layout_.num_groups) + static_cast<size_t>(g);
      Source from = kNullBlock;
      if (index < num) from = layout_.windowed(g) ? find_block(s, index, g, chain_[k]) : found_[at];
      if (from <= 0 && away) from = -away->places[at];
      CHECK(from != kNullBlock);
      if (from > 0) {
        s.table.adopt(layout_, blocks_, index, g, from);
        continue;
      }
      fetch_.push_back({index, g, -from});
      if (blocks_.tiers.is_swap(-from)) continue;
      blocks_.tiers.retain(-from);
      blocks_.tiers.set_parent(-from, k == 0 ? root_hash(request_of(s).tenant) : chain_[k - 1]);
    }
  }
  // Used now, so they belong on disk too. The places to fetch from are retained: none of them makes
  // room.
  for (BlockId b : s.table.blocks()) {
    if (b != kNullBlock) blocks_.store(b);
  }
  return rows;
}

// It cannot start yet.
void Scheduler::drop_fetch() {
  for (const Fetch& f : fetch_) {
    if (!blocks_.tiers.is_swap(f.place)) blocks_.tiers.release(f.place);
  }
  fetch_.clear();
}

// Blocks for what comes in. The transfers own their places from here on, and a reference to their
// blocks.
void Scheduler::fetch_blocks(Index i) {
  if (away_.empty()) return;
  Sequence& s = seqs_[i];
  Away& away = away_[i];
  bool restored = false;
  auto groups = static_cast<ptrdiff_t>(layout_.num_groups);
  fetched_.assign(static_cast<size_t>(2 * groups), 0);  // by group; then those from disk
  for (const Fetch& f : fetch_) {
    BlockId b = s.table.expect(layout_, blocks_, f.index, f.group);
    blocks_.retain(b);
    blocks_.moves.add(Transfer::in, f.place, b, i, s.epoch);
    if (blocks_.tiers.is_swap(f.place)) {
      away.places[static_cast<size_t>(f.index * layout_.num_groups + f.group)] = kNullBlock;
      restored = true;
    } else {
      ++fetched_[static_cast<size_t>(f.group)];
      if (blocks_.tiers.is_disk(f.place)) ++fetched_[static_cast<size_t>(groups + f.group)];
    }
  }
  drop_swap(i);
  away.num_coming = static_cast<int>(fetch_.size());
  away.lost = false;
  s.fetching = away.num_coming > 0;
  if (restored) ++tier_totals_.num_restored;
  if (s.timing.num_steps == 0 && !away.counted) {
    auto tokens = [&](auto first, auto last) {
      return static_cast<uint64_t>(*std::max_element(first, last) * config_.block_size);
    };
    auto middle = fetched_.begin() + groups;
    tier_totals_.prefix_hits += tokens(fetched_.begin(), middle);
    tier_totals_.disk_hits += tokens(middle, fetched_.end());
  }
}

// Gives up what a preempted sequence has in host memory.
void Scheduler::drop_swap(Index i) {
  if (away_.empty()) return;
  for (PlaceId place : away_[i].places) {
    if (place != kNullBlock) blocks_.tiers.release(place);
  }
  away_[i].places.clear();
  away_[i].positions = 0;
}

void Scheduler::take_transfers(const StepResult& result) {
  blocks_.moves.complete(result.transfers, [&](const Moving& m) {
    if (m.transfer.kind == Transfer::out) {
      ++tier_totals_.blocks_out;
      tier_totals_.disk_writes += blocks_.tiers.is_disk(m.transfer.to);
      end_exports(m.transfer.to, true);
      blocks_.tiers.release(m.transfer.to);
    } else if (m.transfer.kind == Transfer::send) {
      ++tier_totals_.blocks_out;
      end_exports(m.transfer.to, true);
    } else if (m.transfer.kind == Transfer::in) {
      ++tier_totals_.blocks_in;
      tier_totals_.disk_reads += blocks_.tiers.is_disk(m.transfer.from);
      take_in(m);
    }
  });
  blocks_.moves.complete(result.lost, [&](const Moving& m) { lose_transfer(m); });
}

// A block came in. If it holds a prefix, others may share it from now on, whoever asked for it.
void Scheduler::take_in(const Moving& m) {
  PlaceId place = m.transfer.from;
  BlockId block = m.transfer.to;
  const TierCache& tiers = blocks_.tiers;
  if (tiers.cached(place) &&
      blocks_.index.insert(tiers.key(place), tiers.tokens(place), block, tiers.parent(place)))
    blocks_.pool.mark_cached(block);
  blocks_.tiers.release(place);
  blocks_.pool.release(block);
  end_fetch(m);
}

// A block that could not be written, or is not where it should be.
void Scheduler::lose_transfer(const Moving& m) {
  const Transfer& t = m.transfer;
  CHECK(t.kind == Transfer::out || t.kind == Transfer::in);
  PlaceId place = t.kind == Transfer::out ? t.to : t.from;
  ++tier_totals_.disk_lost;
  if (t.kind == Transfer::out) end_exports(place, false);
  blocks_.tiers.forget(place);
  blocks_.tiers.release(place);
  if (t.kind == Transfer::out) return;
  blocks_.pool.release(t.to);
  Sequence& s = seqs_[m.seq];
  if (s.phase == Phase::running && s.epoch == m.epoch) away_[m.seq].lost = true;
  end_fetch(m);
}

// A sequence waits for one block less. With all there, it goes on; if one was lost it goes back to
// the queue, and finds those that came in the prefix cache.
void Scheduler::end_fetch(const Moving& m) {
  Sequence& s = seqs_[m.seq];
  Away& away = away_[m.seq];
  if (s.phase != Phase::running || s.epoch != m.epoch || --away.num_coming > 0) return;
  if (std::exchange(away.lost, false)) {
    leave_slot(m.seq);
    release_blocks(m.seq);
    if (s.beam) unclaim_beams(s.choices);
    s.reset_progress();
    enqueue(m.seq);
  } else {
    s.fetching = false;
  }
}

// Adds the keys of blocks that go to disk or come from it, and the id of the oldest transfer that
// somebody still waits for.
void Scheduler::add_keys(StepPlan& out) const {
  out.oldest = blocks_.moves.oldest();
  for (Transfer& t : out.transfers) {
    PlaceId place = t.kind == Transfer::out ? t.to : t.kind == Transfer::in ? t.from : kNullBlock;
    if (!blocks_.tiers.is_disk(place)) continue;
    const PrefixKey& key = blocks_.tiers.key(place);
    std::span<const Token> tokens = blocks_.tiers.tokens(place);
    t.key = static_cast<int32_t>(out.keys.size());
    out.keys.push_back({key.hash, key.tenant, static_cast<uint32_t>(key.group),
                        static_cast<uint32_t>(out.tokens.size()),
                        static_cast<uint32_t>(tokens.size())});
    out.tokens.insert(out.tokens.end(), tokens.begin(), tokens.end());
  }
}

// A step failed, and with it all that were planned: what was on its way is lost.
void Scheduler::fail_transfers() {
  for (const Moving& m : blocks_.moves.moving()) {
    if (m.transfer.kind == Transfer::out) {
      end_exports(m.transfer.to, false);
      blocks_.tiers.forget(m.transfer.to);
      blocks_.tiers.release(m.transfer.to);
    } else if (m.transfer.kind == Transfer::send) {
      end_exports(m.transfer.to, false);
    } else if (m.transfer.kind == Transfer::in) {
      blocks_.tiers.release(m.transfer.from);
      blocks_.pool.release(m.transfer.to);
    }
  }
  blocks_.moves.clear();
}

}  // namespace sluice
