// The token masks of constrained requests. Follows the choices of such requests by the plans and
// events of the loop, fills the mask of each of their slices as soon as all tokens before it are
// known, and sends a step's masks to the executor when the last of them is filled.
//
// Owned by a Loop, on its thread. Matchers run on threads of their own, which start with the first
// constrained request: one choice's always on the same thread, in order. So the engine thread never
// waits for a mask, and the forward pass runs while masks are filled. A choice whose matcher fails
// (a limit, no memory) gets an empty mask: then nothing can be sampled, and it ends there.
//
// Where a mask allows one token alone, its thread also looks which tokens must follow. When the
// step completes they are appended to the output at once, and run as one chunk.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "base/mailbox.h"
#include "constrain/output_matcher.h"
#include "core/events.h"
#include "core/executor.h"
#include "core/scheduler.h"

namespace sluice {

// The end tokens of a request's constraint end its output, also with ignore_eos.
void add_end_tokens(Request& request);

class Masks {
 public:
  // The executor outlives this. num_threads 0: by the number of cores. `forced`: whether tokens
  // that a constraint allows alone are appended without being sampled.
  explicit Masks(Executor& executor, bool forced = true, int num_threads = 0);
  ~Masks();
  Masks(const Masks&) = delete;
  Masks& operator=(const Masks&) = delete;

  // Whether calls have anything to do, besides plans for new constrained requests.
  bool active() const { return !choices_.empty() || !flights_.empty(); }
  // A plan, before it is launched; `scheduler` made it.
  void plan(const StepPlan& plan, const Scheduler& scheduler);
  // The plan was launched.
  void launched();
  // Step `step` completed, with events.list[first, ...). Appends forced tokens, whose events
  // follow; returns how many.
  int completed(uint64_t step, size_t first, Scheduler& scheduler, Time now, Events& events);
  // Forgets the choices that any of the events finishes.
  void drop_finished(std::span<const Event> events);
  // Forgets everything. Steps that still wait for masks get none: they sample nothing.
  void abandon() noexcept;

 private:
  // One step's masks on their way. Each row is written by the thread that fills it.
  struct Flight {
    explicit Flight(uint64_t s) : step(s), masks{s, {}} {}
    const uint64_t step;
    StepMasks masks;
    std::vector<std::vector<Token>> forced;  // by row: what follows, the row's sample first
    std::atomic<int> num_missing{0};
    std::atomic<bool> sent{false};
  };
  using FlightRef = std::shared_ptr<Flight>;
  // Used by its thread alone, but for what the output must be.
  struct Follower {
    RequestId request = 0;
    std::shared_ptr<const constrain::Constraint> constraint;
    std::shared_ptr<const constrain::Thinking> thinking;
    std::optional<constrain::OutputMatcher> matcher;
    bool forces = false;  // forced tokens are wanted
    bool failed = false;
  };
  struct Job {
    std::shared_ptr<Follower> follower;
    std::vector<Token> tokens;  // to accept before the mask is filled
    FlightRef flight;
    size_t row = 0;
  };
  struct Worker {
    Mailbox<Job> inbox;
    std::atomic<bool> stop{false};
    std::thread thread;
  };
  // A slice that waits for its turn.
  struct Pending {
    FlightRef flight;
    size_t row = 0;
    int num_before = 0;  // output tokens before the one that it samples
  };
  struct Choice {
    std::shared_ptr<Follower> follower;
    size_t worker = 0;
    int num_prompt = 0;
    int num_known = 0;          // output tokens so far
    std::vector<Token> tokens;  // the last of those, not yet sent to the worker
    std::vector<Pending> pending;
    std::vector<Pending> sent;  // to the worker, of steps in flight; where it forces tokens
  };
  using ChoicesById = std::map<SeqId, Choice>;

  void open(const RowOp& op, const Scheduler& scheduler);
  void add_slice(const Slice& slice, const FlightRef& flight);
  void post_ready(Choice& choice);
  void void_pending(Choice& choice);
  void drop(ChoicesById::iterator at);
  std::vector<Token> take_forced(Choice& choice, uint64_t step);
  void start_workers();
  void worker_main(Worker& worker);
  void run(Job& job) noexcept;
  void fill(Job& job);
  void finish_row(Flight& flight) noexcept;

  Executor& executor_;
  bool forced_;
  int num_threads_;
  std::vector<std::unique_ptr<Worker>> workers_;
  size_t next_worker_ = 0;
  ChoicesById choices_;
  std::vector<SeqId> slots_;        // by slot: the last sequence in it that has a constraint
  std::vector<FlightRef> flights_;  // launched or about to be, oldest first
  std::vector<SeqId> planned_;      // choices with a slice in the plan at hand
};

}  // namespace sluice
