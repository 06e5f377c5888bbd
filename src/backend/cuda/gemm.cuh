// Matrix products through cuBLASLt: y [n, rows] = x [n, cols] · wᵀ + bias. The algorithm of each
// (rows, cols, types) and bucket of n is chosen by timing and kept in a file between runs; in
// deterministic mode one algorithm without split K serves every n. Used by the backend's thread.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime.h>

#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "tensor/tensor.h"

namespace sluice::cuda {

struct GemmWeight {
  const void* data = nullptr;  // [rows, cols]
  DType type = DType::bf16;
  int64_t rows = 0, cols = 0;
  const void* bias = nullptr;    // [rows] in the output's type, or null
  const float* scale = nullptr;  // type f8: [rows], value = scale * e4m3
};

// x in e4m3 with a scale per row, for weights in f8. Memory of the caller.
struct QuantizedRows {
  void* data = nullptr;    // [n, cols]
  float* scale = nullptr;  // [n]
};

class Gemm {
 public:
  Gemm(int device, bool deterministic);
  ~Gemm();
  Gemm(const Gemm&) = delete;

  // x of w.type (any half type where that is f8); out of x's type or f32. Weights in f8 need memory
  // for x in f8, unless our own kernel reads x as it is.
  void run(
      Tensor out, Tensor x, const GemmWeight& w, const QuantizedRows& memory, cudaStream_t stream);
  // Times the candidates for all buckets up to max_n. `weights` are those of one shape: several, so
  // that they do not stay in the cache.
  void tune(const std::vector<GemmWeight>& weights,
            bool f32_out,
            int max_n,
            Tensor x,
            void* out,
            const QuantizedRows& memory,
            cudaStream_t stream);
  void load_choices();
  void save_choices() const;
  int num_tuned() const { return num_tuned_; }
  static constexpr size_t kWorkspace = 64 << 20;

 private:
  struct Key {
    int64_t rows, cols;
    int bucket;
    DType type, out;
    bool bias, wide;  // wide: pointers and strides are multiples of 16 bytes
    auto operator<=>(const Key&) const = default;
  };
  struct Plan {
    cublasLtMatmulAlgo_t algo{};
    int own = 0;  // 0: cuBLAS; else our own kernel (skinny.cuh), narrow() with so many splits
    float microseconds = 0;  // 0: by heuristic
  };
  struct Problem;  // descriptors of one call

  Key key_of(const Tensor& out, const Tensor& x, const GemmWeight& w) const;
  // Our own kernel for few rows, where it takes the product: its splits, and running it.
  int own_by_default(const Tensor& out, const Tensor& x, const GemmWeight& w) const;
  static void run_own(Tensor out, Tensor x, const GemmWeight& w, int splits, cudaStream_t stream);
  const Plan& plan_of(const Key& key, const Problem& problem);
  std::vector<cublasLtMatmulHeuristicResult_t> candidates(const Problem& problem, int most) const;
  std::string file() const;
  void time_key(const Key& key,
                const std::vector<GemmWeight>& weights,
                Tensor out,
                Tensor x,
                const QuantizedRows& memory,
                cudaStream_t stream);

  bool deterministic_;
  std::string device_name_;
  cublasLtHandle_t handle_ = nullptr;
  void* workspace_ = nullptr;
  std::map<Key, Plan> plans_;
  int num_tuned_ = 0;
};

}  // namespace sluice::cuda
