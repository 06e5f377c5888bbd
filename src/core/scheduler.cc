// Requests in, plans out. Who is served first is in scheduler_order.cc, what must be free before it
// starts in scheduler_admission.cc, who holds which blocks in scheduler_blocks.cc, what comes back
// in scheduler_complete.cc.
#include "core/scheduler.h"

#include <algorithm>

#include "base/check.h"
#include "base/str.h"
#include "core/policy.h"

namespace sluice {

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
    case Finish::constraint:
      return "constraint";
  }
  return "?";
}

namespace {

// A range holds every position of every group.
std::vector<int> kept_windows(const SchedulerConfig& c) {
  return c.contiguous() ? std::vector<int>(c.group_windows.size(), 0) : c.group_windows;
}

}  // namespace

Scheduler::Scheduler(SchedulerConfig config, std::shared_ptr<const TokenText> text)
    : config_(std::move(config)),
      text_(std::move(text)),
      layout_(config_.block_size, kept_windows(config_)),
      whole_(config_.block_size, std::vector<int>(config_.group_windows.size(), 0)),
      blocks_(config_.contiguous() ? 0 : config_.num_blocks, config_.block_size, config_.tiers),
      ranges_(config_.ranged() ? config_.num_blocks : 0),
      pages_(config_.mapped() ? std::min(config_.max_seqs, config_.budget) : 0,
             config_.mapped() ? config_.num_pages() : 0),
      predictor_(config_.predictor),
      slo_(config_.slo) {
  CHECK(check_allocator(config_).has_value());
  CHECK(config_.budget > 0 && config_.max_seqs > 0 && config_.block_size > 0);
  CHECK(layout_.num_groups > 0 && layout_.num_groups <= kMaxCacheGroups);
  // Every running decode must fit a step, or the last ones would starve.
  config_.max_seqs = std::min(config_.max_seqs, config_.budget);
  auto slots = static_cast<size_t>(config_.max_seqs);
  for (size_t s = slots; s > 0; --s) free_slots_.push_back(static_cast<Slot>(s - 1));
  running_.reserve(slots);
  draft_.reserve(slots);
  closing_.reserve(slots);
  pending_.reserve(static_cast<size_t>(blocks_.pool.total()));
  pending_ranges_.reserve(config_.ranged() ? slots : 0);
  pending_slots_.reserve(config_.mapped() ? slots : 0);
  if (config_.mapped() && config_.pages.slot_blocks == 0)
    config_.pages.slot_blocks = config_.pages.whole_pages(blocks_for(config_.max_len));
  straddle_.resize(static_cast<size_t>(config_.block_size));
  full_.reserve(slots);
  if (config_.admission == Admission::predicted_peak)
    growths_.reserve(slots + 2), forecast_.reserve(slots + 2);
  CHECK(config_.pipeline.valid());
  CHECK(config_.pipeline.max_in_flight() <= UINT8_MAX);  // Sequence::in_flight
  auto flights = static_cast<size_t>(config_.pipeline.max_in_flight());
  flights_.reserve(flights);
  spare_.reserve(flights);
}

int Scheduler::max_step_tokens() const {
  return config_.prefill == Prefill::whole ? std::max(config_.budget, config_.max_len)
                                           : config_.budget;
}

