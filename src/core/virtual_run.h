// A scheduler on a virtual clock, for tests: requests with known output lengths run to their end,
// a step takes as long as its tokens say. Nothing is computed. One thread.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "base/check.h"
#include "core/fake_executor.h"
#include "core/scheduler.h"

namespace sluice {

class VirtualRun {
 public:
  static constexpr Token kEnd = 1;
  // How long a step takes.
  struct Cost {
    Time step = std::chrono::milliseconds(10);
    Time token = std::chrono::microseconds(20);
    std::function<Time(const StepPlan&)> of = {};  // instead of both
  };
  struct Job {
    int prompt = 1;
    int output = 1;   // tokens until it ends by itself
    int max_new = 0;  // what the request says; 0: the output
    TenantId account = 0;
  };

  explicit VirtualRun(SchedulerConfig config) : VirtualRun(std::move(config), Cost{}) {}
  VirtualRun(SchedulerConfig config, Cost cost)
      : cost_(std::move(cost)), scheduler_(synchronous(std::move(config)), nullptr) {}

  RequestId add(const Job& job) {
    Request r;
    r.id = next_id_++;
    r.prompt = std::make_shared<const std::vector<Token>>(static_cast<size_t>(job.prompt),
                                                          static_cast<Token>(r.id + 10));
    r.sampling = std::make_shared<const SamplingSpec>();
    r.stop.tokens = {kEnd};
    r.max_new = job.max_new > 0 ? job.max_new : job.output;
    r.account = job.account;
    r.arrival = now_;
    jobs_[r.id] = job;
    RequestId id = r.id;
    CHECK(scheduler_.add(std::move(r), now_).has_value());
    return id;
  }

  // Plans, runs and completes a step. False: there was nothing to run.
  bool step() {
    events.clear();
    scheduler_.plan(now_, plan_, events);
    if (plan_.empty()) return false;
    for (const RowOp& op : plan_.rows) {
      if (op.kind == RowOp::open) rows_[op.slot] = op.id.req;
    }
    for (const Slice& s : plan_.slices) tokens_of[jobs_.at(rows_.at(s.slot)).account] += s.count;
    num_steps += !plan_.slices.empty();  // the last one may only close rows
    num_tokens += plan_.num_tokens;
    const Time begin = now_;
    now_ += cost_.of ? cost_.of(plan_) : cost_.step + plan_.num_tokens * cost_.token;
    auto draw = [&](const StepPlan&, const Slice& s) {
      const Job& job = jobs_.at(rows_.at(s.slot));
      return s.pos + s.count - job.prompt + 1 >= job.output ? kEnd : Token{2};
    };
    FakeExecutor::answer(plan_, draw, result_);
    result_.begin = begin;
    result_.end = now_;
    scheduler_.complete(result_, now_, events);
    return true;
  }
  void run() {
    while (scheduler_.has_work()) CHECK(step());
  }

  const Scheduler& scheduler() const { return scheduler_; }
  const StepPlan& plan() const { return plan_; }
  Time now() const { return now_; }
  void wait(Time t) { now_ += t; }

  Events events;  // of the last step
  int num_steps = 0;
  int64_t num_tokens = 0;
  std::map<TenantId, int64_t> tokens_of;  // computed, by account

 private:
  static SchedulerConfig synchronous(SchedulerConfig c) {
    c.pipeline = Pipeline::sync;
    return c;
  }

  Cost cost_;
  Scheduler scheduler_;
  std::map<RequestId, Job> jobs_;
  std::map<Slot, RequestId> rows_;
  StepPlan plan_;
  StepResult result_;
  Time now_{0};
  RequestId next_id_ = 1;
};

}  // namespace sluice
