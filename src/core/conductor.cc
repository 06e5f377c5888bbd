#include "core/conductor.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace sluice {

namespace {

// Paces are sums of measured over sums of predicted seconds, so that long prompts count for more
// than the noise of short ones. What is older counts for less; and a worker that nobody asks
// drifts to the pace of all, or it would never be asked again.
constexpr double kPaceForget = 0.05, kPacePrior = 2;  // prior: requests at the pace of all
constexpr double kDecodeLearn = 0.02, kOutputLearn = 1.0 / 64;
constexpr double kPaceLeast = 0.02, kPaceMost = 50;
constexpr double kShortest = 1e-4;  // seconds: a prediction below says nothing of the pace
constexpr double kMovedForget = 0.05, kMovedPrior = 8192;  // prior: tokens at the assumed time
// A fetch that failed looks like a slow one, since the worker computes the prompt itself: no sample
// counts for more than this many times the estimate, or of this time per token where that is less.
constexpr double kMovedMost = 4, kMovedLeast = 1e-6;
// An estimate that is too high ends handing over, so that nothing corrects it: it drifts down to
// the assumed value by this part of the difference with each request that is not split.
constexpr double kMovedDrift = 0.001;
// A worker lends no longer than this many times the predicted transfer, and at least this long.
constexpr double kLentMost = 4, kLentLeast = 0.1;
constexpr int kTimedOutput = 8;         // tokens of an output that says something of decode steps
constexpr uint64_t kBalanceEvery = 64;  // requests

StepLoad less(const StepLoad& a, const StepLoad& b) {
  return {a.tokens - b.tokens, a.sampled - b.sampled, a.context - b.context,
          a.attended - b.attended};
}

// One decode step of a sequence with so many positions.
StepLoad decode_of(int64_t positions) { return {1, 1, positions, positions}; }

}  // namespace

Conductor::Conductor(RoutingConfig config, std::vector<ConductorWorker> workers, const HashKey& key)
    : config_(config),
      kv_(workers.size(), key),
      moved_seconds_(config.transfer * kMovedPrior),
      moved_tokens_(kMovedPrior),
      assumed_transfer_(config.transfer) {
  for (ConductorWorker& w : workers) workers_.emplace_back(std::move(w));
  views_.resize(workers_.size());
}

// What is being computed counts as there soon; what is being fetched does not: who comes meanwhile
// would compute it again.
Conductor::Has Conductor::has_block(int worker, uint64_t block) const {
  const auto i = static_cast<size_t>(worker);
  const bool known = kv_.known(i) && kv_.placed(block);
  if (known && kv_.cached(i, block)) return Has::now;
  const Cause* cause = at(worker).prefixes.find(block);
  if (!cause) return Has::no;
  if (cause->ticket < sent_.size()) {
    const Sent& s = sent_[cause->ticket];
    if (s.worker == worker && s.at == cause->at && !s.decodes)
      return s.lender >= 0 ? Has::no : Has::soon;
  }
  return known ? Has::no : Has::now;
}

// Of a block that a request needs. What the worker has, or computes for another request, stays
// that one's: whoever uses it does not make it come later.
Conductor::Cause Conductor::cause_of(int worker, uint64_t block, const Cause& request) const {
  const bool told = kv_.cached(static_cast<size_t>(worker), block);
  const Cause* old = at(worker).prefixes.find(block);
  return old && !told && has_block(worker, block) != Has::no ? *old : request;
}

void Conductor::prompt_ends(int worker, const Ask& ask, uint64_t kv_block) {
  const double share =
      static_cast<double>(ask.block_tokens) / static_cast<double>(std::max<int64_t>(1, ask.tokens));
  kv_.place(static_cast<size_t>(worker), {{ask.blocks.begin(), ask.blocks.end()}, share, kv_block});
}