Result<void> Scheduler::check(const Request& request, const SchedulerConfig& config) {
  auto prompt = static_cast<int64_t>(request.prompt->size());
  if (prompt == 0) return Error{400, "the prompt is empty: give at least one token"};
  bool pooled = request.pooling != Pooling::none;
  if (pooled) {
    CHECK(request.max_new == 0 && request.n == 1);
  } else if (request.max_new <= 0) {
    return Error{400, "max_tokens must be at least 1"};
  }
  if (request.n <= 0) return Error{400, "n must be at least 1"};
  if (auto ok = check_beams(request, config); !ok) return ok;
  if (request.n > 1 && config.contiguous()) {
    return Error{400, strf("n must be 1: with --kv-allocator %s choices cannot share their "
                           "prompt's blocks; send as many requests, or use --kv-allocator paged",
                           name_of(kAllocators, config.allocator))};
  }
  if (prompt > config.max_len - (pooled ? 0 : 1)) {
    return Error{400,
                 strf("the prompt has %lld tokens and the context holds %d: shorten the prompt "
                      "or raise the context length",
                      static_cast<long long>(prompt), config.max_len)};
  }
  if (request.sampling && request.sampling->logprob_ids.size() > config.sampling.logprob_ids) {
    return Error{400,
                 "logprob_token_ids: this device scores only the most likely tokens: leave it out "
                 "and ask for more logprobs, or run with --device cpu"};
  }
  if (request.sampling && !fits(*request.sampling, config.sampling)) {
    return Error{
        400,
        "too much for this device to sample by: shorten logit_bias, bad_words, the stop ids "
        "under min_tokens, or ask for fewer logprobs"};
  }
  int64_t positions = std::min<int64_t>(prompt + request.max_new, config.max_len);
  if (config.allocator == KvAllocator::reserve) positions = config.max_len;
  int64_t need = request.beams ? beam_blocks(request, config) : most_blocks(positions, config);
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
  if (choices_of_.contains(request.id)) return Error{400, "a request with this id is already here"};

  std::shared_ptr<const SamplingSpec> asked = request.sampling;
  if (request.beams) request.sampling = beam_sampling(request);
  if (config_.prefix_cache && (request.block_hashes.empty() || hash_map_)) {
    request.block_hashes =
        hash_blocks(*request.prompt, config_.block_size, request.tenant, hash_map_.get());
  }
  request.arrival = std::min(request.arrival, now);
  reserve_records(static_cast<size_t>(request.n));
  if (config_.order == Order::fair) accounts_.reserve();
  auto shared = std::make_shared<const Request>(std::move(request));
  const Request& r = *shared;
  auto entry = choices_of_.emplace(r.id, 0).first;
  // From here on only the sequences' own memory can fail, and withdraw() undoes that.
  next_deadline_ = std::min(next_deadline_, r.deadline);

  uint32_t c = static_cast<uint32_t>(choices_.size());
  if (free_choices_.empty()) {
    choices_.emplace_back();
  } else {
    c = free_choices_.back();
    free_choices_.pop_back();
  }
  Choices& choices = choices_[c];
  choices.request = std::move(shared);
  choices.num_live = choices.num_records = r.n;
  choices.num_exported = 0;
  choices.seqs.clear();
  if (config_.order == Order::fair) choices.account = accounts_.join(r.account);
  entry->second = c;
  ++requests_live_;
  num_constrained_ += r.masked();
  try {
    choices.seqs.reserve(static_cast<size_t>(r.n));
    if (r.beams) beams_[c].search = BeamSearch(r.n, *r.beams, r.max_new, r.stop.tokens);
    for (int choice = 0; choice < r.n; ++choice) add_sequence(c, choice);
  } catch (...) {
    withdraw(c);
    throw;
  }
  if (listener_.to) listener_.to->added(*this, r, *asked, now);
  return {};
}

// Room for the records of one more request, wherever they may be listed until they are recycled.
void Scheduler::reserve_records(size_t num_sequences) {
  auto grow = [](auto& list, size_t more) {
    if (list.capacity() - list.size() < more)
      list.reserve(std::max(2 * list.capacity(), list.size() + more));
  };
  grow(choices_, 1);
  free_choices_.reserve(choices_.capacity());
  grow(seqs_, num_sequences);
  standings_.reserve(seqs_.capacity());
  free_seqs_.reserve(seqs_.capacity());
  if (config_.ranged()) claims_.reserve(seqs_.capacity());
  if (config_.tiers.total() > 0) away_.reserve(seqs_.capacity());
  waiting_.reserve(seqs_.capacity());
}

