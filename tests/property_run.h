// Runs requests of the property tests on a subject, and compares what comes of them with the same
// requests alone.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <vector>

#include "core/events.h"
#include "core/request.h"
#include "core/scheduler.h"
#include "exec/cache_groups.h"
#include "exec/executor_config.h"
#include "property_subjects.h"

namespace sluice {

struct Output {
  std::vector<std::vector<Token>> tokens;
  std::vector<std::vector<TopLogprob>> top;
  std::vector<TopLogprob> prompt;
  std::vector<Finish> finish;
  Vector pooled;
  int num_terminal = 0;

  Output() = default;
  explicit Output(const Request& r);
  // Appends an event to it, and checks that none follows a finish or the terminal event.
  void take(const Event& event, std::span<const TopLogprob> top_of_events);
};

struct Setup {
  SchedulerConfig scheduler;
  CacheGroups groups;
  int threads = 1;
  bool forced = false;    // tokens that a constraint leaves no choice about are not sampled
  bool replayed = false;  // its plans give the same results once more
  const std::filesystem::path* disk_dir = nullptr;  // with tiers.disk
};

// One that runs a request alone, with blocks of another size.
Setup alone(const Setup& other);

struct Tally {
  uint64_t preemptions = 0, restored = 0, tier_hits = 0, disk_hits = 0;
  uint64_t constrained = 0, complete = 0;  // outputs under a constraint; of those, that ended by it
  uint64_t forced = 0;
  uint64_t replayed = 0;
  uint64_t streamed = 0;              // rows
  uint64_t thinking = 0, closed = 0;  // outputs with a budget of thinking; that have its end mark
};

// Sizes of an executor for a scheduler of this setup.
ExecutorConfig executor_config(const Subject& subject,
                               const Setup& setup,
                               const Scheduler& scheduler);

// Runs requests to their end, those in `cancel_at` until that many iterations have passed.
// Requests join over the first iterations, not all at once.
std::map<RequestId, Output> run(Subject& subject,
                                const Setup& setup,
                                const std::vector<Request>& requests,
                                const std::map<RequestId, int>& cancel_at,
                                int join_every,
                                Tally* tally);

// The output of a request is that of the request alone, bit for bit, and obeys its constraint and
// its budget of thinking. `may_cancel`: it may have been cancelled, and then is the beginning of
// the other. Fails the test at the first difference.
void expect_same(const Subject& subject,
                 const Request& request,
                 const Output& output,
                 const Output& alone,
                 bool may_cancel,
                 Tally* tally);

}  // namespace sluice
