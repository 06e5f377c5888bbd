// How many prompt tokens a step may take beside decodes so that those keep their latency target:
// at most as many as are predicted to end within it, with a margin by how far predictions were off.
// Where prompts have time, fewer, if they are cheaper: a step that waits for memory anyway computes
// some prompt tokens for next to nothing.
// Learns from steps that ran. Owned by the scheduler. Pure: same calls, same choices.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/result.h"
#include "core/step_cost.h"
#include "core/step_time_model.h"

namespace sluice {

// --slo: latencies that a share of all tokens must keep.
struct SloTarget {
  Time itl{0};  // between two tokens of a sequence; 0: no target
  float itl_quantile = 0.99f;
  Time ttft{0};  // to the first token; 0: no target
  float ttft_quantile = 0.95f;
  bool any() const { return itl > Time{0}; }
  bool operator==(const SloTarget&) const = default;
};
// "50ms", "1.5s", "200us": from 1us to 3600s.
Result<Time> parse_time(std::string_view text);
// "itl_p99=50ms,ttft_p95=1s"; empty: no target.
Result<SloTarget> parse_slo_target(std::string_view text);
std::string slo_target_name(const SloTarget& target);  // as it is parsed; "none"

// What is known of it, for those who look on.
struct SloStats {
  int prompt_tokens = 0;   // the last choice
  double predicted = 0;    // seconds of the step planned last
  double step_target = 0;  // what a predicted time must not exceed: the target less the margin
  // Of the last step that completed: the same, and how long it took, since the end of the one
  // before it if that was later than its plan.
  uint64_t num_learnt = 0;
  double last_predicted = 0, last_seconds = 0;
  double late = 0;  // share of tokens whose gap was beyond the target, of late
  bool operator==(const SloStats&) const = default;
};

class SloBudget {
 public:
  static constexpr int kMinTokens = 16;  // a prompt always gets so many

  explicit SloBudget(const SloTarget& target) : target_(target) {}
  // Starts from what steps are said to cost. Steps that run count as much, and soon more.
  void start(const StepCost& cost);

  // A step that decodes and has prompts to run.
  struct Offer {
    StepLoad decodes;
    int64_t pos = 0;  // where the prompt in front goes on
    int64_t rest = 0;
    int64_t behind = 0;  // tokens of other prompts that could run
    Time waited{0};      // since the one in front arrived
    int most = 0;        // prompt tokens that the step has room for
  };
  // From 1 to offer.most.
  int choose(const Offer& offer);

  // A planned step, to be handed back with its times.
  struct Planned {
    StepLoad load;
    int num_decode = 0;
    double predicted = 0;  // seconds; 0: nothing is known yet
    bool operator==(const Planned&) const = default;
  };
  Planned plan(const StepLoad& load, int num_decode);
  // Steps in their order; `end` is 0 where steps are not timed.
  void complete(const Planned& step, Time scheduled, Time end);

  const SloStats& stats() const { return stats_; }
  const StepTimeModel& model() const { return model_; }
  bool operator==(const SloBudget&) const = default;

 private:
  friend struct SchedulerState;
  static constexpr size_t kWindow = 128;  // steps whose errors count
  // Tokens of a step where the cost of one more may change: those of tiles and of rooflines.
  static constexpr std::array<int, StepTimeModel::kMaxKnees> kKnees = {32, 64, 128, 256, 512};
  double lateness() const;  // of the tokens that may be late, the share that were
  bool in_danger(const Offer& offer, int safe) const;
  int cheapest(const Offer& offer, int limit) const;
  double time_with(const Offer& offer, int tokens) const;
  double time_for_all(const Offer& offer, int tokens) const;

  SloTarget target_;
  StepTimeModel model_{0.998, kKnees};
  std::array<float, kWindow> errors_{};  // measured / predicted, a ring
  uint64_t num_errors_ = 0;
  double margin_ = 1.25, median_ = 1;  // of the errors: the target's quantile, the middle
  double late_rows_ = 0, rows_ = 0;    // decodes, of late
  int most_seen_ = 0;                  // prompt tokens of a step that was timed
  uint64_t num_prompt_steps_ = 0;      // timed, with prompts and decodes
  std::array<uint64_t, kKnees.size()> num_timed_{};  // of those, steps of about kKnees tokens
  int num_plain_ = 0;  // steps without a prompt since the last one with
  Time last_end_{0};
  SloStats stats_;
};

}  // namespace sluice
