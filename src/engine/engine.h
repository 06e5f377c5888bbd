// The engine as its users see it: submit a request, get its events. One thread owns scheduler and
// loop; requests come in by one mailbox, events go out through one non-blocking sink per request.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <span>
#include <thread>
#include <unordered_map>
#include <variant>
#include <vector>

#include "base/clock.h"
#include "base/mailbox.h"
#include "core/executor.h"
#include "core/scheduler.h"
#include "engine/loop.h"

namespace sluice {

// Called on the engine thread; must not block. `top` belongs to the call.
class Sink {
 public:
  virtual ~Sink() = default;
  // Log-probabilities: top[event.top_at, num_top) and top[event.prompt_at, num_prompt).
  virtual void on_event(const Event& event, std::span<const TopLogprob> top) = 0;
  // The request never started: no event follows.
  virtual void on_refused(const Error& error) = 0;
};

class Engine {
 public:
  struct Options {
    Pipeline pipeline = Pipeline::overlap;
    StepObserver observer;
  };
  // Scheduler by value: it is the engine's from now on. Executor and clock outlive the engine.
  Engine(Scheduler scheduler, Executor& executor, const Clock& clock, Options options);
  ~Engine();  // cancels what runs, waits for the step in flight

  // From any thread. Fills in id and arrival. The sink stays until its last event or refusal.
  RequestId submit(Request request, std::shared_ptr<Sink> sink);
  void cancel(RequestId id);
  // Has the observer called soon, even when nothing runs.
  void poke() { inbox_.push(Poke{}); }
  const SchedulerConfig& config() const { return config_; }

 private:
  struct Submission {
    Request request;
    std::shared_ptr<Sink> sink;
  };
  struct Cancellation {
    RequestId id;
  };
  struct Poke {};
  struct Stop {};
  using Message = std::variant<Submission, Cancellation, Poke, Stop>;

  void thread_main();
  void take(Message& message);
  void deliver();

  SchedulerConfig config_;
  Scheduler scheduler_;
  const Clock& clock_;
  Loop loop_;
  Options options_;
  std::atomic<RequestId> next_id_{1};
  Mailbox<Message> inbox_;
  std::vector<Message> messages_;
  std::unordered_map<RequestId, std::shared_ptr<Sink>> sinks_;
  Events events_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace sluice
