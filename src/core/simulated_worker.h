// One engine in virtual time, step by step: requests are pushed as they arrive, and it runs until
// a given time (simulation.h runs one, cluster_simulation.h several). One thread.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "core/events.h"
#include "core/scheduler.h"
#include "core/simulation.h"

namespace sluice {

class SimulatedWorker {
 public:
  // `setup` outlives it. `tells`: keeps notices.
  SimulatedWorker(const SimSetup& setup, bool tells);

  // Requests in the order of their arrival; `request` is kept by reference until it is admitted.
  // `index`: of its prompt's own tokens (sim_prompt). `brought`: K and V of so many tokens come
  // with it, as far as there are places for them (TierSizes::host). Returns its number here.
  size_t push(const SimRequest& request, size_t index, int brought = 0);
  // Leading tokens of a prompt that it has cached.
  int num_cached(const SimRequest& request, size_t index) const;
  // When the last step that was launched ends.
  Time busy_until() const { return device_free_; }
  // Runs until its clock is at `end` or later, or nothing is left to do. Nothing arrives before
  // `end` but what was pushed.
  void run_until(Time end);
  // Its results; nothing is run any more.
  SimRun finish();

  // What its requests did, in the order of time; the caller clears it.
  struct Notice {
    size_t request = 0;
    Time at{0};
    int tokens = 0;      // since the one before
    bool ended = false;  // nothing follows
  };
  std::vector<Notice>& notices() { return notices_; }

 private:
  struct Flight {
    StepResult result;
    Time end{0};
  };
  struct Arrival {
    const SimRequest* request = nullptr;
    size_t index = 0;
    int brought = 0;
  };
  void admit();
  void import_prompt(const Request& request, int tokens);
  void refuse(size_t number);
  void iterate(Time end);
  void launch();
  void remember(const SimMoment& m);
  void note(const Event& e);

  const SimSetup& setup_;
  const bool tells_;
  Scheduler scheduler_;
  int max_in_flight_;
  std::shared_ptr<const SamplingSpec> sampling_;
  std::vector<Arrival> arrivals_;
  size_t next_ = 0;  // arrival to be admitted
  bool begun_ = false;
  Time now_{0}, begin_{0}, end_{0}, device_free_{0};
  std::deque<Flight> flights_;
  std::vector<StepResult> free_;  // their memory
  std::vector<Time> last_;        // token, by request
  StepPlan plan_;
  Events events_;
  std::vector<Notice> notices_;
  double kv_seconds_ = 0;
  size_t num_moments_ = 0, moment_stride_ = 1;
  SimRun run_;
};

}  // namespace sluice
