// How fast this CPU's own kernels run, measured: seconds of a product per weight by rows of
// activations, and of attention. Peaks of instructions and of memory bound kernels; these are what
// steps are made of. Kept with the machine's other limits (cpu_limits.h).
#pragma once

#include <cstdint>
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
    double seconds = 0;  // per weight, position of K and V, call, row or layer
    bool operator==(const Point&) const = default;
  };
  std::string kernel;  // a MatmulRow's name, or one of those below
  int threads = 0;
  std::vector<Point> points;  // ascending rows, never empty

  // Between points linear; behind the last, proportional to rows.
  double seconds(double rows) const;
  double most() const { return points.back().rows; }
  bool operator==(const KernelRate&) const = default;
};

// Calls of a product, whatever its size; attention of a layer with heads of that shape: one row
// behind many positions, that row whatever their number, and a prompt; and a layer's operations on
// rows, which write such forms of activations (ActNeeds).
std::string product_call_name(const MatmulRow& row);
std::string decode_attention_name(const ModelShape& shape);
std::string decode_row_name(const ModelShape& shape);
std::string prompt_attention_name(const ModelShape& shape);
std::string row_ops_name(const ModelShape& shape, uint8_t acts);

// Every call reads weights that are in no cache. Takes a second, and memory for the weights.
KernelRate measure_product(const MatmulRow& row, int threads);
// The time of small products beyond `product`: handing out the work, waiting for the last thread.
KernelRate measure_product_call(const MatmulRow& row, int threads, const KernelRate& product);
// A layer's K and V in 16 bits: seconds per pair of a query and a key.
KernelRate measure_decode_attention(const ModelShape& shape, int threads);
KernelRate measure_prompt_attention(const ModelShape& shape, int threads);
// The time of short contexts beyond `decode`.
KernelRate measure_decode_row(const ModelShape& shape, int threads, const KernelRate& decode);
KernelRate measure_row_ops(const ModelShape& shape, uint8_t acts, int threads);

}  // namespace sluice
