// The CUDA backend: a stream per lane, in the order of calls. Kernels are in the files beside this
// one.
// Belongs to one thread at a time, like every Device.
#pragma once

#include <cuda_runtime.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backend/cuda/attention_prefix.cuh"
#include "backend/cuda/elementwise.cuh"
#include "backend/cuda/gemm.cuh"
#include "backend/cuda/packed.cuh"
#include "backend/cuda/sampling.cuh"
#include "backend/cuda/weights.cuh"
#include "backend/cuda_plugin.h"
#include "backend/device.h"

namespace sluice::cuda {

// Why this build does not run on the GPU; empty: it does.
std::string why_not(const cudaDeviceProp& properties);

struct CudaWeight final : WeightData {
  Buffer data, bias, bias_f32, scale;
  GemmWeight gemm;                // of stored weights without data
  std::vector<PackedPart> parts;  // stored weights, in the order of rows
};

inline const CudaWeight& cuda_weight(const Weight& w) {
  return static_cast<const CudaWeight&>(*w.data);
}

struct LoadedWeight {
  GemmWeight gemm;
  bool layer;   // CudaWeightPlan::layer
  bool stored;  // decoded for products of many rows
};

class CudaBackend final : public Device {
 public:
  // Throws where the GPU cannot be used.
  explicit CudaBackend(const CudaOptions& options);
  ~CudaBackend() override;

  // Memory and the queue (cuda_backend.cc).
  std::string describe() const override;
  void attach() override;
  Buffer allocate(size_t bytes) override;
  Buffer pinned(size_t bytes) override;
  size_t page_bytes() const override { return kDevicePage; }
  std::unique_ptr<PageMemory> page_memory(size_t num_pages) override;
  size_t free_memory() const override;
  void upload(void* to, const void* from, size_t bytes) override;
  void download(void* to, const void* from, size_t bytes) override;
  void prefetch(void* to, const void* from, size_t bytes, int after, int done) override;
  void download_beside(std::span<const HostCopy> copies,
                       void (*then)(void*),
                       void* context) override;
  void join_downloads() override;
  void place_weights(std::span<std::byte> memory) override { placed_ = memory; }
  void reserve_lanes(int lanes, int marks) override;
  size_t lane_bytes() const override { return Gemm::kWorkspace + scratch_bytes(); }
  void use_lane(int index) override;
  void mark(int index) override;
  void wait(int index) override;
  void start_after(int index) override;
  void start_after(const uint64_t* flag, uint64_t value) override;
  float elapsed(int from, int to) override;
  void begin_capture() override;
  int end_capture() override;
  void abort_capture() noexcept override;
  void launch(int sequence) override;
  void parallel(int n, void (*f)(void*, int), void* ctx) override;

  // Weights (cuda_load.cc).
  Weight load(std::span<const WeightSegment> segments, std::vector<float> bias) override;
  Buffer vector(std::span<const float> values) override;
  bool keeps_source(const Weight&, size_t) const override { return false; }
  size_t scratch_bytes() const override { return scratch_bytes_; }
  bool makes_random(Format f) const override { return cuda::makes_random(f); }
  DType activation_type() const override { return options_.activations; }
  DType output_type() const override { return cuda_output_type(options_.types()); }
  void tune(int max_tokens, int max_outputs) override;

  // Ops (cuda_ops.cc).
  void embed(Tensor out, const Weight& table, std::span<const int32_t> tokens) override;
  void rope_table(float* cos_sin,
                  const RopeSpec& rope,
                  std::span<const int32_t> positions) override;
  void rms_norm(const Act& out,
                Tensor x,
                const float* weight,
                float eps,
                const int32_t* rows = nullptr) override;
  void add_rms_norm(
      const Act& out, Tensor x, Tensor delta, const float* weight, float eps) override;
  void layer_norm(const Act& out,
                  Tensor x,
                  const LayerNormSpec& norm,
                  const int32_t* rows = nullptr) override;
  void add_layer_norm(const Act& out, Tensor x, Tensor delta, const LayerNormSpec& norm) override;
  void add(Tensor x, Tensor delta) override;
  void scale(Tensor x, float factor) override;
  void softcap(Tensor x, float cap) override;
  void matmul(Tensor out, const Act& x, const Weight& w) override;
  void finish_qkv(Tensor qkv, const QkvSpec& spec, const BatchView& batch, KvLayer kv) override;
  void attention(const Act& out,
                 Tensor q,
                 const AttentionSpec& spec,
                 const BatchView& batch,
                 KvLayer kv) override;
  void activate(const Act& out, Tensor x, Activation activation) override;
  void activate_gated(const Act& out, Tensor gate_up, Activation activation) override;
  void matmul_gated(
      const Act& out, Tensor inner, const Act& x, const Weight& w, Activation activation) override;
  int max_decode_rows() const override;
  bool decode_layers(const DecodeStep& step, std::span<const DecodeLayer> layers) override;
  void copy_blocks(std::span<const KvLayer> layers, std::span<const BlockCopy> copies) override;
  void reserve_sampling(int slots, int vocab) override;
  size_t sampling_bytes(int slots, int vocab, int lanes) const override;
  void prepare(const Packet& packet, const StepArrays& arrays, int num_tokens, int padded) override;
  void sample(const SampleStep& step) override;
  void reserve_attention(const AttentionSpec& spec, int max_decode, int max_positions) override;
  size_t attention_bytes(const AttentionSpec& spec,
                         int max_decode,
                         int max_positions) const override;
  PrefixSharing prefix_sharing(const AttentionSpec& spec, KvType kv) const override;

