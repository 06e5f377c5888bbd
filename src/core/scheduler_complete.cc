// Results in, events out: the second half of the scheduler.
#include <algorithm>

#include "base/check.h"
#include "core/scheduler.h"

namespace sluice {

void Scheduler::complete(const StepResult& result, Time now, Events& out) {
  CHECK(!flights_.empty() && flights_.front().step == result.step);
  const size_t first_event = out.list.size();
  InFlight flight = std::move(flights_.front());
  flights_.erase(flights_.begin());

  const bool failed = !flight.lost && !result.failure.empty();
  if (failed) {
    fail_transfers();
    if (config_.mapped()) pages_.restate();  // what it should have mapped may not be
    // Those behind it were planned before this was known. Executors may run them or not; what is
    // planned from now on does not depend on it.
    for (InFlight& f : flights_) f.lost = true;
  } else if (!flight.lost) {
    take_transfers(result);
    register_step(flight);
    if (config_.slo.any()) slo_.complete(flight.slo, flight.scheduled, result.end);
  }
  size_t row = 0;
  for (size_t k = 0; k < flight.items.size(); ++k) {
    if (k + 8 < flight.items.size()) prefetch(flight.items[k + 8].seq);
    if (k + 4 < flight.items.size()) prefetch_output(flight.items[k + 4].seq);
    const InFlight::Item& item = flight.items[k];
    const Sampled* sampled = nullptr;
    if (!flight.lost && !failed && item.want != Want::none) sampled = &result.rows[row++];
    take_result(item, sampled, result, flight, now, out);
  }
  if (failed) {
    // The device failed: nothing that runs or waits can be trusted to continue.
    for (size_t i = 0; i < seqs_.size(); ++i) {
      Phase p = seqs_[i].phase;
      if (p != Phase::free && p != Phase::done)
        finish(static_cast<Index>(i), Finish::failed, now, {}, out);
    }
  }
  release_pending(result.step);
  release_slots(result.step);
  std::erase_if(pending_ranges_, [&](const PendingRange& p) {
    if (p.step > result.step) return false;
    ranges_.release(p.range);
    return true;
  });
  spare_.push_back(std::move(flight));
  if (listener_.to)
    listener_.to->completed(*this, result, now, std::span(out.list).subspan(first_event));
}

// Blocks of sequences that ended, which no step in flight names any more: up to `step` they come
// first in the list.
void Scheduler::release_pending(uint64_t step) {
  size_t num = 0;
  for (; num < pending_.size() && pending_[num].step <= step; ++num) {
    if (num + 8 < pending_.size()) blocks_.pool.prefetch(pending_[num + 8].block);
    blocks_.pool.release(pending_[num].block);
  }
  pending_.erase(pending_.begin(), pending_.begin() + static_cast<ptrdiff_t>(num));
}

void Scheduler::take_result(const InFlight::Item& item,
                            const Sampled* sampled,
                            const StepResult& result,
                            const InFlight& flight,
                            Time now,
                            Events& out) {
  Sequence& s = seqs_[item.seq];
  --s.in_flight;
  if (s.phase == Phase::done) {
    if (s.in_flight == 0) recycle(item.seq);
    return;
  }
  // Preempted since: the tokens it had are enough to start again.
  if (s.epoch != item.epoch || !result.failure.empty()) return;
  if (!sampled) return;
  CHECK(sampled->slot == s.slot && sampled->epoch == s.epoch);
  // append() said what it would be.
  if (s.forced && item.want == Want::last && item.pos + item.count < known_len(s)) [[unlikely]]
    return;

  Event event;
  event.scheduled = flight.scheduled;
  event.begin = result.begin;
  event.end = result.end;
  if (item.want == Want::pool) {
    CHECK(sampled->pooled >= 0);
    const Vector& vector = result.pooled[static_cast<size_t>(sampled->pooled)];
    return take_vector(item.seq, vector, event, now, out);
  }
  if (s.beam) [[unlikely]] {
    std::span top = std::span(result.top).subspan(sampled->top_at, sampled->num_top);
    return take_beam(item.seq, top, event, now, out);
  }
  int prompt = prompt_len(s);
  event.prompt_at = static_cast<uint32_t>(out.top.size());
  int scored = s.num_scored;
  for (uint32_t k = 0; k < sampled->num_top; ++k) {
    const TopLogprob& t = result.top[sampled->top_at + k];
    if (t.pos >= prompt || t.pos <= s.num_scored) continue;  // sampled, or sent before a preemption
    scored = t.pos;
    out.top.push_back(t);
  }
  s.num_scored = scored;
  event.num_prompt = static_cast<uint32_t>(out.top.size()) - event.prompt_at;
  event.top_at = static_cast<uint32_t>(out.top.size());
  for (uint32_t k = 0; k < sampled->num_top; ++k) {
    const TopLogprob& t = result.top[sampled->top_at + k];
    if (t.pos >= prompt) out.top.push_back(t);
  }
  event.num_top = static_cast<uint32_t>(out.top.size()) - event.top_at;

  if (sampled->num_tokens > 0) {
    CHECK(sampled->num_tokens == 1);  // plans have no draft tokens yet
    Token token = result.tokens[sampled->token_at];
    if (token == kNoToken) [[unlikely]]
      return finish(item.seq, Finish::constraint, now, event, out);
    take_token(item.seq, token, event, now, out);
  } else if (event.num_prompt > 0) {
    event.req = s.id.req;
    event.choice = s.id.choice;
    out.list.push_back(event);
  }
}

void Scheduler::take_vector(Index i, const Vector& vector, Event& event, Time now, Events& out) {
  SeqTiming& timing = seqs_[i].timing;
  timing.first_token = timing.last_token = now;
  event.pooled = vector;
  finish(i, Finish::stop, now, std::move(event), out);
}

void Scheduler::take_token(Index i, Token token, Event& event, Time now, Events& out) {
  Sequence& s = seqs_[i];
  const Request& r = request_of(s);
  --s.unknown;
  s.output.push_back(token);
  if (s.timing.first_token == Time{0}) s.timing.first_token = now;
  s.timing.last_token = now;
  event.req = s.id.req;
  event.choice = s.id.choice;
  event.token = token;

  int outputs = static_cast<int>(s.output.size());
  bool may_stop = outputs >= s.min_tokens;
  Finish why = Finish::none;
  // A constraint lets an end token through before min_tokens only where nothing else may follow.
  if ((may_stop || s.constrained) &&
      std::ranges::find(r.stop.tokens, token) != r.stop.tokens.end()) {
    why = Finish::stop;
    event.is_end_token = true;
  } else if (!r.stop.strings.empty() && text_) {
    StopMatcher::Match m = s.stop.feed(r.stop.strings, text_->bytes(token));
    if (m.found && may_stop) {
      why = Finish::stop;
      event.cut = m.cut;
      event.trail = m.trail;
      event.stop_string = m.index;
    }
    event.held = m.held;
  }
  if (why == Finish::none && outputs >= s.max_new) {
    why = Finish::length;
    event.held = 0;
  }
  if (why == Finish::none) {
    if (outputs >= s.predicted_output) [[unlikely]]
      grow_prediction(s);
    event.timing = s.timing;
    out.list.push_back(event);
  } else {
    finish(i, why, now, event, out);
  }
}

void Scheduler::append(const Event& after, std::span<const Token> tokens, Time now, Events& out) {
  auto it = choices_of_.find(after.req);
  if (it == choices_of_.end()) return;
  Index i = choices_[it->second].seqs[after.choice];
  const SeqId id{after.req, after.choice};
  Event event;
  event.scheduled = after.scheduled, event.begin = after.begin, event.end = after.end;
  const size_t first_event = out.list.size();
  for (Token t : tokens) {
    Sequence& s = seqs_[i];
    if (s.id != id || s.phase != Phase::running) break;  // its end was among them
    s.forced = true;
    s.unknown = std::max(s.unknown, 1);  // in flight, or as if it were
    Event next = event;
    take_token(i, t, next, now, out);
  }
  if (listener_.to)
    listener_.to->appended(*this, id, tokens, now, std::span(out.list).subspan(first_event));
}

// What the step computed, and the blocks it filled for the prefix index. The index is much larger
// than caches: all places are asked for first, then used (2,048 rows: 40 us less a step).
void Scheduler::register_step(const InFlight& flight) {
  full_.clear();
  for (size_t k = 0; k < flight.items.size(); ++k) {
    if (k + 8 < flight.items.size()) prefetch(flight.items[k + 8].seq);
    const InFlight::Item& item = flight.items[k];
    Sequence& s = seqs_[item.seq];
    if (s.phase != Phase::running || s.epoch != item.epoch) continue;
    s.computed = std::max(s.computed, item.pos + item.count);
    if (!config_.prefix_cache) continue;
    if (exporter_.to) note_lease(item.seq);
    if ((s.num_registered + 1) * config_.block_size > s.computed) continue;
    BlockHash hash = block_hash(s, s.num_registered, s.last_hash);
    for (int g = 0; g < layout_.num_groups; ++g) {
      BlockId block = s.table.at(layout_, s.num_registered, g);
      blocks_.index.prefetch(hash, g, block);
      blocks_.pool.prefetch(block);
    }
    full_.push_back(item.seq);
  }
  for (Index i : full_) register_blocks(seqs_[i]);
  if (exporter_.to) export_leased();
}

void Scheduler::register_blocks(Sequence& s) {
  while ((s.num_registered + 1) * config_.block_size <= s.computed) {
    int b = s.num_registered++;
    const BlockHash parent = b == 0 ? root_hash(request_of(s).tenant) : s.last_hash;
    s.last_hash = block_hash(s, b, parent);
    std::span<const Token> tokens = block_tokens(s, b);
    for (int g = 0; g < layout_.num_groups; ++g) {
      BlockId block = s.table.at(layout_, b, g);
      if (block == kNullBlock) continue;  // came back from host memory without it
      if (blocks_.index.insert({s.last_hash, g, request_of(s).tenant}, tokens, block, parent)) {
        blocks_.pool.mark_cached(block);
        blocks_.store(block);
      }
    }
  }
}

void Scheduler::finish(Index i, Finish why, Time now, Event event, Events& out) {
  Sequence& s = seqs_[i];
  Choices& c = choices_[s.choices];
  if (s.phase == Phase::running) {
    leave_slot(i);
    release_blocks(i);
  } else if (s.phase == Phase::waiting) {
    dequeue(i);
  }
  drop_swap(i);
  if (blocked_ == i) blocked_ = kNone;
  if (s.pooling == Pooling::none && !s.beam && (why == Finish::stop || why == Finish::length))
    predictor_.learn(request_of(s), static_cast<int>(s.output.size()));
  s.phase = Phase::done;
  s.timing.finish = now;
  event.req = s.id.req;
  event.choice = s.id.choice;
  event.finish = why;
  event.timing = s.timing;
  event.last = --c.num_live == 0;
  if (event.last) {
    if (config_.order == Order::fair) accounts_.leave(c.account);
    if (s.beam) {
      unclaim_beams(s.choices);
      beams_.erase(s.choices);
    }
    choices_of_.erase(s.id.req);
    --requests_live_;
    num_constrained_ -= s.constrained;
  }
  out.list.push_back(std::move(event));
  if (s.in_flight == 0) recycle(i);
}

// All choices of a request that have not finished. A choice that has may have left its record to
// another request; finish() may recycle the Choices with the last one.
void Scheduler::finish_choices(uint32_t c, Finish why, Time now, Events& out) {
  RequestId id = choices_[c].request->id;
  for (size_t k = 0; choices_[c].num_live > 0; ++k) {
    Index i = choices_[c].seqs[k];
    Phase p = seqs_[i].phase;
    if (seqs_[i].id.req == id && p != Phase::done && p != Phase::free) finish(i, why, now, {}, out);
  }
}

void Scheduler::cancel(RequestId id, Time now, Events& out) {
  auto it = choices_of_.find(id);
  if (it == choices_of_.end()) return;
  finish_choices(it->second, Finish::cancelled, now, out);
  if (listener_.to) listener_.to->cancelled(*this, id, now);
}

const Request* Scheduler::find(RequestId id) const {
  auto it = choices_of_.find(id);
  return it == choices_of_.end() ? nullptr : choices_[it->second].request.get();
}

void Scheduler::leave_slot(Index i) {
  Sequence& s = seqs_[i];
  RowOp op;
  op.kind = RowOp::close;
  op.id = s.id;
  op.slot = s.slot;
  op.epoch = s.epoch;
  closing_.push_back(std::move(op));
  if (!config_.mapped()) free_slots_.push_back(s.slot);  // else with its pages
  running_.erase(std::lower_bound(running_.begin(), running_.end(), i,
                                  [&](Index a, Index b) { return before(a, b); }));
  ++s.epoch;
}

void Scheduler::recycle(Index i) {
  Sequence& s = seqs_[i];
  s.phase = Phase::free;
  free_seqs_.push_back(i);
  Choices& c = choices_[s.choices];
  s.request = nullptr;
  if (--c.num_records == 0) {
    c.request.reset();
    free_choices_.push_back(s.choices);
  }
}

// Every field that changes after construction is here, in the order of the header.
void Scheduler::reset() noexcept {
  blocks_.clear();
  ranges_.clear();
  pages_.clear();
  seqs_.clear(), standings_.clear(), free_seqs_.clear();
  choices_.clear(), free_choices_.clear(), choices_of_.clear();
  requests_live_ = num_constrained_ = 0;
  waiting_.clear(), running_.clear();
  free_slots_.clear();
  for (int s = config_.max_seqs; s > 0; --s) free_slots_.push_back(static_cast<Slot>(s - 1));
  beams_.clear();
  held_slots_ = 0;
  closing_.clear(), flights_.clear(), spare_.clear();
  pending_.clear(), away_.clear(), claims_.clear(), pending_ranges_.clear();
  pending_slots_.clear();
  leased_.clear(), exports_.clear();
  full_.clear(), draft_.clear(), chain_.clear(), found_.clear(), fetch_.clear(), fetched_.clear();
  std::ranges::fill(straddle_, Token{0});
  blocked_ = kNone;
  blocked_available_ = reserved_ = 0;
  decode_blocked_ = prefill_blocked_ = false;
  forming_ = joining_ = true;
  prompts_left_ = num_masks_ = 0;
  next_deadline_ = next_aging_ = fill_until_ = kNever;
  accounts_.clear();
  predictor_.clear();
  growths_.clear();
  forecast_.clear();
  // These go on: next_step_, numbers of transfers, num_preemptions_, prefix_queries_, prefix_hits_,
  // tier_totals_, and what slo_ has learnt of the device.
  if (listener_.to) listener_.to->reset(*this);
  if (kv_listener_.to) kv_listener_.to->cleared();
  if (exporter_.to) exporter_.to->cleared();
}

int Scheduler::flush_prefixes() {
  int num = blocks_.flush();
  if (listener_.to) listener_.to->flushed(*this);
  return num;
}

void Scheduler::listen_kv(KvListener* listener) {
  kv_listener_.to = listener;
  blocks_.index.listen(listener, KvTier::device);
  blocks_.tiers.listen(listener);
}

void Scheduler::list_prefixes(KvListener& to) const {
  blocks_.index.list(to);
  blocks_.tiers.list(to);
}

SchedulerStats Scheduler::stats() const {
  SchedulerStats st;
  st.num_waiting = static_cast<int>(waiting_.size());
  st.num_running = static_cast<int>(running_.size());
  st.num_in_flight = static_cast<int>(flights_.size());
  st.available_blocks = available_blocks();
  st.total_blocks = config_.mapped() ? blocks_in_pages(pages_.total()) : config_.num_blocks;
  st.num_preemptions = num_preemptions_;
  st.prefix_queries = prefix_queries_;
  st.prefix_hits = prefix_hits_;
  st.tiers = tier_totals_;
  st.slo = slo_.stats();
  st.tiers.total_places = config_.tiers.memory();
  st.tiers.block_bytes = config_.tiers.block_bytes;
  st.tiers.used_places = blocks_.tiers.num_used_memory();
  st.tiers.disk_places = config_.tiers.disk;
  st.tiers.used_disk_places = blocks_.tiers.num_used_disk();
  return st;
}

KvUse Scheduler::kv_use() const {
  KvUse use;
  int64_t size = config_.block_size, groups = layout_.num_groups;
  use.total = config_.num_blocks * size;
  use.free = available_blocks() * size;
  if (config_.mapped()) use.total = int64_t{blocks_in_pages(pages_.total())} * size;
  use.largest = config_.ranged() ? ranges_.largest() * size : use.free;
  use.held = use.total - use.free;
  for (Index i : running_) {
    const Sequence& s = seqs_[i];
    int64_t blocks = config_.ranged()   ? claims_[i].range.size
                     : config_.mapped() ? blocks_in_pages(pages_.used(s.slot))
                                        : s.table.num_rows(layout_) * groups;
    use.unfilled += std::max<int64_t>(blocks * size - known_len(s) * groups, 0);
  }
  return use;
}

void Scheduler::block_uses(std::span<BlockUse> out) const {
  if (config_.ranged()) return range_uses(out);
  if (config_.mapped()) return page_uses(out);
  auto num = std::min(out.size(), static_cast<size_t>(blocks_.pool.total()));
  for (size_t k = 0; k < num; ++k) {
    auto b = static_cast<BlockId>(k + 1);
    int refs = blocks_.pool.refs(b);
    BlockUse idle = blocks_.pool.cached(b) ? BlockUse::cached : BlockUse::free;
    out[k] = refs == 0 ? idle : refs == 1 ? BlockUse::owned : BlockUse::shared;
  }
  // A sequence that left while a step in flight still names its blocks holds them no longer. (One
  // that two such sequences shared stays "shared" until the step completes.)
  auto hide = [&](BlockId b) {
    auto k = static_cast<size_t>(b - 1);
    if (k < num && blocks_.pool.refs(b) <= 2)
      out[k] = out[k] == BlockUse::shared ? BlockUse::owned : BlockUse::pending;
  };
  for (const PendingBlock& p : pending_) hide(p.block);
  for (const Moving& m : blocks_.moves.moving()) {
    if (m.transfer.kind == Transfer::in) hide(m.transfer.to);
  }
}

BlockCounts Scheduler::count_blocks() const {
  if (config_.ranged()) return count_ranges();
  if (config_.mapped()) return count_pages();
  BlockCounts c;
  c.total = blocks_.pool.total();
  // Promised blocks are free ones, and beyond those cached ones.
  int promised = blocks_.promised(), of_free = std::min(promised, blocks_.pool.num_free());
  c.free = blocks_.pool.num_free() - of_free;
  c.cached = blocks_.pool.num_cached() - (promised - of_free);
  c.owned = promised;
  CHECK(c.cached >= 0);
  std::vector<int> refs(static_cast<size_t>(c.total) + 1);
  std::vector<bool> owned(refs.size());
  for (const Sequence& s : seqs_) {
    promised -= s.table.promised(layout_of(s));
    for (BlockId b : s.table.blocks()) {
      if (b == kNullBlock) continue;
      ++refs[static_cast<size_t>(b)];
      owned[static_cast<size_t>(b)] = true;
    }
  }
  for (const auto& entry : beams_) promised -= entry.second.promised;
  CHECK(promised == 0);
  for (const PendingBlock& p : pending_) ++refs[static_cast<size_t>(p.block)];
  for (const Moving& m : blocks_.moves.moving()) {
    if (m.transfer.kind == Transfer::in) ++refs[static_cast<size_t>(m.transfer.to)];
  }
  for (int b = 1; b <= c.total; ++b) {
    auto i = static_cast<size_t>(b);
    CHECK(refs[i] == blocks_.pool.refs(b));
    if (refs[i] > 0) ++(owned[i] ? c.owned : c.pending);
  }
  return c;
}

}  // namespace sluice
