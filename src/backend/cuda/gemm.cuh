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

#include "backend/cuda/elementwise.cuh"
#include "tensor/tensor.h"

namespace sluice::cuda {

struct GemmWeight {
  const void* data = nullptr;  // [rows, cols]
  DType type = DType::bf16;
  int64_t rows = 0, cols = 0;
  const void* bias = nullptr;  // [rows] of bias_type, the activations', or null
  DType bias_type = DType::bf16;
  const float* bias_f32 = nullptr;  // the same in f32
  const float* scale = nullptr;     // type f8: [rows], value = scale * e4m3
};

class Gemm {
 public:
  Gemm(int device, bool deterministic);
  ~Gemm();
  Gemm(const Gemm&) = delete;

  // x of w.type (any half type where that is f8); out of x's type or f32. Weights in f8 need memory
  // for x in f8 (unless our own kernel reads x as it is); `ready`: it is there already.
  void run(Tensor out,
           Tensor x,
           const GemmWeight& w,
           const QuantizedRows& memory,
           bool ready,
           cudaStream_t stream);
  // Times the candidates for all buckets up to max_n. `weights` are those of one shape: several, so
  // that they do not stay in the cache.
  void tune(const std::vector<GemmWeight>& weights,
            bool f32_out,
            int max_n,
            Tensor x,
            void* out,
            const QuantizedRows& memory,
            cudaStream_t stream);
  // Times them for the bucket of these rows alone, again where that was done before.
  void tune_bucket(const std::vector<GemmWeight>& weights,
                   Tensor out,
                   Tensor x,
                   const QuantizedRows& memory,
                   cudaStream_t stream);
  void load_choices();
  void save_choices() const;
  int num_tuned() const { return num_tuned_; }
  static constexpr size_t kWorkspace = 64 << 20;
  // So many bytes that products use from here on, for one stream at a time; null: its own.
  void use_workspace(void* memory) { workspace_ = memory ? memory : own_workspace_; }

 private:
  struct Key {
    int64_t rows, cols;
    int bucket;
    DType type, out;
    bool bias, wide;  // wide: pointers and strides are multiples of 16 bytes
    auto operator<=>(const Key&) const = default;
  };
  // Our own kernels (skinny.cuh) stand for themselves: skinny(), tall(), or narrow() with so many
  // splits.
  static constexpr int kCublas = 0, kSkinny = -1, kTall = -2;
  struct Plan {
    cublasLtMatmulAlgo_t algo{};
    int kernel = kCublas;
    float microseconds = 0;  // 0: by heuristic
  };
  struct Problem;  // descriptors of one call

  Key key_of(const Tensor& out, const Tensor& x, const GemmWeight& w) const;
  // What serves a product that was not timed, whether a kernel takes it, and running it. x as it
  // is, and as w's kernels have it (in f8 where w is).
  int kernel_by_default(const Tensor& x, const Tensor& typed, const GemmWeight& w) const;
  static bool takes(int kernel, const Tensor& x, const Tensor& typed, const GemmWeight& w);
  void run_own(int kernel,
               const Tensor& out,
               const Tensor& x,
               const Tensor& typed,
               const float* x_scale,
               const GemmWeight& w,
               cudaStream_t stream) const;
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
  int num_sms_ = 0;
  cublasLtHandle_t handle_ = nullptr;
  void *own_workspace_ = nullptr, *workspace_ = nullptr;
  std::map<Key, Plan> plans_;
  int num_tuned_ = 0;
};

}  // namespace sluice::cuda