void Scheduler::add_sequence(uint32_t c, int choice) {
  const Request& r = *choices_[c].request;
  Index i = static_cast<Index>(seqs_.size());
  if (free_seqs_.empty()) {
    seqs_.emplace_back();
    standings_.emplace_back();
  } else {
    i = free_seqs_.back();
    free_seqs_.pop_back();
  }
  choices_[c].seqs.push_back(i);
  Sequence& s = seqs_[i];
  uint32_t epoch = s.epoch + 1;
  s = Sequence{};
  s.epoch = epoch;
  s.id = {r.id, static_cast<uint16_t>(choice)};
  s.choices = c;
  s.request = &r;
  s.num_prompt = static_cast<int>(r.prompt->size());
  s.max_new = r.max_new;
  s.pooling = r.pooling;
  s.constrained = r.masked();
  s.min_tokens = r.sampling->min_tokens;
  s.predicted_output = predictor_.predict(r, 0);
  if (config_.ranged()) {
    claims_.resize(seqs_.size());
    claims_[i] = {{}, s.predicted_output};
  }
  if (config_.tiers.total() > 0) {
    away_.resize(seqs_.size());
    away_[i] = {};
  }
  standings_[i] = {0, choices_[c].account, 0};
  standings_[i].rank = waiting_rank(i);
  s.output.reserve(static_cast<size_t>(r.max_new));
  s.table.reserve(layout_, blocks_for(s.num_prompt + r.max_new));
  s.stop = StopMatcher(r.stop.strings);
  s.timing.arrival = r.arrival;
  s.beam = r.beams.has_value();
  if (s.beam) s.predicted_output = s.max_new;  // what is set aside for it
  s.fork_pending = choice == 0 && r.n > 1 && !s.beam;
  s.phase = Phase::forking;
  if (choice == 0) enqueue(i);
}

// Takes back a request whose sequences were not all added.
void Scheduler::withdraw(uint32_t c) noexcept {
  Choices& choices = choices_[c];
  if (config_.order == Order::fair) accounts_.leave(choices.account);
  for (Index i : choices.seqs) {
    if (seqs_[i].phase == Phase::waiting) dequeue(i);
    seqs_[i].phase = Phase::free;
    seqs_[i].request = nullptr;
    free_seqs_.push_back(i);
  }
  beams_.erase(c);
  choices_of_.erase(choices.request->id);
  num_constrained_ -= choices.request->masked();
  choices.seqs.clear();
  choices.num_live = choices.num_records = 0;
  choices.request.reset();
  free_choices_.push_back(c);
  --requests_live_;
}

Token Scheduler::token_at(const Sequence& s, int pos) const {
  int prompt = prompt_len(s);
  return pos < prompt ? (*request_of(s).prompt)[static_cast<size_t>(pos)]
                      : s.output[static_cast<size_t>(pos - prompt)];
}

void Scheduler::append_tokens(const Sequence& s,
                              int begin,
                              int end,
                              std::vector<Token>& out) const {
  int prompt = prompt_len(s);
  auto copy = [&](const std::vector<Token>& from, int first, int last) {
    if (first < last) out.insert(out.end(), from.begin() + first, from.begin() + last);
  };
  copy(*request_of(s).prompt, begin, std::min(end, prompt));
  copy(s.output, std::max(begin - prompt, 0), end - prompt);
}