void Conductor::count_cached(int worker, const Ask& ask, WorkerView& out) const {
  int64_t num = 0, there = 0;
  for (uint64_t block : ask.blocks) {
    const Has has = has_block(worker, block);
    if (has == Has::no) break;
    if (has == Has::now && there == num) ++there;
    ++num;
  }
  out.cached = std::min(num * ask.block_tokens, ask.tokens);
  out.lendable = std::min(there * ask.block_tokens, ask.tokens);
}

WorkerView Conductor::view(int worker, const Ask& ask, Time now) const {
  const Worker& w = at(worker);
  WorkerView v;
  v.alive = w.alive;
  v.draining = w.draining || w.role != w.next_role;
  v.role = w.role;
  v.fetches = w.config.fetches;
  v.lends = w.config.lends;
  v.lending = w.num_lending;
  v.queued = w.queued;
  v.decode = w.decode;
  if (!w.prompts.empty()) v.progress = std::max(0.0, seconds(now - w.front_since));
  if (w.config.kv_tokens > 0) v.free_tokens = w.config.kv_tokens - w.held;
  count_cached(worker, ask, v);
  v.pace = w.pace;
  v.decode_pace = decode_pace_;
  v.cost = &w.config.cost;
  v.budget = w.config.budget;
  // A prompt in front that takes longer than it should is not more than done.
  if (v.progress > 0) {
    const Sent& front = sent_[w.prompts.front()];
    WorkerView alone = v;
    alone.queued = {};
    alone.cached = front.tokens - front.prompt.tokens;
    const RoutingEstimate e =
        estimate_request({}, {.tokens = front.tokens}, std::span(&alone, 1), 0, -1);
    v.progress = std::min(v.progress, e.own);
  }
  return v;
}

// A plain answer says when it is whole how long its worker fetched: long after it did.
void Conductor::forget_lenders(Time now) {
  std::erase_if(lent_, [&](Ticket t) {
    Sent& s = sent_[t];
    if (s.lender >= 0 && now >= s.lent_until) end_lending(s);
    return s.lender < 0;
  });
}

RoutedRequest Conductor::fill_views(const Ask& ask, Time now) {
  forget_lenders(now);
  change_roles();
  bool others = false;  // that are not suspect
  bool any = false;     // that takes requests
  for (size_t i = 0; i < workers_.size(); ++i) {
    views_[i].alive = false;
    if (!workers_[i].alive) continue;
    views_[i] = view(static_cast<int>(i), ask, now);
    if (i < 64 && (ask.avoid >> i & 1) != 0) views_[i].alive = false;
    any = any || (views_[i].alive && !views_[i].draining);
    others = others || (views_[i].alive && !views_[i].draining && !workers_[i].suspect);
  }
  for (size_t i = 0; others && i < workers_.size(); ++i)
    if (workers_[i].suspect) views_[i].alive = false;
  // Nobody else is left: those whose role is about to change take requests in either.
  for (size_t i = 0; !any && i < workers_.size(); ++i) views_[i].draining = workers_[i].draining;
  RoutedRequest r;
  r.tokens = std::max<int64_t>(1, ask.tokens);
  r.output = output_;
  r.attempts = ask.attempts;
  r.whole = ask.whole;
  r.fetches = ask.fetches;
  r.draw = ask.draw;
  if (ask.session != 0) {
    if (const int* home = sessions_.find(ask.session)) r.home = *home;
  }
  return r;
}

RoutingChoice Conductor::choose(const Ask& ask, Time now) {
  const RoutedRequest r = fill_views(ask, now);
  return choose_worker(config_, r, views_, state_);
}

int Conductor::choose_decoder(const Ask& ask, Time now) {
  const RoutedRequest r = fill_views(ask, now);
  return sluice::choose_decoder(config_, r, views_);
}

