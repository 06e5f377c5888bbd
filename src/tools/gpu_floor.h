// Lower bound of a step's time from a GPU's measured limits, and how far a measured step lies above
// it. Plain data.
#pragma once

#include <string>
#include <vector>

#include "backend/device.h"
#include "exec/device_executor.h"
#include "tools/bench_limits.h"

namespace sluice {

// Each product takes the larger of its weights / bandwidth and its operations / rate; attention
// reads K and V. `bandwidth` is a copy's (limits.copy) or a reader's (limits.read).
struct GpuFloor {
  DeviceLimits limits;
  const ModelShape* shape;
  double kv_bytes_per_token;
  DType weights;  // the layers': f8, i8, or 16 bits
  double bandwidth;

  GpuFloor at(double bytes_per_s) const;
  double product(const Product& p, double n) const;
  double attention(double positions) const { return positions * kv_bytes_per_token / bandwidth; }
  // One decode step of n sequences with so many positions each.
  double decode(double n, double context) const;
  // Seconds of the arithmetic of prompts of equal length, without logits.
  double prefill(int prompts, int length) const;

 private:
  bool in_8_bits(const Product& p) const;
  double rate(const Product& p) const;
};

// A row of the profile of a decode step; seconds per step.
struct OpRow {
  std::string name, kernels;
  int calls = 0;
  double seconds = 0;   // in the step, or alone where steps are not captured
  double boundary = 0;  // of it: idle time around empty kernels in the op's place
  double alone = 0;
  double floor = 0;
  double gap() const { return seconds - floor; }
};
// The largest gap first. Products have the names of Product. context: positions that a row reads.
std::vector<OpRow> op_rows(const StepProfile& profile,
                           const GpuFloor& floor,
                           int batch,
                           double context);

}  // namespace sluice