int Scheduler::remaining(const Sequence& s) const {
  if (s.fetching || s.parked || must_wait(s)) return 0;
  if (s.fork_pending) return prompt_len(s) - 1 - s.planned;
  if (s.pooling != Pooling::none) return prompt_len(s) - s.planned;
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
  num_masks_ = 0;
  expire(now, events);
  if (now >= next_aging_) promote_aged(now);
  slide_windows(out);
  preempt_for_priority();
  fork_ready(now, out);
  if (!beams_.empty()) fork_beams(now, out);
  int budget = config_.budget;
  if (running_.empty()) forming_ = true;
  // A running sequence that waits for a block comes before new ones.
  bool may_admit = !decode_blocked_ && !prefill_blocked_ &&
                   (config_.batching == Batching::continuous || forming_);
  if (config_.prefill_delay > 0 && !may_join()) may_admit = false;
  if (config_.fill_wait > Time{0} && wait_to_fill(now)) may_admit = false;
  prompts_left_ = config_.prefill_batch > 0 ? config_.prefill_batch : INT32_MAX;
  prefill_blocked_ = false;
  size_t num_running = running_.size();
  if (config_.mix == Mix::mixed) {
    plan_decodes(out, budget);
    budget = prompt_budget(static_cast<int>(draft_.size()), budget);
    if (config_.slo.any()) budget = slo_tokens(now, budget);
    plan_prompts(now, may_admit, out, budget);
  } else if (config_.mix == Mix::decode_first) {
    plan_decodes(out, budget);
    if (draft_.empty()) plan_prompts(now, may_admit, out, budget);
  } else {
    plan_prompts(now, may_admit, out, budget);
    if (draft_.empty()) plan_decodes(out, budget);
  }
  if (waiting_.empty() || static_cast<int>(running_.size()) + held_slots_ == config_.max_seqs)
    joining_ = false;
  // A static batch is complete when a step admits nobody.
  if (running_.size() <= num_running) forming_ = false;
  finish_plan(now, out);
  if (listener_.to) listener_.to->planned(*this, out, now);
}

void Scheduler::expire(Time now, Events& events) {
  if (now < next_deadline_) return;
  next_deadline_ = kNever;
  for (uint32_t c = 0; c < choices_.size(); ++c) {
    if (choices_[c].num_live == 0) continue;
    Time deadline = choices_[c].request->deadline;
    if (deadline > now) {
      next_deadline_ = std::min(next_deadline_, deadline);
    } else {
      finish_choices(c, Finish::deadline, now, events);
    }
  }
}

void Scheduler::fork_ready(Time now, StepPlan& out) {
  for (size_t k = 0; k < running_.size(); ++k) {
    Index i = running_[k];
    const Sequence& s = seqs_[i];
    if (s.fork_pending && !s.fetching && remaining(s) == 0 && !must_wait(s))
      fork_choices(i, now, out);
  }
}

// The first choice has computed the prompt but for its last token. The others share its full blocks
// and copy the partial ones; every choice then runs the last prompt token itself and samples.
void Scheduler::fork_choices(Index parent, Time now, StepPlan& out) {
  seqs_[parent].fork_pending = false;
  for (Index i : choices_[seqs_[parent].choices].seqs) {
    Sequence& s = seqs_[i];
    if (s.phase != Phase::forking) continue;
    if (can_start() && share_blocks(s, seqs_[parent])) {
      start(i, now, out);
    } else {
      enqueue(i);  // on its own then, from the prefix cache if that still has the prompt
    }
  }
}

void Scheduler::plan_decodes(StepPlan& out, int& budget) {
  decode_blocked_ = false;
  for (size_t k = 0; k < running_.size() && budget > 0;) {
    Index i = running_[k];
    if (k + 8 < running_.size()) prefetch(running_[k + 8]);
    if (k + 4 < running_.size()) prefetch_output(running_[k + 4]);
    if (!decoding(seqs_[i]) || seqs_[i].planned_step == next_step_) {
      ++k;
      continue;
    }
    if (grow(i, out)) {
      // Everybody behind it keeps a token of the budget.
      int spare = budget - static_cast<int>(running_.size() - k) + 1;
      int count = seqs_[i].forced ? decode_count(i, std::max(spare, 1), out) : 1;
      emit_slice(i, count, out);
      budget -= count;
    }
    // grow() may have preempted this one or later ones; earlier ones never move.
    if (k < running_.size() && running_[k] == i) ++k;
  }
}