Conductor::Ticket Conductor::sent(int worker, const Ask& ask, Time now) {
  Worker& w = at(worker);
  Sent s;
  s.worker = worker;
  s.tokens = std::max<int64_t>(1, ask.tokens);
  WorkerView v = view(worker, ask, now);
  v.pace = v.decode_pace = 1;
  const bool may_move = !ask.whole || ask.fetches;
  if (may_move && !ask.handed_over && ask.fetch_from < 0 && w.role != WorkerRole::prefill)
    forget_transfer();
  s.timed = !ask.again;  // its lease may be over
  s.held = s.tokens - std::min(v.cached, s.tokens);
  if (ask.handed_over) {
    s.fetched = s.tokens - std::min(v.cached, s.tokens);
    v.cached = s.tokens;
  } else if (ask.fetch_from >= 0) {
    s.fetched = ask.fetch_tokens;
    v.cached = std::min(v.cached + ask.fetch_tokens, s.tokens);
    s.lender = ask.fetch_from;
    s.fetch_wait = ask.fetch_wait;
    const double takes = config_.transfer * static_cast<double>(s.fetched);
    s.lent_until = now + Time(static_cast<int64_t>(std::max(kLentLeast, kLentMost * takes) * 1e9));
    ++at(s.lender).num_lending;
  }
  const int64_t from = std::clamp<int64_t>(v.cached, 0, s.tokens - 1);
  s.prompt = chunk_load(from, static_cast<int>(s.tokens - from));
  const RoutingEstimate e =
      estimate_request({}, {.tokens = s.tokens, .output = output_}, std::span(&v, 1), 0, -1);
  s.ttft = e.ttft();
  s.tpot = e.tpot;
  s.at = now;
  if (config_.balance && !ask.handed_over) learn_mix(v, s.tokens);
  w.queued += s.prompt;
  w.held += s.held;
  ++w.num_requests;
  // A session whose prompt was handed over stays with the worker that computed it.
  if (ask.session != 0 && !ask.handed_over) sessions_.put(ask.session, worker);
  Ticket ticket = 0;
  if (free_.empty()) {
    ticket = static_cast<Ticket>(sent_.size());
    sent_.push_back(s);
  } else {
    ticket = free_.back();
    free_.pop_back();
    sent_[ticket] = s;
  }
  // The first block of the prompt is the last to be dropped.
  if (s.lender >= 0) lent_.push_back(ticket);
  for (size_t i = ask.blocks.size(); i-- > 0;)
    w.prefixes.put(ask.blocks[i], cause_of(worker, ask.blocks[i], {ticket, now}));
  if (w.prompts.empty()) w.front_since = now;
  w.prompts.push_back(ticket);
  if (config_.balance && !ask.handed_over && ++num_sent_ % kBalanceEvery == 0) balance_roles();
  return ticket;
}

void Conductor::leave_queue(Worker& w, Ticket ticket, Time now) {
  auto it = std::find(w.prompts.begin(), w.prompts.end(), ticket);
  CHECK(it != w.prompts.end());
  if (it == w.prompts.begin()) w.front_since = now;
  w.prompts.erase(it);
  w.queued = less(w.queued, sent_[ticket].prompt);
}

void Conductor::first_token(Ticket ticket, Time now) {
  Sent& s = sent_[ticket];
  Worker& w = at(s.worker);
  leave_queue(w, ticket, now);
  end_lending(s);
  s.decodes = true;
  w.decode += decode_of(s.tokens);
  s.first = now;
  if (!s.timed) return;
  const double took = seconds(now - s.at);
  const bool told = s.moved >= 0;
  if (s.fetched > 0 && !told)
    return learn_transfer(took - s.ttft * w.pace - s.fetch_wait, s.fetched);
  if (s.ttft >= kShortest && s.fetched == 0) learn_pace(w, took, s.ttft);
}

void Conductor::end_lending(Sent& s) {
  if (s.lender >= 0) --at(std::exchange(s.lender, -1)).num_lending;
}

