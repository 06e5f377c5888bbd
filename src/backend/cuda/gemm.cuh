// Matrix products: y [n, rows] = x [n, cols] · wᵀ + bias, by cuBLASLt or by our own kernels for few
// rows (skinny.cuh). Which kernel computes each (rows, cols, types) and bucket of n is chosen by
// timing (gemm_tune.cc) and kept in a file between runs (backend/gemm_choices.h). In deterministic
// mode our own kernels serve every n with the same bits, and so do those algorithms of cuBLASLt
// that were found to (same_bits_key()); products that our kernels do not take (f32, odd widths)
// have one cuBLASLt algorithm without split K for every n. Weights in i8 are for our
// own kernels alone, and for any of them in either mode: their sums are exact. Used by the
// backend's thread.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime.h>

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "backend/cuda/elementwise.cuh"
#include "backend/cuda/gemm_weight.cuh"
#include "backend/cuda/handover.cuh"
#include "backend/gemm_choices.h"
#include "tensor/tensor.h"

namespace sluice::cuda {

// One product. Kernels read x as it is, or `typed`: x in the weight's type.
struct Product {
  Product(const Tensor& to, const Tensor& from, const GemmWeight& weight, const CodesView& from_f8)
      : out(to),
        x(from),
        typed(weight.scale ? Tensor{from_f8.data, weight.type, x.rows, x.cols, x.cols} : x),
        f8(from_f8),
        w(weight) {}
  // cuBLAS adds a bias of the output's type; others take a kernel of their own.
  bool fuses_bias() const { return w.bias && w.type != DType::f8 && w.bias_type == out.type; }

  Tensor out, x, typed;
  CodesView f8;  // fp8 or int8 codes of x, where the weight is in f8 or i8
  GemmWeight w;
};

// n rounded up to a size that has a choice of its own: powers of two, by 32 where a step's products
// turn from reading weights to computing, and by 128 where steps run prompts and decodes.
int gemm_bucket(int64_t n);

class Gemm {
 public:
  Gemm(int device, bool deterministic);
  ~Gemm();
  Gemm(const Gemm&) = delete;

  // x of w.type (any type where that is i8, any half type where it is f8); out of x's type or f32.
  // Weights in 8 bits need memory for x in 8 bits (unless our own kernel reads x as it is);
  // `f8_ready`: product.f8 has x's codes already.
  void run(const Product& product, bool f8_ready, cudaStream_t stream);
  // Whether one kernel computes a product with a gate (GemmWeight::gate): in deterministic mode.
  // Otherwise other kernels are faster, or their successors take the places of blocks that have not
  // begun (docs/performance.md). Such products are for run_gated() alone.
  bool fuses(const Product& product) const;
  void run_gated(const Product& product, cudaStream_t stream);
  // Times the candidates for all buckets from min_n to max_n. `weights` are those of one shape:
  // several, so that they do not stay in the cache.
  void tune(const std::vector<GemmWeight>& weights,
            bool f32_out,
            int min_n,
            int max_n,
            Tensor x,
            void* out,
            const CodesView& f8,
            cudaStream_t stream);
  // Times them for the bucket of these rows alone, again where that was done before.
  void tune_bucket(const std::vector<GemmWeight>& weights,
                   Tensor out,
                   Tensor x,
                   const CodesView& f8,
                   cudaStream_t stream);
  void load_choices();
  void save_choices() const;
  // Memory of products: theirs to use, and flags, which are zero between them.
  static constexpr size_t kScratch = 64 << 20, kWorkspace = kScratch + Handover::kFlagBytes;
  // So many bytes that products use from here on, for one stream at a time; null: its own.
  void use_workspace(void* memory) { workspace_ = memory ? memory : own_workspace_; }

 private:
  class Problem;  // cuBLAS's descriptors of a product (gemm_problem.cuh)
  class Timer;    // gemm_tune.cc

  // Whether a row's bits depend on the kernel, and must not.
  bool fixed(const GemmWeight& w) const { return deterministic_ && w.type != DType::i8; }
  // f8_ready: as of run().
  GemmKey key_of(const Tensor& out, const Tensor& x, const GemmWeight& w, bool f8_ready) const;
  // For a product that was not timed.
  GemmChoice default_choice(const Product& product) const;
  // In deterministic mode: a row's bits depend on the weight alone.
  GemmChoice invariant_choice(const Product& product) const;
  static bool takes(const GemmChoice& choice, const Product& product);
  Handover handover() const;
  // By a kernel of ours.
  void run_own(const GemmChoice& choice, const Product& product, cudaStream_t stream) const;
  // `choice`: of the key, null if there is none.
  void run_cublas(GemmKey key,
                  const GemmChoice* choice,
                  const Product& product,
                  cudaStream_t stream);
  std::vector<cublasLtMatmulHeuristicResult_t> candidates(const Problem& problem, int most) const;
  std::filesystem::path file() const;
  void time_key(const GemmKey& key,
                const std::vector<GemmWeight>& weights,
                const Product& first,
                cudaStream_t stream);
  // In deterministic mode, a weight whose columns wide() adds up in one range: cuBLAS may give the
  // same bits, since it adds them up in the same order on the same tensor cores. tune() finds
  // algorithms that do so in every output that it tries, and keeps one where it is faster.
  static constexpr int kLeastSameBits = 65;  // rows of x
  std::optional<GemmKey> same_bits_key(const Product& product) const;
  bool run_same_bits(const Product& product, cudaStream_t stream);  // false: nothing was done
  void tune_same_bits(
      const std::vector<GemmWeight>& weights, int max_n, Tensor x, void* out, cudaStream_t stream);
  // Whether an algorithm gives wide()'s bits, with so many rows of x. Both outputs go to `out`.
  bool gives_same_bits(const cublasLtMatmulAlgo_t& algo, const Product& some, cudaStream_t stream);
  // Kernels of ours to time for this product.
  std::vector<GemmChoice> own_candidates(const Product& product) const;

  bool deterministic_;
  std::string device_name_;
  int num_sms_ = 0;
  cublasLtHandle_t handle_ = nullptr;
  void *own_workspace_ = nullptr, *workspace_ = nullptr;
  GemmChoices choices_;
  bool tuned_ = false;  // choices_ has what the file has not
};

}  // namespace sluice::cuda
