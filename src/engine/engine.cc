#include "engine/engine.h"

#include <pthread.h>

#include <algorithm>

#include "base/failure.h"
#include "base/str.h"

namespace sluice {

namespace {

constexpr std::chrono::milliseconds kRetry{5};  // between attempts to tell a sink of its failure
constexpr int kStopAttempts = 100;

}  // namespace

void Sink::on_late(double retry_after) { on_refused({429, late_message(retry_after)}); }

std::string late_message(double retry_after) {
  return strf("the first token is predicted to come too late: try again in %.1f s", retry_after);
}

Engine::Engine(Scheduler scheduler, Executor& executor, const Clock& clock, Options options)
    : config_(scheduler.config()),
      scheduler_(std::move(scheduler)),
      clock_(clock),
      loop_(scheduler_, executor, clock, options.pipeline, options.loop),
      options_(std::move(options)),
      thread_([this] {
        scheduler_.listen(options_.listener);
        if (options_.kv_listener) scheduler_.listen_kv(options_.kv_listener);
        scheduler_.export_to(options_.exporter, options_.sends);
        thread_main();
      }) {}

Engine::~Engine() {
  stop_.store(true);
  inbox_.wake();
  thread_.join();
}

RequestId Engine::submit(Request request, std::shared_ptr<Sink> sink) {
  RequestId id = next_id_.fetch_add(1, std::memory_order_relaxed);
  request.id = id;
  request.arrival = clock_.now();
  add_end_tokens(request);
  auto client = std::make_unique<Client>();
  client->id = id;
  client->sink = std::move(sink);
  inbox_.push({std::move(client), std::move(request)});
  return id;
}

void Engine::cancel(RequestId id) { inbox_.push({nullptr, {}, id}); }

void Engine::flush_prefixes(std::function<void(int)> done) {
  call([done = std::move(done)](Scheduler& s) { done(s.flush_prefixes()); });
}

void Engine::call(std::function<void(Scheduler&)> f) {
  inbox_.push({nullptr, {}, 0, std::move(f)});
}

void Engine::thread_main() {
  pthread_setname_np(pthread_self(), "engine");
  while (!stopped_) {
    try {
      turn();
    } catch (...) {
      restart();
    }
  }
  for (int i = 0; failed_ && i < kStopAttempts; ++i) {
    std::this_thread::sleep_for(kRetry);
    tell_failed();
  }
}

void Engine::turn() {
  if (next_message_ == messages_.size()) receive();
  while (next_message_ < messages_.size()) take(messages_[next_message_++]);
  if (stop_seen_ && !stopping_) cancel_all();
  if (stopping_ && !loop_.busy()) {
    stopped_ = true;
    return deliver();
  }
  StepReport report = loop_.iterate(events_);
  if (options_.early) learn(report);
  report.num_restarts = num_restarts_;
  try {
    if (options_.observer) options_.observer(report, loop_.last_plan(), events_, scheduler_);
  } catch (...) {
    log_exception("observer of steps");
  }
  deliver();
}

void Engine::receive() {
  stop_seen_ = stop_.load();  // before the drain: what was submitted before the stop is answered
  bool now = !loop_.idle() || stop_seen_ || std::exchange(restarted_, false);
  if (now) {
    inbox_.drain(messages_);
  } else {
    Time wake = scheduler_.next_wakeup();
    Time wait = wake == kNever ? kNever : std::max(wake - clock_.now(), Time{0});
    inbox_.wait_drain(messages_, failed_ ? std::min<Time>(wait, kRetry) : wait);
  }
  next_message_ = 0;
}

void Engine::take(Message& message) {
  if (message.call) return std::exchange(message.call, nullptr)(scheduler_);
  if (!message.client) return scheduler_.cancel(message.cancelled, clock_.now(), events_);
  try {
    add(message);
  } catch (...) {
    log_exception("request refused");
    fail(std::move(message.client), current_error());
  }
}

void Engine::learn(const StepReport& report) {
  if (report.launched) options_.early->launched(report.launched_step, step_load(loop_.last_plan()));
  if (report.completed && !report.failed)
    options_.early->completed(report.completed_step, seconds(report.end - report.begin));
}

// Seconds after which the request may come again, since its first token would come too late now; 0:
// it is taken.
double Engine::too_early(const Request& r) {
  // Scheduler::add() says what is wrong with a request that no time makes right.
  if (!options_.early || !r.prompt || r.prompt->empty() || !Scheduler::check(r, config_)) return 0;
  const Time left = r.deadline == kNever ? kNever : r.deadline - clock_.now();
  if (!options_.early->has_limit(left)) return 0;
  const auto tokens = static_cast<int64_t>(r.prompt->size());
  const double output = scheduler_.expected_output(r);
  return options_.early->retry_after(scheduler_.view_for(r), tokens, output, left);
}

// Throws with the client still in the message and the scheduler as before.
void Engine::add(Message& s) {
  if (stopping_) return s.client->sink->on_refused({503, "the engine is stopping"});
  if (const double wait = too_early(s.request); wait > 0) return s.client->sink->on_late(wait);
  auto [place, added] = clients_.emplace(s.client->id, nullptr);
  try {
    Result<void> ok = scheduler_.add(std::move(s.request), clock_.now());
    if (ok) {
      place->second = std::move(s.client);
      return;
    }
    s.client->sink->on_refused(ok.error());
  } catch (...) {
    clients_.erase(place);
    throw;
  }
  clients_.erase(place);
}

void Engine::cancel_all() {
  stopping_ = true;
  std::vector<RequestId> ids;
  ids.reserve(clients_.size());
  for (const auto& [id, client] : clients_) ids.push_back(id);
  std::sort(ids.begin(), ids.end());
  for (RequestId id : ids) scheduler_.cancel(id, clock_.now(), events_);
}

void Engine::deliver() {
  for (const Event& e : events_.list) {
    auto it = clients_.find(e.req);
    if (it == clients_.end()) continue;
    try {
      it->second->sink->on_event(e, events_.top);
    } catch (...) {
      log_exception("request lost an event and fails");
      it->second->scheduled = !e.last;
      fail(std::move(it->second), current_error());
      clients_.erase(it);
      continue;
    }
    if (e.last) clients_.erase(it);
  }
  events_.clear();
  if (failed_) tell_failed();
}

// The scheduler may be left with half a change, so nothing in it is trusted: the steps in flight
// are dropped, every request fails, and it starts empty. Allocates nothing.
void Engine::restart() noexcept {
  const Error& error = current_error();
  log_exception("the engine lost its requests");
  loop_.abandon();
  scheduler_.reset();
  events_.clear();
  for (auto& [id, client] : clients_) fail(std::move(client), error);
  clients_.clear();
  for (Client* c = failed_.get(); c; c = c->next.get()) c->scheduled = false;
  ++num_restarts_;
  restarted_ = true;
}

// Inside a catch block.
const Error& Engine::current_error() const noexcept {
  return is_out_of_memory() ? no_memory_ : internal_;
}

void Engine::fail(std::unique_ptr<Client> client, const Error& error) noexcept {
  client->error = &error;
  client->next = std::move(failed_);
  failed_ = std::move(client);
}

// Those whose sink throws again stay in the list for the next turn.
void Engine::tell_failed() {
  for (Client* c = failed_.get(); c; c = c->next.get()) {
    if (std::exchange(c->scheduled, false)) scheduler_.cancel(c->id, clock_.now(), events_);
  }
  for (std::unique_ptr<Client>* at = &failed_; *at;) {
    try {
      (*at)->sink->on_refused(*(*at)->error);
      *at = std::exchange((*at)->next, nullptr);
    } catch (...) {
      at = &(*at)->next;
    }
  }
}

}  // namespace sluice