  // Measuring (cuda_profile.cc, cuda_limits.cc).
  DeviceLimits measure_limits() override;
  void begin_profile() override;
  std::vector<OpTime> end_profile() override;
  void abort_profile() noexcept override;
  void replace_op(const OpTime& op, OpMode mode) override;
  double time_captured(const std::function<void()>& queue,
                       std::vector<std::string>* kernels) override;

 private:
  // An op while it is queued: an event after it while a profile is taken, and whether it is left
  // out to be measured by its absence.
  class Timed {
   public:
    Timed(CudaBackend& backend, const char* op, int64_t rows = 0, int64_t cols = 0)
        : backend_(backend), op_{op, rows, cols, 0} {}
    ~Timed() {
      if (backend_.profiling_) backend_.end_op(op_);
      if (backend_.op_ends_) backend_.count_nodes();
    }
    // Whether replace_op() stands for this op: then it is done.
    bool replaced() const {
      return backend_.replaced_mode_ != OpMode::run && backend_.run_replaced(op_);
    }

   private:
    CudaBackend& backend_;
    OpTime op_;
  };
  void end_op(const OpTime& op) noexcept;
  void count_nodes() noexcept;
  bool run_replaced(const OpTime& op);

  struct Gpu {
    explicit Gpu(const CudaOptions& options);
    std::string name;
    int num_sms = 0;
    bool f8 = false;          // products with a scale per row
    double bandwidth = 1e12;  // of memory, bytes per second, by its clock
  };
  // A lane's memory for attention, and what is where in it.
  struct AttentionMemory {
    size_t bytes = 0, spans_at = 0, states_at = 0;
  };

  // A stream, and the scratch of what it computes.
  struct Lane {
    cudaStream_t stream = nullptr;
    Buffer attention;
    Buffer products;  // of lanes but the first, which uses Gemm's own
    Buffer scratch;   // stored weights in 16 bits, or rows of x for products with them
  };
  AttentionMemory attention_memory(const AttentionSpec& spec,
                                   int max_decode,
                                   int max_positions) const;
  PrefixSizes sizes_of_prefixes(const AttentionSpec& spec, int max_decode) const;
  void add_lane();
  void add_marks(int num);
  cudaEvent_t mark_at(int index) const { return marks_[static_cast<size_t>(index)]; }

  // From what place_weights() gave, or of its own.
  Buffer weight_memory(size_t bytes);
  void run_norm(NormArgs args);
  void quantize(CudaWeight& w);
  void load_int8(std::span<const WeightSegment> segments, CudaWeight& w);
  void pack_segments(std::span<const WeightSegment> segments,
                     const CudaWeightPlan& plan,
                     CudaWeight& w);
  void multiply_streamed(Tensor out, const Act& x, const CudaWeight& w);
  void multiply_stored(Tensor out, const Act& x, const CudaWeight& w);
  // x's split rows, and the kind that x's number of rows needs.
  SplitOut split_of(const Act& x) const;
  // The lane's, made where tune() was not called.
  void* scratch_memory();
  // Whether no other backend of the process runs such kernels on this GPU.
  // Whether bits depend on the batch, on this GPU.
  bool settle_deterministic();
  bool owns_stack() const;
  void disown_stack();
  // Memory for x in 8 bits: x's own, or scratch where it has none.
  CodesView f8_of(const Act& x, DType type);

  CudaOptions options_;
  Gpu device_;
  std::vector<Lane> lanes_;
  size_t lane_ = 0;                // the one in use
  cudaStream_t stream_ = nullptr;  // its stream
  Gemm gemm_;
  std::optional<Uploader> uploader_;
  std::optional<Sampler> sampler_;
  int max_positions_ = 0;                       // that attention's memory is for
  size_t spans_at_ = 0, prefix_states_at_ = 0;  // in it
  PrefixSizes prefix_sizes_;
  cudaStream_t copies_ = nullptr;     // of prefetch(), which makes it
  cudaStream_t downloads_ = nullptr;  // of download_beside(), likewise, with its event
  cudaEvent_t beside_ = nullptr;
  std::span<std::byte> placed_;  // left for weights
  std::vector<cudaEvent_t> marks_;
  std::vector<cudaGraphExec_t> graphs_;
  std::vector<LoadedWeight> loaded_;  // for tune()
  size_t scratch_bytes_ = 0;          // of Lane::scratch
  Buffer f8_scratch_;                 // f8_of()
  bool profiling_ = false;
  std::vector<OpTime> ops_;
  std::vector<cudaEvent_t> op_events_;  // one before the first, one after each
  OpTime replaced_op_{};
  OpMode replaced_mode_ = OpMode::run;
  std::vector<size_t>* op_ends_ = nullptr;  // while a graph is captured for names: nodes after each
};

}  // namespace sluice::cuda
