// The engine as its users see it: submit a request, get its events. One thread owns scheduler and
// loop; requests come in by one mailbox, events go out through one non-blocking sink per request.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "base/mailbox.h"
#include "core/early_rejection.h"
#include "core/executor.h"
#include "core/scheduler.h"
#include "engine/loop.h"

namespace sluice {

// Called on the engine thread; must not block. `top` belongs to the call. A call may throw, and has
// then delivered nothing: the request ends with on_refused(), repeated until it does not throw.
class Sink {
 public:
  virtual ~Sink() = default;
  // Log-probabilities: top[event.top_at, num_top) and top[event.prompt_at, num_prompt).
  virtual void on_event(const Event& event, std::span<const TopLogprob> top) = 0;
  // The request never started, or the engine lost it: no event follows.
  virtual void on_refused(const Error& error) = 0;
  // Refused because its first token is predicted to come too late; not after so many seconds.
  virtual void on_late(double retry_after);
};

// For who is told to come back.
std::string late_message(double retry_after);

class Engine {
 public:
  struct Options {
    Pipeline pipeline = Pipeline::overlap;
    StepObserver observer;
    LoopOptions loop = {};
    SchedulerListener* listener = nullptr;  // outlives the engine
    KvListener* kv_listener = nullptr;      // likewise
    KvExporter* exporter = nullptr;         // likewise
    bool sends = false;                     // the executor does Transfer::send
    // Which requests would get their first token too late; none: nothing is predicted.
    std::optional<EarlyRejection> early = {};
  };
  // Scheduler by value: it is the engine's from now on. Executor and clock outlive the engine.
  Engine(Scheduler scheduler, Executor& executor, const Clock& clock, Options options);
  ~Engine();  // cancels what runs, waits for the step in flight

  // From any thread. Fills in id and arrival. The sink stays until its last event or refusal. Both
  // throw std::bad_alloc when there is no memory for the message; nothing was submitted or
  // cancelled then.
  RequestId submit(Request request, std::shared_ptr<Sink> sink);
  void cancel(RequestId id);
  // Forgets the cached prefixes that no sequence holds. `done` is called with how many blocks
  // became free, on the engine thread; it must not block or throw. Throws as the two above do.
  void flush_prefixes(std::function<void(int)> done);
  // Runs `f` on the engine thread, between what was submitted before and after; it must not block
  // or throw. An engine that stops may drop it. Throws as those above do.
  void call(std::function<void(Scheduler&)> f);
  // Has the observer called soon, even when nothing runs.
  void poke() { inbox_.wake(); }
  const SchedulerConfig& config() const { return config_; }

 private:
  // A request's sink. Made by submit(), so that the engine thread can fail a request without
  // memory.
  struct Client {
    RequestId id = 0;
    std::shared_ptr<Sink> sink;
    const Error* error = nullptr;  // failed: what to tell the sink
    bool scheduled = false;        // failed: the scheduler still has the request
    std::unique_ptr<Client> next;  // in failed_
  };
  using Clients = std::unordered_map<RequestId, std::unique_ptr<Client>>;
  struct Message {
    std::unique_ptr<Client> client;  // null: a cancellation, or a call
    Request request;
    RequestId cancelled = 0;
    std::function<void(Scheduler&)> call{};
  };

  void thread_main();
  void turn();
  void receive();
  void take(Message& message);
  void add(Message& submission);
  void learn(const StepReport& report);
  double too_early(const Request& request);
  void cancel_all();
  void deliver();
  void restart() noexcept;
  const Error& current_error() const noexcept;
  void fail(std::unique_ptr<Client> client, const Error& error) noexcept;
  void tell_failed();

  SchedulerConfig config_;
  Scheduler scheduler_;
  const Clock& clock_;
  Loop loop_;
  Options options_;
  std::atomic<RequestId> next_id_{1};
  Mailbox<Message> inbox_;
  std::vector<Message> messages_;
  size_t next_message_ = 0;
  Clients clients_;
  std::unique_ptr<Client> failed_;  // list of those whose sink must be told
  Events events_;
  uint64_t num_restarts_ = 0;
  const Error no_memory_{503, "the server is out of memory: try again later"};
  const Error internal_{500, "internal error"};
  std::atomic<bool> stop_{false};
  bool restarted_ = false, stop_seen_ = false, stopping_ = false, stopped_ = false;
  std::thread thread_;
};

}  // namespace sluice
