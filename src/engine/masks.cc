#include "engine/masks.h"

#include <pthread.h>

#include <algorithm>
#include <bit>

#include "base/check.h"
#include "base/failure.h"
#include "base/log.h"
#include "base/thread_pool.h"

namespace sluice {

namespace {

// Filling takes a small part of a core beside a forward pass on all of them.
int default_threads() { return std::clamp(static_cast<int>(usable_cores().size()) / 4, 1, 8); }

constexpr size_t kMaxForced = 32;  // tokens appended at once

bool one_bit(std::span<const uint32_t> mask) {
  int num = 0;
  for (size_t i = 0; i < mask.size() && num < 2; ++i) num += std::popcount(mask[i]);
  return num == 1;
}

// Executors see no forced tokens: whatever looks back on the output must not sample differently.
bool can_force(const SamplingSpec& s) {
  return s.repetition_penalty == 1 && s.frequency_penalty == 0 && s.presence_penalty == 0 &&
         s.min_tokens == 0 && s.num_logprobs < 0 && s.allowed.empty() && s.bad_sequences.empty();
}

void add_missing(std::vector<Token>& to, std::span<const Token> tokens) {
  for (Token t : tokens) {
    if (std::ranges::find(to, t) == to.end()) to.push_back(t);
  }
}

}  // namespace

void add_end_tokens(Request& request) {
  if (!request.constraint) return;
  std::span<const Token> ends = request.constraint->trie().ends();
  add_missing(request.stop.tokens, ends);
  if (request.sampling->min_tokens == 0) return;
  auto spec = std::make_shared<SamplingSpec>(*request.sampling);
  add_missing(spec->banned_until_min, ends);
  request.sampling = std::move(spec);
}

Masks::Masks(Executor& executor, bool forced, int num_threads)
    : executor_(executor), forced_(forced), num_threads_(num_threads) {}

Masks::~Masks() {
  abandon();
  for (auto& w : workers_) {
    w->stop.store(true);
    w->inbox.wake();
  }
  for (auto& w : workers_) w->thread.join();
}

// Throws with the workers that it could start; without any there is nobody to fill masks.
void Masks::start_workers() {
  if (num_threads_ <= 0) num_threads_ = default_threads();
  while (workers_.size() < static_cast<size_t>(num_threads_)) {
    auto w = std::make_unique<Worker>();
    workers_.reserve(workers_.size() + 1);
    w->thread = std::thread([this, worker = w.get()] { worker_main(*worker); });
    workers_.push_back(std::move(w));
  }
}

// ---- the loop's thread ----

void Masks::plan(const StepPlan& plan, const Scheduler& scheduler) {
  planned_.clear();
  for (const RowOp& op : plan.rows) {
    if (op.kind == RowOp::open) {
      open(op, scheduler);
    } else if (auto at = choices_.find(op.id); at != choices_.end()) {
      void_pending(at->second);  // preempted: what its steps in flight sample is dropped
    }
  }
  FlightRef flight;
  for (const Slice& s : plan.slices) {
    if (s.mask == kNoMask) continue;
    if (!flight) {
      flight = std::make_shared<Flight>(plan.step);
      flights_.push_back(flight);
    }
    add_slice(s, flight);
  }
}

void Masks::open(const RowOp& op, const Scheduler& scheduler) {
  const Request* request = scheduler.find(op.id.req);
  if (!request || !request->masked()) return;
  start_workers();
  if (slots_.size() <= op.slot) slots_.resize(op.slot + 1);
  slots_[op.slot] = op.id;
  Choice& choice = choices_[op.id];
  if (choice.follower) return;  // it was preempted
  choice.num_prompt = static_cast<int>(op.num_prompt);
  choice.worker = next_worker_++ % workers_.size();
  auto follower = std::make_shared<Follower>();
  follower->request = op.id.req;
  follower->constraint = request->constraint;
  follower->thinking = request->thinking;
  follower->forces = forced_ && can_force(*request->sampling);
  choice.follower = std::move(follower);
}

void Masks::add_slice(const Slice& s, const FlightRef& flight) {
  CHECK(s.slot < slots_.size());
  auto at = choices_.find(slots_[s.slot]);
  CHECK(at != choices_.end());
  auto row = static_cast<size_t>(s.mask);
  StepMasks& masks = flight->masks;
  if (masks.rows.size() <= row) masks.rows.resize(row + 1), flight->forced.resize(row + 1);
  at->second.pending.push_back({flight, row, s.pos + s.count - at->second.num_prompt});
  flight->num_missing.fetch_add(1, std::memory_order_relaxed);
  planned_.push_back(at->first);
}

void Masks::launched() {
  for (SeqId id : planned_) post_ready(choices_.at(id));
}

// Sends the slices whose tokens are all known to the choice's thread.
void Masks::post_ready(Choice& c) {
  while (!c.pending.empty() && c.pending.front().num_before == c.num_known) {
    Pending& p = c.pending.front();
    workers_[c.worker]->inbox.push({c.follower, c.tokens, p.flight, p.row});
    c.tokens.clear();
    if (c.follower->forces) c.sent.push_back(p);
    c.pending.erase(c.pending.begin());
  }
}

// Nobody reads what these slices sample.
void Masks::void_pending(Choice& c) {
  for (Pending& p : c.pending) finish_row(*p.flight);
  c.pending.clear();
}

void Masks::drop(ChoicesById::iterator at) {
  void_pending(at->second);
  choices_.erase(at);
}

// What follows the sample that the choice's slice of this step had, if that was forced too.
std::vector<Token> Masks::take_forced(Choice& c, uint64_t step) {
  std::vector<Token> tokens;
  for (const Pending& p : c.sent) {
    if (p.flight->step != step || p.flight->num_missing.load() > 0) continue;
    tokens = std::move(p.flight->forced[p.row]);
  }
  std::erase_if(c.sent, [&](const Pending& p) { return p.flight->step <= step; });
  return tokens;
}

int Masks::completed(uint64_t step, size_t first, Scheduler& scheduler, Time now, Events& events) {
  int num_forced = 0;
  for (size_t k = first; k < events.list.size(); ++k) {
    auto at = choices_.find({events.list[k].req, events.list[k].choice});
    if (at == choices_.end()) continue;
    const Event e = events.list[k];  // the list may grow
    if (e.finish != Finish::none) {
      drop(at);
    } else if (e.token != kNoToken) {
      Choice& c = at->second;
      ++c.num_known;
      c.tokens.push_back(e.token);
      post_ready(c);
      std::vector<Token> forced = take_forced(c, step);
      if (forced.size() < 2 || forced[0] != e.token) continue;
      size_t num = events.list.size();
      scheduler.append(e, std::span(forced).subspan(1), now, events);
      num_forced += static_cast<int>(events.list.size() - num);
    }
  }
  std::erase_if(flights_, [&](const FlightRef& f) { return f->step <= step; });
  return num_forced;
}

void Masks::drop_finished(std::span<const Event> events) {
  for (const Event& e : events) {
    if (e.finish == Finish::none) continue;
    if (auto at = choices_.find({e.req, e.choice}); at != choices_.end()) drop(at);
  }
}

void Masks::abandon() noexcept {
  for (const FlightRef& f : flights_) {
    if (f->sent.exchange(true)) continue;
    try {
      executor_.masks({f->step, {}});
    } catch (...) {
      log_exception("masks of a step");
    }
  }
  flights_.clear();
  choices_.clear();
  planned_.clear();
}

// ---- the workers' threads ----

void Masks::worker_main(Worker& worker) {
  pthread_setname_np(pthread_self(), "masks");
  std::vector<Job> jobs;
  while (!worker.stop.load()) {
    try {
      worker.inbox.wait_drain(jobs, std::chrono::nanoseconds::max());
    } catch (...) {
      log_exception("masks");
    }
    for (Job& job : jobs) run(job);
    jobs.clear();
  }
}

void Masks::run(Job& job) noexcept {
  Follower& f = *job.follower;
  if (!job.flight->sent.load() && !f.failed) {
    try {
      fill(job);
    } catch (...) {
      log_exception("a constraint");
      f.failed = true;
    }
    if (f.failed) job.flight->masks.rows[job.row].clear();
  }
  finish_row(*job.flight);
}

void Masks::fill(Job& job) {
  Follower& f = *job.follower;
  if (!f.matcher) f.matcher.emplace(f.constraint, f.thinking);
  constrain::OutputMatcher& m = *f.matcher;
  for (Token t : job.tokens) {
    if (m.accept(t)) continue;
    f.failed = true;
    LOG(warn, "request %llu ends: %s", static_cast<unsigned long long>(f.request),
        m.failure().empty() ? "a token is outside its constraint" : m.failure().c_str());
    return;
  }
  StepMasks::Row& row = job.flight->masks.rows[job.row];
  row.resize(m.mask_words());
  Result<void> filled = m.fill_mask(row);
  if (filled) {
    if (f.forces && one_bit(row)) job.flight->forced[job.row] = m.forced_tokens(kMaxForced);
    if (!m.failure().empty())
      m.forget_failure();  // looking ahead took too much work: nothing is lost
    return;
  }
  f.failed = true;
  LOG(warn, "request %llu ends: %s", static_cast<unsigned long long>(f.request),
      filled.error().message.c_str());
}

// On any thread. The last row sends the step's masks.
void Masks::finish_row(Flight& flight) noexcept {
  if (flight.num_missing.fetch_sub(1) != 1 || flight.sent.exchange(true)) return;
  try {
    executor_.masks(std::move(flight.masks));
  } catch (...) {
    log_exception("masks of a step");
  }
}

}  // namespace sluice
