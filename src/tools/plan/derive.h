// Step costs of hardware that is not at hand, from its limits and a model's headers; and estimates
// of tensor parallelism, which the engine does not have, and of prompts and decodes on different
// devices. Pure functions.
#pragma once

#include <vector>

#include "core/step_cost.h"
#include "tools/kernel_rates.h"
#include "tools/sol.h"

namespace sluice {

// Shares of a device's limits that steps reach. Those of GPUs are from our own steps on an H200
// (docs/plan.md), against the nominal figures of the table.
struct Reached {
  double weights = 0.77;    // of the bandwidth, reading weights
  double kv = 0.62;         // of the bandwidth, reading K and V
  double products = 0.775;  // of the peak
  double products8 = 0.55;  // of the peak with 8-bit factors
  double attention = 0.5;   // of the peak, in prompts
  // Quantised weights as stored: of the bandwidth, and of the peak where they are unpacked in the
  // product. From some rows on they are decoded to 16 bits first.
  double stored = 0.66, stored_products = 0.13;
  double per_layer = 10e-6;  // seconds: launches, small kernels
  double per_step = 50e-6;   // sampling, inputs, outputs
  double host_step = 30e-6, host_slice = 0.2e-6;
};
inline constexpr Reached kGpuReached{};
inline constexpr double kUsableMemory = 0.95;  // of a device's nominal memory

// How products read weights: as they are; in 8 bits, with the device's peak8 where it has one; or
// quantised as stored, on a GPU.
enum class WeightUse : uint8_t { plain, bits8, stored };

StepCost derive_cost(const SolModel& model,
                     const SolDevice& device,
                     const Reached& reached,
                     WeightUse use);

// A model's products and attention on a CPU, with the measured rates of its kernels there.
struct CpuKernels {
  struct Product {
    KernelRate rate;
    double body = 0, logits = 0;  // weights; those of logits are for sampled rows
    KernelRate call;
    double calls = 0;  // of the body's
  };
  std::vector<Product> products;
  KernelRate decode, decode_row, prompt;  // attention of a layer
  KernelRate row_ops;                     // of a layer

  double body(double rows) const;  // seconds
  double logits(double rows) const;
};
StepCost derive_cpu_cost(const ModelShape& shape, const CpuKernels& kernels);

// The cost on `ways` devices that share every product, with two sums over all of them per layer:
// an estimate.
StepCost parallel_cost(const StepCost& one, const ModelShape& shape, int ways, double link);

// Rates are requests per second and device: what a device that only computes prompts takes
// (prefill), one that only decodes (decode), and a device on average (the result).
// p devices compute prompts, d devices decode.
double split_rate(double prefill, double decode, int p, int d);
// The same devices do both, without a latency to keep.
double shared_rate(double prefill, double decode);
struct Split {
  int prefill = 1, decode = 1;
  double rate = 0;  // per device
};
// The best of all splits of so many devices, at least two.
Split best_split(double prefill, double decode, int devices);

}  // namespace sluice
