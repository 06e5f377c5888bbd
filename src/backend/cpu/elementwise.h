// Row-wise ops: norms, rotation, activations, copies. Spread over threads where there is enough to
// do; each row is quantised while it is in L1. Owned by the backend, used by its thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "backend/cpu/vector_math.h"
#include "base/thread_pool.h"

namespace sluice {

// f(begin, end, worker) over parts of [0, n), each worth a dispatch; inline when all of it takes
// less than about 2 µs. `ns` is a rough cost of one index.
template <typename F>
void for_ranges(ThreadPool& pool, int64_t n, double ns, F&& f) {
  double total = static_cast<double>(n) * ns;
  if (n <= 1 || total < 2000 || pool.size() == 1) {
    if (n > 0) f(int64_t{0}, n, 0);
    return;
  }
  int64_t parts = static_cast<int64_t>(total / 1500) + 1;
  if (parts > 4 * pool.size()) parts = 4 * pool.size();
  if (parts > n) parts = n;
  pool.for_each(parts,
                [&](int64_t i, int worker) { f(n * i / parts, n * (i + 1) / parts, worker); });
}

class CpuElementwise {
 public:
  CpuElementwise(ThreadPool& pool, const VectorKernels& kernels)
      : pool_(pool), kernels_(kernels), rows_(static_cast<size_t>(pool.size())) {}

  void rope_table(float* cos_sin, const RopeSpec& rope, std::span<const int32_t> positions);
  void rms_norm(const Act& out, Tensor x, const float* weight, float eps, const int32_t* rows);
  void add_rms_norm(const Act& out, Tensor x, Tensor delta, const float* weight, float eps);
  void layer_norm(const Act& out, Tensor x, const LayerNormSpec& norm, const int32_t* rows);
  void add_layer_norm(const Act& out, Tensor x, Tensor delta, const LayerNormSpec& norm);
  void add(Tensor x, Tensor delta);
  void scale(Tensor x, float factor);
  void softcap(Tensor x, float cap);
  void finish_qkv(Tensor qkv, const QkvSpec& spec, const BatchView& batch, KvLayer kv);
  void activate(const Act& out, Tensor x, Activation activation);
  void activate_gated(const Act& out, Tensor gate_up, Activation activation);
  void copy_blocks(std::span<const KvLayer> layers, std::span<const BlockCopy> copies);

 private:
  // fill(row, y) writes row's `cols` results to y for every row of out.
  template <typename Fill>
  void fill_rows(const Act& out, int64_t cols, double ns, Fill fill);
  void finish_row(float* row, int64_t r, const QkvSpec& spec, const BatchView& batch, KvLayer kv);

  ThreadPool& pool_;
  const VectorKernels& kernels_;
  std::vector<std::vector<float>> rows_;  // per worker, for results wanted only quantised
};

}  // namespace sluice