// Prompt tokens beside so many decodes. mixed_budget bounds the rows of the step, hence the time
// until everybody's next token; prompts keep a quarter of it, or many decodes would starve them.
int Scheduler::prompt_budget(int num_decodes, int budget) const {
  if (num_decodes == 0 || config_.prefill != Prefill::chunked) return budget;
  if (config_.chunk > 0) budget = std::min(budget, config_.chunk);
  if (config_.mixed_budget > 0) {
    int share = std::max(config_.mixed_budget - num_decodes, (config_.mixed_budget + 3) / 4);
    budget = std::min(budget, share);
  }
  return budget;
}

void Scheduler::plan_prompts(Time now, bool may_admit, StepPlan& out, int& budget) {
  // A step in which every running sequence decodes, the usual one, skips the walks over prompts.
  bool some = draft_.size() < running_.size();
  if (config_.short_share > 0 && config_.prefill == Prefill::chunked && (some || may_admit))
    plan_short_prompts(now, may_admit, out, budget);
  if (draft_.size() < running_.size()) plan_prefills(out, budget);
  if (may_admit && !prefill_blocked_) admit(now, out, budget);
}

void Scheduler::plan_prefills(StepPlan& out, int& budget) {
  for (size_t k = 0; k < running_.size() && budget > 0 && prompts_left_ > 0; ++k) {
    Index i = running_[k];
    if (!prefilling(seqs_[i])) continue;
    if (config_.prefill == Prefill::whole && remaining(seqs_[i]) > budget && !draft_.empty())
      continue;
    run_prompt(i, out, budget);
  }
}

void Scheduler::run_prompt(Index i, StepPlan& out, int& budget) {
  Sequence& s = seqs_[i];
  int rest = remaining(s);
  if (slides(s)) {
    if (!feed(i, out)) return;
    rest = std::min(rest, s.table.ready() * config_.block_size - s.planned);
  }
  emit_prompt(i, rest, out, budget);
}

// Up to `rest` tokens of a prompt, as far as the budget goes.
void Scheduler::emit_prompt(Index i, int rest, StepPlan& out, int& budget) {
  int count = config_.prefill == Prefill::whole ? rest : std::min(rest, budget);
  fill(i, seqs_[i].planned + count, out);
  emit_slice(i, count, out);
  budget -= count;
  --prompts_left_;
}

bool Scheduler::can_start(int num) const {
  return static_cast<int>(running_.size()) + held_slots_ + num <= config_.max_seqs &&
         !free_slots_.empty();
}

void Scheduler::admit(Time now, StepPlan& out, int& budget) {
  while (budget > 0 && prompts_left_ > 0 && !waiting_.empty()) {
    Index i = waiting_[next_waiting()];
    if (config_.prefill == Prefill::whole && !draft_.empty()) {
      // Without chunks a prompt that does not fit waits for a step of its own. (A prefix hit could
      // make it fit; it will be seen then.)
      if (known_len(seqs_[i]) > budget) return;
    }
    if (!admit_one(i, now, out, budget)) return;
    if (prefilling(seqs_[i])) plan_prefills(out, budget);  // forked: each choice runs a token
  }
}

