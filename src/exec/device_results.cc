// Reads the results of a step, and when it began and ended on the device.
#include <algorithm>
#include <cstring>
#include <exception>

#include "base/check.h"
#include "exec/device_executor.h"

namespace sluice {

const StepResult& DeviceExecutor::wait() {
  CHECK(num_waited_ < num_launched_);
  auto index = static_cast<int>(num_waited_++ % jobs_.size());
  Job& job = jobs_[static_cast<size_t>(index)];
  struct AtEnd {
    DeviceExecutor& executor;
    Job& job;
    ~AtEnd() {
      if (executor.disk_) executor.release_disk(job);
    }
  } at_end{*this, job};
  if (unfinished_ == &job) queue_unfinished();
  result_.clear();
  result_.step = job.step;
  result_.failure = job.failure;
  if (job.failure.empty()) {
    try {
      device_.wait(2 * index + 1);
      if (config_.timed) {
        result_.begin = device_time(index);
        result_.end = last_end_;
        if (config_.trace) trace_parts(job, result_.begin, result_.end);
      }
    } catch (const std::exception& e) {
      result_.failure = e.what();
    }
  }
  if (!result_.failure.empty()) {
    // The next step writes the states, and does not wait; places of blocks that leave are others'
    // soon.
    if (config_.states || !job.sends.empty()) drain_quietly();
    last_end_ = Time(0);
    if (config_.timed) result_.begin = result_.end = clock_.now();
    return result_;
  }
  result_.rows = job.work.rows;
  result_.tokens.assign(job.work.num_samples, kNoToken);
  result_.transfers = job.work.completed;
  result_.lost = job.work.lost;
  if (disk_) end_disk(job);
  read_outputs(job);
  read_pooled(job);
  return result_;
}

void DeviceExecutor::read_outputs(const Job& job) {
  size_t num = job.num_sampled();
  auto* results = static_cast<const SampleResult*>(job.results.data());
  auto* top = reinterpret_cast<const TopEntry*>(results + num);
  for (size_t i = 0; i < num; ++i) {
    const OutputRow& o = job.work.outputs[i];
    const SampleResult& r = results[i];
    Sampled& s = result_.rows[static_cast<size_t>(job.work.result_of[i])];
    if (o.actual == kNoToken) result_.tokens[s.token_at] = r.token;
    if (o.num_top < 0 || r.token == kNoToken) continue;
    if (s.num_top == 0) s.top_at = static_cast<uint32_t>(result_.top.size());
    result_.top.push_back({o.position, r.token, r.logprob, r.rank});
    for (int k = 0; k < r.num_top; ++k) {
      const TopEntry& t = top[i * kMaxTopLogprobs + static_cast<size_t>(k)];
      result_.top.push_back({o.position, t.token, t.logprob, k + 1});
    }
    s.num_top += 1 + static_cast<uint32_t>(r.num_top);
  }
}

void DeviceExecutor::read_pooled(const Job& job) {
  auto hidden = static_cast<size_t>(model_.shape().hidden);
  size_t num = job.num_sampled();
  size_t before =
      num * sizeof(SampleResult) + (job.top ? num * kMaxTopLogprobs * sizeof(TopEntry) : 0);
  auto* state =
      reinterpret_cast<const float*>(static_cast<std::byte*>(job.results.data()) + before);
  for (const PoolRow& p : job.work.pool) {
    pooler_.add(p, {state, hidden}, result_);
    state += hidden;
  }
}

void DeviceExecutor::mark_part(Job& job, Part part) {
  if (!config_.trace) return;
  device_.mark(part_mark(static_cast<int>(place_of(job)), part));
  job.parts |= static_cast<uint8_t>(1 << part);
}

// The step is over, and its marks with it: nothing waits here. A captured step of decodes samples
// within `forward`.
void DeviceExecutor::trace_parts(const Job& job, Time begin, Time end) {
  static constexpr const char* kNames[] = {"prepare", "copies", "forward", "sample", "results"};
  const auto index = static_cast<int>(place_of(job));
  const TraceArg step{"step", static_cast<double>(job.step)};
  Time from = begin;
  for (int part = 0; part < kPartMarks; ++part) {
    if (!(job.parts >> part & 1)) continue;
    const float ms = device_.elapsed(2 * index, part_mark(index, static_cast<Part>(part)));
    const Time to = begin + Time(static_cast<int64_t>(static_cast<double>(ms) * 1e6));
    config_.trace->span(kNames[part], from, to, {step});
    from = to;
  }
  config_.trace->span(kNames[kResults], from, end, {step});
}

// When the step began on the device; sets last_end_. Device time is chained from step to step, so
// that gaps between steps are the device's and not the host's; no step begins before it was
// launched or ends after it was waited for.
Time DeviceExecutor::device_time(int index) {
  auto ms = [](float v) { return Time(static_cast<int64_t>(static_cast<double>(v) * 1e6)); };
  Time length = ms(device_.elapsed(2 * index, 2 * index + 1));
  Time begin = clock_.now() - length;
  if (last_end_.count() > 0) {
    int before = (index + num_jobs() - 1) % num_jobs();
    begin = std::min(begin, last_end_ + ms(device_.elapsed(2 * before + 1, 2 * index)));
    begin = std::max(begin, jobs_[static_cast<size_t>(index)].launched);
  }
  last_end_ = begin + length;
  return begin;
}

}  // namespace sluice
