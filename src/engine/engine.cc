#include "engine/engine.h"

#include <pthread.h>

#include <algorithm>

namespace sluice {

Engine::Engine(Scheduler scheduler, Executor& executor, const Clock& clock, Options options)
    : config_(scheduler.config()),
      scheduler_(std::move(scheduler)),
      clock_(clock),
      loop_(scheduler_, executor, clock, options.pipeline),
      options_(std::move(options)),
      thread_([this] { thread_main(); }) {}

Engine::~Engine() {
  inbox_.push(Stop{});
  thread_.join();
}

RequestId Engine::submit(Request request, std::shared_ptr<Sink> sink) {
  RequestId id = next_id_.fetch_add(1, std::memory_order_relaxed);
  request.id = id;
  request.arrival = clock_.now();
  inbox_.push(Submission{std::move(request), std::move(sink)});
  return id;
}

void Engine::cancel(RequestId id) { inbox_.push(Cancellation{id}); }

void Engine::thread_main() {
  pthread_setname_np(pthread_self(), "engine");
  for (;;) {
    if (loop_.busy() || stopping_) {
      inbox_.drain(messages_);
    } else {
      Time wake = scheduler_.next_wakeup();
      inbox_.wait_drain(messages_,
                        wake == kNever ? kNever : std::max(wake - clock_.now(), Time{0}));
    }
    for (Message& m : messages_) take(m);
    if (stopping_ && !loop_.busy()) return deliver();
    StepReport report = loop_.iterate(events_);
    if (options_.observer) options_.observer(report, loop_.last_plan(), events_, scheduler_);
    deliver();
  }
}

void Engine::take(Message& message) {
  if (auto* s = std::get_if<Submission>(&message)) {
    RequestId id = s->request.id;
    if (stopping_) return s->sink->on_refused({503, "the engine is stopping"});
    if (auto ok = scheduler_.add(std::move(s->request), clock_.now()); !ok) {
      return s->sink->on_refused(ok.error());
    }
    sinks_[id] = std::move(s->sink);
  } else if (auto* c = std::get_if<Cancellation>(&message)) {
    scheduler_.cancel(c->id, clock_.now(), events_);
  } else if (std::holds_alternative<Stop>(message)) {
    stopping_ = true;
    std::vector<RequestId> ids;
    for (const auto& [id, sink] : sinks_) ids.push_back(id);
    std::sort(ids.begin(), ids.end());
    for (RequestId id : ids) scheduler_.cancel(id, clock_.now(), events_);
  }
}

void Engine::deliver() {
  for (const Event& e : events_.list) {
    auto it = sinks_.find(e.req);
    if (it == sinks_.end()) continue;
    it->second->on_event(e, events_.top);
    if (e.last) sinks_.erase(it);
  }
  events_.clear();
}

}  // namespace sluice