// Starts a waiting sequence with up to `budget` tokens; one whose choices fork at once, or whose
// blocks come in, gets none yet. False: it has to wait.
bool Scheduler::admit_one(Index i, Time now, StepPlan& out, int& budget) {
  if (!can_start(num_slots(seqs_[i])) || must_wait(seqs_[i]) || !claim_blocks(i)) return false;
  dequeue(i);
  start(i, now, out);
  if (seqs_[i].fetching) return true;
  if (seqs_[i].fork_pending && remaining(seqs_[i]) == 0) {
    fork_choices(i, now, out);
    return true;
  }
  emit_prompt(i, remaining(seqs_[i]), out, budget);
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
  rank_running(i);
  running_.insert(std::upper_bound(running_.begin(), running_.end(), i,
                                   [&](Index a, Index b) { return before(a, b); }),
                  i);
  RowOp op;
  op.id = s.id;
  op.slot = s.slot;
  op.epoch = s.epoch;
  op.num_prompt = static_cast<uint32_t>(prompt_len(s));
  op.pooling = s.pooling;
  op.sampling = static_cast<uint32_t>(out.sampling.size());
  out.sampling.push_back(*request_of(s).sampling);
  op.history_at = static_cast<uint32_t>(out.tokens.size());
  int from = request_of(s).sampling->repetition_penalty != 1 ? 0 : prompt_len(s);
  op.num_history = static_cast<uint32_t>(known_len(s) - from);
  op.num_history_prompt = static_cast<uint32_t>(prompt_len(s) - from);
  append_tokens(s, from, known_len(s), out.tokens);
  out.rows.push_back(std::move(op));
  // (Where memory is mapped, executors know a slot's blocks without a table.)
  for (int index = 0; index < s.table.ready() && !config_.mapped(); ++index) {
    for (int g = 0; g < layout_.num_groups; ++g) {
      out.edits.push_back({s.slot, static_cast<uint32_t>(index), s.table.at(layout_, index, g),
                           static_cast<uint8_t>(g)});
    }
  }
}

// Of the next `count` positions.
Want Scheduler::wanted(const Sequence& s, int count) const {
  bool last = !s.fork_pending && remaining(s) == count;
  if (s.pooling != Pooling::none)
    return last ? Want::pool : s.pooling == Pooling::mean ? Want::add : Want::none;
  bool score = wants_scores(s) && s.planned < prompt_len(s) - 1;
  return last ? (score ? Want::all : Want::last) : (score ? Want::score : Want::none);
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
  slice.want = wanted(s, count);
  if (s.constrained && samples(slice.want)) slice.mask = num_masks_++;
  if (!slice.chained) {
    int end = s.planned + count;
    if (scores(slice.want) && end < prompt_len(s)) ++end;  // the successor of the last position
    if (end - s.planned == 1) {
      out.tokens.push_back(token_at(s, s.planned));
    } else {
      append_tokens(s, s.planned, end, out.tokens);
    }
  }
  s.planned += count;
  if (samples(slice.want)) ++s.unknown;
  s.planned_step = next_step_;
  ++s.timing.num_steps;
  out.num_tokens += count;
  draft_.push_back({slice, i});
}

void Scheduler::finish_plan(Time now, StepPlan& out) {
  for (RowOp& op : closing_) out.rows.push_back(std::move(op));
  closing_.clear();
  if (sender_.to) send_leased();
  out.transfers.swap(blocks_.moves.planned());
  if (config_.tiers.disk > 0) add_keys(out);
  if (draft_.empty() && out.empty()) {
    if (!flights_.empty() || blocks_.moves.moving().empty()) return;
    out.awaits = true;
  }
  pages_.take_ops(out.pages);
  charge_accounts();
  out.step = next_step_++;
  InFlight flight;
  if (!spare_.empty()) {
    flight = std::move(spare_.back());
    spare_.pop_back();
    flight.lost = false;
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
  if (config_.slo.any()) flight.slo = slo_.plan(step_load(out), out.num_decode);
  flights_.push_back(std::move(flight));
}

Scheduler::Index Scheduler::last_unplanned() const {
  for (size_t k = running_.size(); k > 0; --k) {
    const Sequence& s = seqs_[running_[k - 1]];
    if (s.planned_step != next_step_ && !s.beam) return running_[k - 1];
  }
  return kNone;
}

Scheduler::Index Scheduler::last_preemptible() const {
  for (size_t k = running_.size(); k > 0; --k) {
    if (!seqs_[running_[k - 1]].beam) return running_[k - 1];
  }
  return kNone;
}

void Scheduler::preempt(Index i) {
  Sequence& s = seqs_[i];
  swap_out(i);
  leave_slot(i);
  release_blocks(i);
  s.reset_progress();
  ++s.timing.num_preemptions;
  ++num_preemptions_;
  enqueue(i);
}

}  // namespace sluice