void Conductor::fetched(Ticket ticket, double share, double seconds) {
  Sent& s = sent_[ticket];
  CHECK(s.worker >= 0);
  if (s.fetched == 0 || s.moved >= 0) return;
  end_lending(s);
  s.moved = seconds;
  const auto tokens = static_cast<int64_t>(share * static_cast<double>(s.tokens));
  if (tokens > 0) learn_transfer(seconds - s.fetch_wait, tokens);
}

void Conductor::learn_transfer(double seconds, int64_t tokens) {
  const double keep = 1 - kMovedForget, num = static_cast<double>(tokens);
  const double most =
      kMovedMost * num * std::max({config_.transfer, assumed_transfer_, kMovedLeast});
  moved_seconds_ = moved_seconds_ * keep + std::clamp(seconds, 0.0, most);
  moved_tokens_ = moved_tokens_ * keep + num;
  config_.transfer = moved_seconds_ / moved_tokens_;
}

void Conductor::forget_transfer() {
  if (config_.transfer <= assumed_transfer_) return;
  moved_seconds_ += (assumed_transfer_ * moved_tokens_ - moved_seconds_) * kMovedDrift;
  config_.transfer = moved_seconds_ / moved_tokens_;
}

void Conductor::learn_pace(Worker& w, double measured, double predicted) {
  measured = std::clamp(measured, predicted * kPaceLeast, predicted * kPaceMost);
  w.measured += measured;
  w.predicted += predicted;
  const auto num_alive = std::ranges::count(workers_, true, &Worker::alive);
  const double keep = 1 - kPaceForget / static_cast<double>(std::max<int64_t>(1, num_alive));
  num_timed_ = num_timed_ * keep + 1;
  for (Worker& o : workers_) {
    o.measured *= keep;
    o.predicted *= keep;
  }
  update_paces();
}

void Conductor::update_paces() {
  double all_measured = 0, all_predicted = 0;
  for (const Worker& o : workers_) {
    all_measured += o.measured;
    all_predicted += o.predicted;
  }
  if (all_predicted <= 0) return;  // nobody knows better than before
  const double prior = kPacePrior * all_predicted / num_timed_;
  const double pace = all_measured / all_predicted;
  for (Worker& o : workers_) o.pace = (o.measured + prior * pace) / (o.predicted + prior);
}

void Conductor::tokens(Ticket ticket, int num, Time now) {
  Sent& s = sent_[ticket];
  CHECK(s.worker >= 0);
  if (!s.decodes) first_token(ticket, now);
  s.output += num;
  s.held += num;
  Worker& w = at(s.worker);
  w.held += num;
  w.decode.context += num;
  w.decode.attended += num;
}

void Conductor::ended(Ticket ticket, bool whole, Time now) {
  Sent& s = sent_[ticket];
  CHECK(s.worker >= 0);
  Worker& w = at(s.worker);
  if (s.decodes) {
    w.decode = less(w.decode, decode_of(s.tokens + s.output));
  } else {
    leave_queue(w, ticket, now);
  }
  if (whole && s.output >= kTimedOutput && s.tpot >= kShortest) {
    const double tpot = seconds(now - s.first) / (s.output - 1);
    const double ratio = std::clamp(tpot / s.tpot, kPaceLeast, kPaceMost);
    decode_pace_ += (ratio - decode_pace_) * kDecodeLearn;
  }
  if (whole && s.output > 0) output_ += (s.output - output_) * kOutputLearn;
  end_lending(s);
  w.held -= s.held;
  --w.num_requests;
  s.worker = -1;
  free_.push_back(ticket);
}

void Conductor::set_alive(int worker, bool alive) {
  Worker& w = at(worker);
  if (w.alive && !alive) {
    w.prefixes.clear();
    kv_.set_known(static_cast<size_t>(worker), false);
    w.measured = w.predicted = 0;
    update_paces();
    give_role(w, w.config.role);
  }
  w.alive = alive;
}

void Conductor::set_draining(int worker, bool draining) { at(worker).draining = draining; }

}  // namespace sluice
