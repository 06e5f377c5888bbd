// How fast this CPU's own kernels run, measured: seconds of a product per weight by rows of
// activations, and of attention. Peaks of instructions and of memory bound kernels; these are what
// steps are made of. Kept with the machine's other limits (cpu_limits.h).
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "backend/cpu/matmul/matmul_table.h"
#include "model/model.h"

namespace sluice {

struct KernelRate {
  struct Point {
    double rows = 0;
    double seconds = 0;  // per weight, or per position of K and V
    bool operator==(const Point&) const = default;
  };
  std::string kernel;  // a MatmulRow's name, or that of an attention
  int threads = 0;
  std::vector<Point> points;  // ascending rows, never empty

  // Between points linear; behind the last, proportional to rows.
  double seconds(double rows) const;
  bool operator==(const KernelRate&) const = default;
};

// Attention of a layer with heads of that shape: one row behind many positions, and a prompt.
std::string decode_attention_name(const ModelShape& shape);
std::string prompt_attention_name(const ModelShape& shape);

// Every call reads weights that are in no cache. Takes a second, and memory for the weights.
KernelRate measure_product(const MatmulRow& row, int threads);
// A layer's K and V in 16 bits: seconds per pair of a query and a key.
KernelRate measure_decode_attention(const ModelShape& shape, int threads);
KernelRate measure_prompt_attention(const ModelShape& shape, int threads);

}  // namespace sluice
