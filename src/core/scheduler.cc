// Requests in, plans out. What comes back is in scheduler_complete.cc.
#include "core/scheduler.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "base/str.h"

namespace sluice {

Result<void> apply_preset(std::string_view name, SchedulerConfig& c) {
  struct Preset {
    const char* name;
    Batching batching;
    Prefill prefill;
    Mix mix;
    Admission admission;
  };
  static constexpr Preset kPresets[] = {
      {"static", Batching::static_, Prefill::whole, Mix::separate, Admission::reserve_max},
      {"orca", Batching::continuous, Prefill::whole, Mix::mixed, Admission::reserve_max},
      {"vllm", Batching::continuous, Prefill::whole, Mix::separate, Admission::watermark},
      {"sarathi", Batching::continuous, Prefill::chunked, Mix::mixed, Admission::watermark},
  };
  for (const Preset& p : kPresets) {
    if (name != p.name) continue;
    c.batching = p.batching;
    c.prefill = p.prefill;
    c.mix = p.mix;
    c.admission = p.admission;
    return {};
  }
  return Error{400,
               strf("unknown preset %s: use static, orca, vllm or sarathi", quote(name).c_str())};
}

const char* finish_name(Finish finish) {
  switch (finish) {
    case Finish::none:
      return "none";
    case Finish::stop:
      return "stop";
    case Finish::length:
      return "length";
    case Finish::cancelled:
      return "cancelled";
    case Finish::deadline:
      return "deadline";
    case Finish::failed:
      return "failed";
  }
  return "?";
}

Scheduler::Scheduler(SchedulerConfig config, std::shared_ptr<const TokenText> text)
    : config_(config),
      text_(std::move(text)),
      pool_(config.num_blocks),
      index_(config.num_blocks, config.block_size) {
  CHECK(config_.budget > 0 && config_.max_seqs > 0 && config_.block_size > 0);
  // Every running decode must fit a step, or the last ones would starve.
  config_.max_seqs = std::min(config_.max_seqs, config_.budget);
  auto slots = static_cast<size_t>(config_.max_seqs);
  for (size_t s = slots; s > 0; --s) free_slots_.push_back(static_cast<Slot>(s - 1));
  running_.reserve(slots);
  draft_.reserve(slots);
  closing_.reserve(slots);
  pending_.reserve(static_cast<size_t>(config_.num_blocks));
  straddle_.resize(static_cast<size_t>(config_.block_size));
  full_.reserve(slots);
  flights_.reserve(4);
  spare_.reserve(4);
}

int Scheduler::max_step_tokens() const {
  return config_.prefill == Prefill::whole ? std::max(config_.budget, config_.max_len)
                                           : config_.budget;
}

Result<void> Scheduler::check(const Request& request, const SchedulerConfig& config) {
  auto prompt = static_cast<int64_t>(request.prompt->size());
  if (prompt == 0) return Error{400, "the prompt is empty: give at least one token"};
  if (request.max_new <= 0) return Error{400, "max_tokens must be at least 1"};
  if (request.n <= 0) return Error{400, "n must be at least 1"};
  if (prompt >= config.max_len) {
    return Error{400,
                 strf("the prompt has %lld tokens and the context holds %d: shorten the prompt "
                      "or raise the context length",
                      static_cast<long long>(prompt), config.max_len)};
  }
  int64_t positions = std::min<int64_t>(prompt + request.max_new, config.max_len);
  int64_t need = (positions + config.block_size - 1) / config.block_size;
  if (need > config.num_blocks) {
    return Error{400,
                 strf("the request may need %lld KV blocks and the pool has %d: lower max_tokens "
                      "or give the KV cache more memory",
                      static_cast<long long>(need), config.num_blocks)};
  }
  return {};
}

Result<void> Scheduler::add(Request request, Time now) {
  CHECK(request.prompt && request.sampling);
  if (auto ok = check(request, config_); !ok) return ok;
  request.max_new =
      std::min(request.max_new, config_.max_len - static_cast<int>(request.prompt->size()));
  if (static_cast<int>(waiting_.size()) + request.n > config_.max_queued) {
    return Error{429, strf("the queue is full (%d requests): try again later", config_.max_queued)};
  }
  if (group_of_.contains(request.id)) return Error{400, "a request with this id is already here"};

  if (config_.prefix_cache && request.block_hashes.empty()) {
    request.block_hashes = hash_blocks(*request.prompt, config_.block_size, request.tenant);
  }
  request.arrival = std::min(request.arrival, now);
  next_deadline_ = std::min(next_deadline_, request.deadline);

  uint32_t g = static_cast<uint32_t>(groups_.size());
  if (free_groups_.empty()) {
    groups_.emplace_back();
  } else {
    g = free_groups_.back();
    free_groups_.pop_back();
  }
  Group& group = groups_[g];
  group.request = std::make_shared<const Request>(std::move(request));
  const Request& r = *group.request;
  group.num_live = group.num_records = r.n;
  group.seqs.clear();
  group_of_[r.id] = g;
  ++groups_live_;
  for (int choice = 0; choice < r.n; ++choice) {
    Index i = static_cast<Index>(seqs_.size());
    if (free_seqs_.empty()) {
      seqs_.emplace_back();
    } else {
      i = free_seqs_.back();
      free_seqs_.pop_back();
    }
    groups_[g].seqs.push_back(i);
    Sequence& s = seqs_[i];
    uint32_t epoch = s.epoch + 1;
    s = Sequence{};
    s.epoch = epoch;
    s.id = {r.id, static_cast<uint16_t>(choice)};
    s.group = g;
    s.request = &r;
    s.num_prompt = static_cast<int>(r.prompt->size());
    s.max_new = r.max_new;
    s.min_tokens = r.sampling->min_tokens;
    s.output.reserve(static_cast<size_t>(r.max_new));
    s.blocks.reserve(
        static_cast<size_t>(blocks_for(static_cast<int>(r.prompt->size()) + r.max_new)));
    s.stop = StopMatcher(r.stop.strings);
    s.timing.arrival = r.arrival;
    s.fork_pending = choice == 0 && r.n > 1;
    s.phase = Phase::forking;
    if (choice == 0) enqueue(i);
  }
  return {};
}

bool Scheduler::before(Index a, Index b) const {
  const Sequence &x = seqs_[a], &y = seqs_[b];
  if (config_.order == Order::priority) {
    int px = request_of(x).priority, py = request_of(y).priority;
    if (px != py) return px < py;
  }
  return x.id < y.id;
}

void Scheduler::enqueue(Index i) {
  seqs_[i].phase = Phase::waiting;
  auto at = std::lower_bound(waiting_.begin(), waiting_.end(), i,
                             [&](Index a, Index b) { return before(b, a); });
  waiting_.insert(at, i);
}

Token Scheduler::token_at(const Sequence& s, int pos) const {
  int prompt = prompt_len(s);
  return pos < prompt ? (*request_of(s).prompt)[static_cast<size_t>(pos)]
                      : s.output[static_cast<size_t>(pos - prompt)];
}

int Scheduler::remaining(const Sequence& s) const {
  if (s.fork_pending) return prompt_len(s) - 1 - s.planned;
  int outputs = static_cast<int>(s.output.size()) + s.unknown;
  if (outputs >= s.max_new) return 0;  // all are sampled; the last needs no K and V
  return prompt_len(s) + outputs - s.planned;
}

bool Scheduler::wants_scores(const Sequence& s) const {
  return s.planned < prompt_len(s) && s.id.choice == 0 &&
         request_of(s).sampling->prompt_logprobs >= 0 && s.num_scored < prompt_len(s) - 1;
}

// ---- plan ----

void Scheduler::plan(Time now, StepPlan& out, Events& events) {
  out.clear();
  draft_.clear();
  expire(now, events);
  make_room();
  fork_ready(now, out);
  int budget = config_.budget;
  if (running_.empty()) forming_ = true;
  // A running sequence that waits for a block comes before new ones.
  bool may_admit = !hungry_ && (config_.batching == Batching::continuous || forming_);
  size_t num_running = running_.size();
  if (config_.mix == Mix::mixed) {
    plan_decodes(out, budget);
    plan_prefills(out, budget);
    if (may_admit) admit(now, out, budget);
  } else {
    plan_prefills(out, budget);
    if (may_admit) admit(now, out, budget);
    if (draft_.empty()) plan_decodes(out, budget);
  }
  // A static batch is complete when a step admits nobody.
  if (running_.size() <= num_running) forming_ = false;
  finish_plan(now, out);
}

void Scheduler::expire(Time now, Events& events) {
  if (now < next_deadline_) return;
  next_deadline_ = kNever;
  for (const Group& g : groups_) {
    if (g.num_live == 0) continue;
    if (g.request->deadline > now) {
      next_deadline_ = std::min(next_deadline_, g.request->deadline);
      continue;
    }
    RequestId id = g.request->id;
    for (size_t c = 0; c < g.seqs.size(); ++c) {
      Index i = g.seqs[c];
      if (seqs_[i].id.req == id && seqs_[i].phase != Phase::done && seqs_[i].phase != Phase::free) {
        finish(i, Finish::deadline, now, {}, events);
      }
    }
  }
}

void Scheduler::fork_ready(Time now, StepPlan& out) {
  for (size_t k = 0; k < running_.size(); ++k) {
    Index i = running_[k];
    if (seqs_[i].fork_pending && remaining(seqs_[i]) == 0) fork_choices(i, now, out);
  }
}

// The first choice has computed the prompt but for its last token. The others share its full blocks
// and copy the partial one; every choice then runs the last prompt token itself and samples.
void Scheduler::fork_choices(Index parent, Time now, StepPlan& out) {
  seqs_[parent].fork_pending = false;
  const Group& group = groups_[seqs_[parent].group];
  int shared = (prompt_len(seqs_[parent]) - 1) / config_.block_size;
  bool partial = (prompt_len(seqs_[parent]) - 1) % config_.block_size != 0;
  for (Index i : group.seqs) {
    Sequence& s = seqs_[i];
    if (s.phase != Phase::forking) continue;
    const Sequence& p = seqs_[parent];
    int reserve = blocks_for(prompt_len(s) + request_of(s).max_new);
    bool fits = can_start() && (config_.admission != Admission::reserve_max ||
                                reserved_ + reserve <= config_.num_blocks);
    BlockId own = fits ? take_block() : kNullBlock;
    if (own == kNullBlock) {
      enqueue(i);  // on its own then, from the prefix cache if that still has the prompt
      continue;
    }
    for (int b = 0; b < shared; ++b) {
      pool_.retain(p.blocks[static_cast<size_t>(b)]);
      s.blocks.push_back(p.blocks[static_cast<size_t>(b)]);
    }
    s.blocks.push_back(own);
    if (partial)
      out.transfers.push_back({Transfer::copy, p.blocks[static_cast<size_t>(shared)], own});
    s.planned = s.computed = prompt_len(s) - 1;
    s.num_registered = shared;
    if (config_.prefix_cache && shared > 0) {
      s.last_hash = request_of(s).block_hashes[static_cast<size_t>(shared - 1)];
    }
    if (config_.admission == Admission::reserve_max) reserved_ += s.reserved = reserve;
    start(i, now, out);
  }
}

void Scheduler::plan_decodes(StepPlan& out, int& budget) {
  hungry_ = false;
  for (size_t k = 0; k < running_.size() && budget > 0;) {
    Index i = running_[k];
    if (k + 8 < running_.size()) prefetch(running_[k + 8]);
    if (k + 4 < running_.size()) prefetch_output(running_[k + 4]);
    if (!decoding(seqs_[i]) || seqs_[i].planned_step == next_step_) {
      ++k;
      continue;
    }
    if (grow(i, out)) {
      emit_slice(i, 1, out);
      --budget;
    }
    // grow() may have preempted this one or later ones; earlier ones never move.
    if (k < running_.size() && running_[k] == i) ++k;
  }
}

void Scheduler::plan_prefills(StepPlan& out, int& budget) {
  for (size_t k = 0; k < running_.size() && budget > 0; ++k) {
    Sequence& s = seqs_[running_[k]];
    if (s.planned_step == next_step_) continue;
    int rest = remaining(s);
    if (rest <= 0 || decoding(s)) continue;
    bool whole = config_.prefill == Prefill::whole;
    if (whole && rest > budget && !draft_.empty()) continue;
    int count = whole ? rest : std::min(rest, budget);
    emit_slice(running_[k], count, out);
    budget -= count;
  }
}

bool Scheduler::can_start() const {
  return static_cast<int>(running_.size()) < config_.max_seqs && !free_slots_.empty();
}

void Scheduler::admit(Time now, StepPlan& out, int& budget) {
  while (budget > 0 && !waiting_.empty()) {
    Index i = waiting_.back();
    if (config_.prefill == Prefill::whole && !draft_.empty()) {
      // Without chunks a prompt that does not fit waits for a step of its own. (A prefix hit could
      // make it fit; it will be seen then.)
      if (known_len(seqs_[i]) > budget) return;
    }
    if (!can_start() || !claim_blocks(i)) return;
    waiting_.pop_back();
    start(i, now, out);
    if (seqs_[i].fork_pending && remaining(seqs_[i]) == 0) {
      fork_choices(i, now, out);
      plan_prefills(out, budget);
      continue;
    }
    int rest = remaining(seqs_[i]);
    int count = config_.prefill == Prefill::whole ? rest : std::min(rest, budget);
    emit_slice(i, count, out);
    budget -= count;
  }
}

// Under order=priority the next waiting sequence takes the place of running ones of lower priority.
void Scheduler::make_room() {
  while (config_.order == Order::priority && !waiting_.empty() && !running_.empty() &&
         pending_.empty()) {
    Index next = waiting_.back(), last = running_.back();
    if (request_of(seqs_[last]).priority <= request_of(seqs_[next]).priority) return;
    if (can_start() && pool_.available() >= blocks_for(known_len(seqs_[next])) + kept_free())
      return;
    preempt(last);
  }
}

int Scheduler::kept_free() const {
  if (config_.admission != Admission::watermark || running_.empty()) return 0;
  return static_cast<int>(std::ceil(config_.watermark * static_cast<float>(config_.num_blocks)));
}

// Blocks for all its known tokens, shared ones first. Takes nothing on failure.
bool Scheduler::claim_blocks(Index i) {
  // A failed attempt is repeated only when more blocks are there: matching a long prompt costs
  // time.
  if (blocked_ == i && !running_.empty() && pool_.available() <= blocked_available_) return false;
  Sequence& s = seqs_[i];
  int reserve = blocks_for(prompt_len(s) + request_of(s).max_new);
  if (config_.admission == Admission::reserve_max && reserved_ + reserve > config_.num_blocks) {
    return false;
  }
  match_prefix(s);
  int need = blocks_for(known_len(s)) - static_cast<int>(s.blocks.size());
  if (pool_.available() - need < kept_free()) {
    for (size_t b = s.blocks.size(); b > 0; --b) pool_.release(s.blocks[b - 1]);
    s.blocks.clear();
    s.planned = s.computed = s.num_registered = 0;
    blocked_ = i;
    blocked_available_ = pool_.available();
    return false;
  }
  blocked_ = kNone;
  for (; need > 0; --need) s.blocks.push_back(take_block());
  if (config_.admission == Admission::reserve_max) reserved_ += s.reserved = reserve;
  bool first = s.timing.num_steps == 0;
  if (first) {
    s.timing.num_cached = s.planned;
    prefix_queries_ += static_cast<uint64_t>(prompt_len(s));
    prefix_hits_ += static_cast<uint64_t>(s.planned);
  }
  return true;
}

void Scheduler::start(Index i, Time now, StepPlan& out) {
  Sequence& s = seqs_[i];
  for (RowOp& op : closing_) out.rows.push_back(std::move(op));
  closing_.clear();
  s.phase = Phase::running;
  s.slot = free_slots_.back();
  free_slots_.pop_back();
  if (s.timing.first_scheduled == Time{0}) s.timing.first_scheduled = now;
  running_.insert(std::upper_bound(running_.begin(), running_.end(), i,
                                   [&](Index a, Index b) { return before(a, b); }),
                  i);
  RowOp op;
  op.id = s.id;
  op.slot = s.slot;
  op.epoch = s.epoch;
  op.num_prompt = static_cast<uint32_t>(prompt_len(s));
  op.sampling = request_of(s).sampling;
  op.history_at = static_cast<uint32_t>(out.tokens.size());
  int from = op.sampling->repetition_penalty != 1 ? 0 : prompt_len(s);
  op.num_history = static_cast<uint32_t>(known_len(s) - from);
  op.num_history_prompt = static_cast<uint32_t>(prompt_len(s) - from);
  for (int p = from; p < known_len(s); ++p) out.tokens.push_back(token_at(s, p));
  out.rows.push_back(std::move(op));
  for (size_t b = 0; b < s.blocks.size(); ++b) {
    out.edits.push_back({s.slot, static_cast<uint32_t>(b), s.blocks[b]});
  }
}

void Scheduler::emit_slice(Index i, int count, StepPlan& out) {
  Sequence& s = seqs_[i];
  CHECK(s.phase == Phase::running && count > 0);
  Slice slice;
  slice.slot = s.slot;
  slice.epoch = s.epoch;
  slice.pos = s.planned;
  slice.count = count;
  slice.chained = s.unknown > 0;
  slice.token_at = static_cast<uint32_t>(out.tokens.size());
  bool last = !s.fork_pending && remaining(s) == count;
  bool score = wants_scores(s) && slice.pos < prompt_len(s) - 1;
  slice.want = last ? (score ? Want::all : Want::last) : (score ? Want::score : Want::none);
  if (!slice.chained) {
    int end = s.planned + count;
    if (score && end < prompt_len(s)) ++end;  // the successor of the last position
    for (int p = s.planned; p < end; ++p) out.tokens.push_back(token_at(s, p));
  }
  s.planned += count;
  if (last) ++s.unknown;
  s.planned_step = next_step_;
  ++s.timing.num_steps;
  out.num_tokens += count;
  draft_.push_back({slice, i});
}

void Scheduler::finish_plan(Time now, StepPlan& out) {
  for (RowOp& op : closing_) out.rows.push_back(std::move(op));
  closing_.clear();
  if (draft_.empty() && out.rows.empty()) return;
  out.step = next_step_++;
  InFlight flight;
  if (!spare_.empty()) {
    flight = std::move(spare_.back());
    spare_.pop_back();
  }
  flight.step = out.step;
  flight.scheduled = now;
  flight.items.clear();
  for (bool decode : {true, false}) {
    for (const Draft& d : draft_) {
      if ((d.slice.count == 1) != decode) continue;
      out.slices.push_back(d.slice);
      flight.items.push_back({d.seq, d.slice.epoch, d.slice.pos, d.slice.count, d.slice.want});
      ++seqs_[d.seq].in_flight;
    }
    if (decode) out.num_decode = static_cast<int32_t>(out.slices.size());
  }
  flights_.push_back(std::move(flight));
}

// A block for the next position of a decode. Without one, the last sequence in order of service is
// preempted; if that is this one, it goes back to the queue itself.
bool Scheduler::grow(Index i, StepPlan& out) {
  Sequence& s = seqs_[i];
  while (static_cast<int>(s.blocks.size()) * config_.block_size < s.planned + 1) {
    BlockId b = take_block();
    if (b != kNullBlock) {
      out.edits.push_back({s.slot, static_cast<uint32_t>(s.blocks.size()), b});
      s.blocks.push_back(b);
      continue;
    }
    // Blocks that a launched step still names are on their way: sit this step out.
    if (!pending_.empty()) {
      hungry_ = true;
      return false;
    }
    Index victim = last_unplanned();
    CHECK(victim != kNone);
    preempt(victim);
    if (victim == i) return false;
  }
  return true;
}

Scheduler::Index Scheduler::last_unplanned() const {
  for (size_t k = running_.size(); k > 0; --k) {
    if (seqs_[running_[k - 1]].planned_step != next_step_) return running_[k - 1];
  }
  return kNone;
}

void Scheduler::preempt(Index i) {
  Sequence& s = seqs_[i];
  leave_slot(i);
  release_blocks(s);
  s.planned = s.computed = s.unknown = s.num_registered = 0;
  ++s.timing.num_preemptions;
  ++num_preemptions_;
  enqueue(i);
}

BlockId Scheduler::take_block() {
  BlockId evicted;
  BlockId b = pool_.alloc(evicted);
  if (evicted != kNullBlock) index_.erase(evicted);
  return b;
}

// ---- prefix cache ----

std::span<const Token> Scheduler::block_tokens(const Sequence& s, int block) const {
  int begin = block * config_.block_size, prompt = prompt_len(s);
  auto size = static_cast<size_t>(config_.block_size);
  if (begin + config_.block_size <= prompt) {
    return std::span(*request_of(s).prompt).subspan(static_cast<size_t>(begin), size);
  }
  if (begin >= prompt)
    return std::span(s.output).subspan(static_cast<size_t>(begin - prompt), size);
  for (int k = 0; k < config_.block_size; ++k)
    straddle_[static_cast<size_t>(k)] = token_at(s, begin + k);
  return straddle_;
}

BlockHash Scheduler::block_hash(const Sequence& s, int block, BlockHash parent) const {
  const auto& hashes = request_of(s).block_hashes;
  if (static_cast<size_t>(block) < hashes.size()) return hashes[static_cast<size_t>(block)];
  if (block == 0) parent = root_hash(request_of(s).tenant);
  return chain_hash(parent, block_tokens(s, block));
}

// Takes the longest cached run of full blocks. At least one position is left to compute, for its
// logits; with log-probabilities wanted for the prompt, all are.
void Scheduler::match_prefix(Sequence& s) {
  s.blocks.clear();
  s.num_registered = 0;
  if (!config_.prefix_cache || wants_scores(s)) return;
  int limit = (known_len(s) - 1) / config_.block_size;
  TenantId tenant = request_of(s).tenant;
  BlockHash hash;
  for (int b = 0; b < limit; ++b) {
    hash = block_hash(s, b, hash);
    BlockId found = index_.find(hash, tenant, block_tokens(s, b));
    if (found == kNullBlock) break;
    pool_.retain(found);
    s.blocks.push_back(found);
    s.last_hash = hash;
  }
  s.num_registered = static_cast<int>(s.blocks.size());
  s.planned = s.computed = s.num_registered * config_.block_size;
}

}  // namespace sluice
