// An executor that computes nothing, for tests and benchmarks: every slice that samples gets a
// token from a function. Steps complete in order; they may be held back, fail or throw. Allocates
// nothing once its results have grown, but for masks, which it keeps. Engine thread, but for
// set_open() and masks().
#pragma once

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "core/executor.h"
#include "core/pipeline.h"

namespace sluice {

class FakeExecutor final : public Executor {
 public:
  using Sample = std::function<Token(const StepPlan&, const Slice&)>;
  explicit FakeExecutor(
      Sample sample = [](const StepPlan&, const Slice&) { return Token{7}; },
      Pipeline pipeline = {})
      : sample_(std::move(sample)), ring_(static_cast<size_t>(pipeline.max_in_flight()) + 1) {}

  // Fills `r` with the result of a plan, reusing its memory.
  static void answer(const StepPlan& plan, const Sample& sample, StepResult& r) {
    r.clear();
    r.step = plan.step;
    for (const Transfer& t : plan.transfers) r.transfers.push_back(t.id);
    for (const Slice& s : plan.slices) {
      if (s.want == Want::none) continue;
      if (samples(s.want)) {
        r.add_row(s, sample(plan, s));
      } else {
        r.add_row(s);
      }
    }
  }

  void launch(const StepPlan& plan) override {
    CHECK(!plan.empty() && launched_ - waited_ < ring_.size());
    StepResult& r = ring_[launched_ % ring_.size()];
    answer(plan, sample_, r);
    if (on_launch) on_launch(plan, r);
    if (plan.step == throw_in_launch) throw std::runtime_error("no room for the step");
    ++launched_;
    if (std::ranges::any_of(plan.slices, [](const Slice& s) { return s.mask != kNoMask; }))
      masked_.push_back(plan.step);
    note('L', plan.step);
    most_in_flight = std::max(most_in_flight, launched_ - waited_);
  }

  // They change no sample; a step whose slices name some is not done before they are there.
  void masks(StepMasks masks) override {
    std::lock_guard lock(mutex_);
    masks_.push_back(std::move(masks));
    opened_.notify_all();
  }
  // Waits for the masks of a step.
  StepMasks masks_of(uint64_t step) {
    std::unique_lock lock(mutex_);
    auto at = masks_.end();
    opened_.wait(lock, [&] {
      at = std::ranges::find(masks_, step, &StepMasks::step);
      return at != masks_.end();
    });
    return *at;
  }

  const StepResult& wait() override {
    CHECK(waited_ < launched_);
    StepResult& r = ring_[waited_ % ring_.size()];
    if (std::ranges::find(masked_, r.step) != masked_.end()) masks_of(r.step);
    std::unique_lock lock(mutex_);
    opened_.wait(lock, [&] { return open_ || r.step < hold_from_; });
    ++waited_;
    note('W', r.step);
    if (r.step == throw_in_wait) throw std::runtime_error("the result was lost");
    if (r.step >= fail_from) {
      uint64_t step = r.step;
      r.clear();
      r.step = step;
      r.failure = "the fan fell off";
    }
    return r;
  }

  // Closed: results of steps from `hold_from` on are held back until it opens. Any thread.
  void set_open(bool open, uint64_t hold_from = 0) {
    std::lock_guard lock(mutex_);
    open_ = open;
    hold_from_ = hold_from;
    opened_.notify_all();
  }

  std::function<void(const StepPlan&, StepResult&)> on_launch;
  bool keep_log = false;
  std::string log;  // "L1 L2 W1 ": launches and waits
  size_t most_in_flight = 0;
  uint64_t fail_from = UINT64_MAX, throw_in_launch = 0, throw_in_wait = 0;

 private:
  void note(char what, uint64_t step) {
    if (keep_log) log += what + std::to_string(step) + " ";
  }

  Sample sample_;
  std::vector<StepMasks> masks_;
  std::vector<uint64_t> masked_;  // launched steps with masks
  std::vector<StepResult> ring_;  // those in flight, and the one that wait() handed out
  size_t launched_ = 0, waited_ = 0;
  std::mutex mutex_;
  std::condition_variable opened_;
  bool open_ = true;
  uint64_t hold_from_ = 0;
};

}  // namespace sluice
