// Every op of a step timed, alone and inside the step.
#include "exec/device_executor.h"

namespace sluice {

// The step's ops run many times over the same rows: all but the sampler's state are the same after
// each, and the last run is whole, so that its tokens stand.
StepProfile DeviceExecutor::profile_step(const std::function<void()>& run) {
  run();  // first uses load kernels
  StepProfile profile;
  std::vector<OpTime> times;
  device_.begin_profile();
  try {
    run();
    times = device_.end_profile();
  } catch (...) {
    device_.abort_profile();
    throw;
  }
  for (const OpTime& t : times) {
    auto it = std::ranges::find_if(profile.ops, [&](const OpProfile& p) {
      return p.op == t.op && p.rows == t.rows && p.cols == t.cols;
    });
    if (it == profile.ops.end()) {
      it = profile.ops.emplace(it);
      it->op = t.op, it->rows = t.rows, it->cols = t.cols;
    }
    ++it->calls;
    it->alone += t.seconds;
  }
  if (!capture_) return profile;
  std::vector<std::string> kernels;
  profile.step = device_.time_captured(run, &kernels);
  for (size_t i = times.size(); i-- > 0 && kernels.size() == times.size();) {
    for (OpProfile& p : profile.ops)
      if (p.op == times[i].op && p.rows == times[i].rows && p.cols == times[i].cols)
        p.kernels = kernels[i];
  }
  time_in_step(run, profile);
  return profile;
}

void DeviceExecutor::time_in_step(const std::function<void()>& run, StepProfile& profile) {
  auto time_with = [&](const OpProfile& p, OpMode mode) {
    device_.replace_op({p.op.c_str(), p.rows, p.cols, 0}, mode);
    double t = 0;
    try {
      t = device_.time_captured(run, nullptr);
    } catch (...) {
      device_.replace_op({}, OpMode::run);
      throw;
    }
    device_.replace_op({}, OpMode::run);
    return t;
  };
  for (OpProfile& p : profile.ops) {
    double without = time_with(p, OpMode::leave_out), empty = time_with(p, OpMode::empty);
    p.in_step = profile.step - without;
    p.boundary = empty - without;
  }
  run();
}

StepProfile DeviceExecutor::take_profile() {
  std::lock_guard lock(profile_mutex_);
  return std::exchange(profile_, {});
}

}  // namespace sluice
