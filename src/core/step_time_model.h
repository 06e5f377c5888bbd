// Predicts how long a step takes, from steps that ran: time = a + b tokens + c context + d attended
// (step_load.h), by weighted least squares, fitted as measurements come. With knees the line over
// tokens may get steeper at each: small steps wait for memory, large ones for arithmetic. No unit
// of work takes less than no time. Owned by one thread. Deterministic: same measurements, same
// predictions.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "core/step_load.h"

namespace sluice {

class StepTimeModel {
 public:
  static constexpr int kMaxKnees = 5;
  // Constant, tokens, context, attended, then for each knee the tokens beyond it.
  static constexpr int kTerms = 4 + kMaxKnees;
  using Terms = std::array<double, kTerms>;

  // keep: weight of a measurement relative to the next one; 1 keeps all alike.
  // knees: tokens of a step, ascending; at most kMaxKnees.
  explicit StepTimeModel(double keep = 1, std::span<const int> knees = {});

  // weight: 1 / seconds^2 makes errors relative, so that short steps count as much as long ones.
  void add(const StepLoad& load, double seconds, double weight = 1);
  uint64_t count() const { return count_; }
  // Before a measurement: 0. Never negative.
  double predict(const StepLoad& load) const;
  // Seconds per unit of each term. A term that never varied apart from the others is 0.
  const Terms& coefficients() const { return fit_; }
  // Share of the variance that the fit explains, of what was added; 0 without variance.
  double r_squared() const;

  // The most prompt tokens, from position `pos` of a prompt on, that a step with `base` in it may
  // take to end within `target` seconds; at most `most`, 0 if not even one fits.
  int prompt_tokens_within(const StepLoad& base, int64_t pos, double target, int most) const;
  bool operator==(const StepTimeModel&) const = default;

 private:
  friend struct SchedulerState;
  Terms terms(const StepLoad& load) const;
  void solve();
  Terms solve(const std::array<bool, kTerms>& left_out) const;

  double keep_;
  int num_terms_ = 4;
  std::array<int, kMaxKnees> knees_{};
  uint64_t count_ = 0;
  std::array<Terms, kTerms> xx_{};  // sums of products of terms, by weight
  Terms xy_{};
  double yy_ = 0, y_ = 0, weight_ = 0;
  Terms fit_{};
};

}  // namespace sluice
