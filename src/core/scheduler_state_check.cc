// Whether the parts of a scheduler that was read back agree.
#include <algorithm>
#include <utility>

#include "core/scheduler_state_fields.h"

namespace sluice {

namespace {

constexpr size_t kMaxFlights = 200;
constexpr int64_t kManyPositions = int64_t{1} << 30;

}  // namespace

const char* SchedulerState::fault(const Scheduler& s, Index i) {
  const Sequence& x = s.seqs_[i];
  if (x.choices >= s.choices_.size() || !s.choices_[x.choices].request)
    return "a sequence has no request";
  const Request& r = *s.choices_[x.choices].request;
  const auto& seqs = s.choices_[x.choices].seqs;
  if (x.id.req != r.id || x.id.choice >= r.n || x.id.choice >= seqs.size() ||
      seqs[x.id.choice] != i)
    return "a sequence is not its request's";
  if (x.num_prompt != std::ssize(*r.prompt) || x.max_new != r.max_new ||
      x.min_tokens != r.sampling->min_tokens || x.pooling != r.pooling ||
      x.beam != r.beams.has_value() || x.constrained != r.masked())
    return "a sequence differs from its request";
  if (x.max_new < 0 || x.num_prompt + int64_t{x.max_new} > s.config_.max_len ||
      std::ssize(x.output) > x.max_new)
    return "a sequence is too long";
  int64_t known = s.known_len(x);
  if (!in_range(x.unknown, 0, kManyPositions) || !in_range(x.planned, 0, known + x.unknown) ||
      !in_range(x.computed, 0, x.planned) || !in_range(x.num_scored, 0, known) ||
      !in_range(x.num_registered, 0, x.computed / s.config_.block_size + 1) ||
      int64_t{x.num_registered} * s.config_.block_size > known ||
      !in_range(x.predicted_output, 0, kManyPositions) || !in_range(x.reserved, 0, kManyPositions))
    return "a sequence has impossible progress";
  if (x.slot >= static_cast<Slot>(s.config_.max_seqs)) return "a sequence has no valid slot";
  auto cells = x.table.cells_.size(), groups = static_cast<size_t>(s.layout_.num_groups);
  if (cells % groups != 0) return "a block table has half a row";
  auto rows = static_cast<int64_t>(cells / groups);
  if (!in_range(x.table.ready_, 0, rows) || !in_range(x.table.slid_, 0, kManyPositions))
    return "a block table has impossible progress";
  if (x.phase == Phase::running && rows * s.config_.block_size < x.planned)
    return "a running sequence has fewer blocks than positions";
  if (x.phase != Phase::running && cells != 0) return "a sequence that waits has blocks";
  return nullptr;
}

const char* SchedulerState::fault_in_lists(const Scheduler& s) {
  std::vector<uint8_t> listed(s.seqs_.size());
  auto list = [&](const std::vector<Index>& all, Phase phase) {
    return std::ranges::all_of(all, [&](Index i) {
      return i < s.seqs_.size() && s.seqs_[i].phase == phase && !std::exchange(listed[i], 1);
    });
  };
  if (!list(s.free_seqs_, Phase::free) || !list(s.waiting_, Phase::waiting) ||
      !list(s.running_, Phase::running))
    return "a list names a sequence twice or one of another kind";
  for (size_t i = 0; i < s.seqs_.size(); ++i) {
    Phase p = s.seqs_[i].phase;
    if ((p == Phase::waiting || p == Phase::running || p == Phase::free) && !listed[i])
      return "a sequence is in no list";
  }
  auto before = [&](Index a, Index b) { return s.before(a, b); };
  if (!std::is_sorted(s.running_.begin(), s.running_.end(), before) ||
      !std::is_sorted(s.waiting_.rbegin(), s.waiting_.rend(), before))
    return "a queue is not in order";
  std::vector<uint8_t> slots(static_cast<size_t>(s.config_.max_seqs));
  auto slot = [&](Slot x) { return x < slots.size() && !std::exchange(slots[x], 1); };
  for (Slot x : s.free_slots_) {
    if (!slot(x)) return "a free slot is there twice";
  }
  for (Index i : s.running_) {
    if (!slot(s.seqs_[i].slot)) return "two sequences have one slot";
  }
  for (const auto& p : s.pending_slots_) {
    if (!slot(p.slot)) return "a slot is given back twice";
  }
  if (!std::ranges::all_of(slots, [](uint8_t x) { return x == 1; })) return "a slot is nobody's";
  std::vector<uint8_t> chosen(s.choices_.size());
  for (uint32_t c : s.free_choices_) {
    if (c >= s.choices_.size() || s.choices_[c].request || std::exchange(chosen[c], 1))
      return "a list of requests is wrong";
  }
  if (s.blocked_ != kNone &&
      (s.blocked_ >= s.seqs_.size() || s.seqs_[s.blocked_].phase != Phase::waiting))
    return "the sequence that could not start does not wait";
  for (const RowOp& op : s.closing_) {
    if (op.kind != RowOp::close || op.slot >= slots.size()) return "a row to close is not valid";
  }
  return s.held_slots_ < 0 || static_cast<size_t>(s.held_slots_) > s.free_slots_.size()
             ? "more slots are held than free"
             : nullptr;
}

const char* SchedulerState::fault_in_blocks(const Scheduler& s) {
  const BlockPool& pool = s.blocks_.pool;
  std::vector<int> refs(static_cast<size_t>(pool.total()) + 1);
  int64_t promised = s.blocks_.promised_;
  auto hold = [&](BlockId b) {
    return b > 0 && b <= pool.total() && ++refs[static_cast<size_t>(b)] > 0;
  };
  for (const Sequence& x : s.seqs_) {
    if (x.phase != Phase::running) continue;
    promised -= x.table.promised(s.layout_of(x));
    for (BlockId b : x.table.blocks()) {
      if (b != kNullBlock && !hold(b)) return "a block table names a block that is not there";
    }
  }
  for (const auto& [c, group] : s.beams_) promised -= group.promised;
  if (promised != 0 || s.blocks_.promised_ < 0 || s.blocks_.promised_ > pool.available())
    return "promised blocks do not add up";
  uint64_t last = 0;
  for (const auto& p : s.pending_) {
    if (!hold(p.block)) return "a block that is given back is not there";
    if (p.step < last) return "blocks that are given back are not in order";
    last = p.step;
  }
  for (const Moving& m : s.blocks_.moves.moving_) {
    if (m.transfer.kind == Transfer::in && !hold(m.transfer.to))
      return "a block that comes in is not there";
  }
  for (BlockId b = 1; b <= pool.total(); ++b) {
    if (refs[static_cast<size_t>(b)] != pool.refs(b)) return "references of blocks do not add up";
  }
  return nullptr;
}

const char* SchedulerState::fault_in_ranges(const Scheduler& s) {
  const RangeAllocator& r = s.ranges_;
  int64_t free = 0;
  std::vector<uint8_t> held(static_cast<size_t>(r.total_) + 1);
  auto hold = [&](BlockRange x) {
    if (x.size == 0) return true;
    if (x.first < 1 || x.size < 0 || x.first - 1 > r.total_ - x.size) return false;
    for (BlockId b = x.first; b < x.end(); ++b) {
      if (std::exchange(held[static_cast<size_t>(b)], 1)) return false;
    }
    return true;
  };
  for (size_t k = 0; k < r.free_.size(); ++k) {
    const BlockRange& x = r.free_[k];
    if (x.size <= 0 || !hold(x) || (k > 0 && r.free_[k - 1].end() >= x.first))
      return "free ranges overlap or touch";
    free += x.size;
  }
  if (free != r.num_free_) return "free ranges do not add up";
  for (size_t i = 0; i < s.seqs_.size(); ++i) {
    const Sequence& x = s.seqs_[i];
    BlockRange range = s.claims_[i].range;
    if (s.claims_[i].predicted < 0) return "a range is for a negative output";
    if (x.phase != Phase::running) {
      if (range.size != 0) return "a sequence that waits has a range";
      continue;
    }
    if (!hold(range)) return "ranges of sequences overlap";
    const auto& cells = x.table.cells_;
    size_t taken = static_cast<size_t>(x.table.ready_ * s.layout_.num_groups);
    if (cells.size() > static_cast<size_t>(range.size)) return "a table is longer than its range";
    for (size_t k = 0; k < cells.size(); ++k) {
      if (cells[k] != (k < taken ? range.first + static_cast<BlockId>(k) : kNullBlock))
        return "a table is not its range";
    }
  }
  for (const auto& p : s.pending_ranges_) {
    if (p.range.size <= 0 || !hold(p.range)) return "ranges that are given back overlap";
  }
  return nullptr;
}

const char* SchedulerState::fault_in_pages(const Scheduler& s) {
  const SlotPages& p = s.pages_;
  int64_t mapped = 0, used = 0;
  for (const auto& slot : p.slots_) {
    if (slot.used < 0 || slot.mapped < slot.used) return "a slot uses pages that are not mapped";
    mapped += slot.mapped, used += slot.used;
  }
  if (p.free_ < 0 || p.used_ != used || mapped + p.free_ != p.total_) return "pages do not add up";
  for (Slot slot : s.free_slots_) {
    if (p.used(slot) != 0) return "a free slot has pages";
  }
  for (Index i : s.running_) {
    const Sequence& x = s.seqs_[i];
    if (s.config_.pages.pages_for(x.table.ready_) > p.used(x.slot))
      return "a table is longer than its pages";
    SlotBlocks all = s.slot_blocks(x.slot, 0);
    int taken = x.table.ready_ * s.layout_.num_groups;
    for (int k = 0; k < static_cast<int>(x.table.cells_.size()); ++k) {
      if (x.table.cells_[static_cast<size_t>(k)] != (k < taken ? all.at(k) : kNullBlock))
        return "a table is not its slot's";
    }
  }
  return nullptr;
}

const char* SchedulerState::fault_in_flights(const Scheduler& s) {
  std::vector<int> in_flight(s.seqs_.size());
  if (s.flights_.size() > kMaxFlights) return "too many steps are in flight";
  uint64_t last = 0;
  for (const auto& f : s.flights_) {
    if (f.step <= last || f.step >= s.next_step_) return "steps in flight are not in order";
    last = f.step;
    for (const auto& item : f.items) {
      if (item.seq >= s.seqs_.size() || s.seqs_[item.seq].phase == Phase::free)
        return "a step in flight names a sequence that is not there";
      if (item.pos < 0 || item.count < 1 || item.pos > kManyPositions || item.count > kMostOfAny)
        return "a step in flight has no valid positions";
      ++in_flight[item.seq];
    }
  }
  for (size_t i = 0; i < s.seqs_.size(); ++i) {
    const Sequence& x = s.seqs_[i];
    if (x.phase != Phase::free && x.in_flight != in_flight[i])
      return "steps in flight do not add up";
    if (x.phase == Phase::done && x.in_flight == 0) return "a sequence that is done stays";
  }
  return nullptr;
}

const char* SchedulerState::fault_in_tiers(const Scheduler& s) {
  const TierCache& tiers = s.blocks_.tiers;
  const TierSizes& sizes = s.config_.tiers;
  std::vector<int> refs(static_cast<size_t>(sizes.total()) + 1);
  auto hold = [&](PlaceId p, int most) {
    return p > 0 && p <= most && ++refs[static_cast<size_t>(p)] > 0;
  };
  for (size_t i = 0; i < s.away_.size(); ++i) {
    const auto& a = s.away_[i];
    if (s.seqs_[i].phase == Phase::free) continue;
    if (!in_range(a.positions, 0, kManyPositions) || a.num_coming < 0)
      return "a swapped sequence has impossible progress";
    if (!a.places.empty() &&
        std::ssize(a.places) != int64_t{s.blocks_for(a.positions)} * s.layout_.num_groups)
      return "a swapped sequence has too few places";
    if (a.places.empty() && a.positions != 0) return "a swapped sequence has no places";
    for (PlaceId p : a.places) {
      if (p != kNullBlock && !hold(p, sizes.swap)) return "a place is not there";
    }
  }
  TransferId last = 0;
  for (const Moving& m : s.blocks_.moves.moving_) {
    const Transfer& t = m.transfer;
    if (t.id <= last || t.id >= s.blocks_.moves.next_) return "transfers are not in order";
    last = t.id;
    if (t.kind == Transfer::out && !hold(t.to, sizes.total())) return "a place is not there";
    if (t.kind == Transfer::in && !hold(t.from, sizes.total())) return "a place is not there";
    if (t.kind == Transfer::in && (m.seq >= s.seqs_.size() || s.away_.empty()))
      return "a transfer is nobody's";
    if (t.kind == Transfer::send || t.kind == Transfer::receive)
      return "a transfer is of a kind that is never recorded";
  }
  for (const Transfer& t : s.blocks_.moves.planned_) {
    if (t.kind != Transfer::copy && sizes.total() == 0) return "a planned transfer has no place";
  }
  auto agree = [&](const BlockPool& pool, int first) {
    for (BlockId b = 1; b <= pool.total(); ++b) {
      if (pool.refs(b) != refs[static_cast<size_t>(first + b)]) return false;
    }
    return true;
  };
  if (!agree(tiers.swap_, 0) || !agree(tiers.host_.places_, sizes.swap) ||
      !agree(tiers.disk_.places_, sizes.memory()))
    return "references of places do not add up";
  return nullptr;
}

const char* SchedulerState::fault_in_beams(const Scheduler& s) {
  int held = 0;
  for (const auto& [c, g] : s.beams_) {
    if (c >= s.choices_.size() || !s.choices_[c].request || !s.choices_[c].request->beams ||
        s.choices_[c].num_live == 0)
      return "a search has no request";
    const Request& r = *s.choices_[c].request;
    const BeamSearch& b = g.search;
    if (b.width_ != r.n || b.max_new_ != r.max_new || b.max_new_ < 1 || b.length_ < 0)
      return "a search is not its request's";
    if (b.beams_.size() > static_cast<size_t>(r.n) || g.promised < 0 || g.held_slots < 0 ||
        !in_range(g.num_parked, 0, std::ssize(g.seqs)) || g.options.size() != g.seqs.size())
      return "a search has impossible progress";
    held += g.held_slots;
    for (Index i : g.seqs) {
      if (i >= s.seqs_.size() || s.seqs_[i].choices != c || s.seqs_[i].phase != Phase::running)
        return "a search names a sequence that does not run";
    }
    size_t parents = g.seqs.size();
    if (!g.chosen && !g.seqs.empty() && b.beams_.size() != parents)
      return "a search has other beams than sequences";
    for (const auto& beam : b.beams_) {
      if (g.chosen && (beam.parent < 0 || static_cast<size_t>(beam.parent) >= parents))
        return "a beam has no parent";
    }
    for (const auto& a : b.answers_) {
      if (a.tokens.empty() || std::ssize(a.tokens) > r.max_new) return "an answer is not valid";
    }
    if (b.answers_.size() > static_cast<size_t>(r.n)) return "a search has too many answers";
  }
  if (held != s.held_slots_) return "slots of searches do not add up";
  for (uint32_t c = 0; c < s.choices_.size(); ++c) {
    const Choices& x = s.choices_[c];
    if (x.num_live > 0 && x.request->beams && !s.beams_.contains(c)) return "a search is missing";
  }
  return nullptr;
}

const char* SchedulerState::fault(const Scheduler& s) {
  if (s.standings_.size() != s.seqs_.size() ||
      s.claims_.size() != (s.config_.ranged() ? s.seqs_.size() : 0) ||
      s.away_.size() != (s.config_.tiers.total() > 0 ? s.seqs_.size() : 0))
    return "sequences do not add up";
  std::vector<int> live(s.choices_.size()), records(s.choices_.size());
  for (Index i = 0; i < s.seqs_.size(); ++i) {
    const Sequence& x = s.seqs_[i];
    if (x.phase == Phase::free) continue;
    if (const char* why = fault(s, i)) return why;
    ++records[x.choices];
    live[x.choices] += x.phase != Phase::done;
    if (s.config_.order == Order::fair && s.standings_[i].account >= s.accounts_.entries_.size())
      return "a sequence has no account";
  }
  for (size_t c = 0; c < s.choices_.size(); ++c) {
    const Choices& x = s.choices_[c];
    if (!x.request) continue;
    if (x.num_live != live[c] || x.num_records != records[c] || x.num_records < 1 ||
        std::ssize(x.seqs) != x.request->n ||
        std::ranges::any_of(x.seqs, [&](Index i) { return i >= s.seqs_.size(); }))
      return "choices of a request do not add up";
    if (s.config_.order == Order::fair && x.account >= s.accounts_.entries_.size())
      return "a request has no account";
    if (auto ok = Scheduler::check(*x.request, s.config_);
        !ok && !(x.request->beams && x.num_live == 0) && !x.request->beams)
      return "a request cannot run with these settings";
    if (x.request->beams && s.config_.contiguous()) return "a search has no blocks to share";
  }
  std::vector<int> waiting(s.accounts_.entries_.size());
  if (const char* why = fault_in_lists(s)) return why;
  if (s.config_.order == Order::fair) {
    for (Index i : s.waiting_) waiting[s.standings_[i].account] += !s.aged(i);
    for (size_t a = 0; a < waiting.size(); ++a) {
      if (s.accounts_.entries_[a].num_waiting != waiting[a]) return "accounts do not add up";
    }
  }
  if (const char* why = fault_in_flights(s)) return why;
  if (const char* why = fault_in_tiers(s)) return why;
  if (const char* why = fault_in_beams(s)) return why;
  if (!s.config_.ranged() && !s.pending_ranges_.empty()) return "ranges without their allocator";
  if (!s.config_.mapped() && !s.pending_slots_.empty()) return "slots without their allocator";
  if (s.config_.contiguous() && (!s.pending_.empty() || !s.blocks_.moves.moving_.empty()))
    return "blocks without their allocator";
  if (s.config_.ranged()) return fault_in_ranges(s);
  if (s.config_.mapped()) return fault_in_pages(s);
  return fault_in_blocks(s);
}

}  // namespace sluice
