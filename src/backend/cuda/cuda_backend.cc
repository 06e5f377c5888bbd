// The CUDA backend: a stream per lane, in the order of calls; kernels are in the files beside this
// one.
#include <cublasLt.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "backend/cuda/attention.cuh"
#include "backend/cuda/check.cuh"
#include "backend/cuda/elementwise.cuh"
#include "backend/cuda/gemm.cuh"
#include "backend/cuda/graph_names.cuh"
#include "backend/cuda/prepare.cuh"
#include "backend/cuda/sampling.cuh"
#include "backend/cuda/skinny.cuh"
#include "backend/cuda/target.cuh"
#include "backend/cuda/weights.cuh"
#include "backend/cuda_plugin.h"
#include "backend/device.h"
#include "base/check.h"

namespace sluice::cuda {

namespace {

void free_device(void* p, size_t) { cudaFree(p); }
void free_pinned(void* p, size_t) { cudaFreeHost(p); }

struct CudaWeight final : WeightData {
  Buffer data, bias, bias_f32, scale;
  GemmWeight gemm;
};

struct LoadedWeight {
  GemmWeight gemm;
  bool layer;  // a layer's own; the output matrix is not
};

// Empty where this build runs on the GPU.
std::string why_not(const cudaDeviceProp& p) {
  constexpr size_t kLeastShared = 224 << 10;  // per block, as Hopper and server Blackwell have
  if (p.major < 9) return "has no clusters of blocks: use a Hopper GPU or later";
  if (p.sharedMemPerBlockOptin < kLeastShared) return "has too little shared memory per block";
  if (has_code_for(p.major, p.minor)) return {};
  std::string arch = std::to_string(p.major * 10 + p.minor) + (p.major == 9 ? "a" : "");
  return "needs a build with -DSLUICE_CUDA_ARCHS=" + arch + "; this one is for " + archs();
}

const CudaWeight& cuda_weight(const Weight& w) { return static_cast<const CudaWeight&>(*w.data); }

class CudaBackend final : public Device {
 public:
  explicit CudaBackend(const CudaOptions& options)
      : options_(options), device_(options), gemm_(options.index, options.deterministic) {
    add_lane();
    stream_ = lanes_[0].stream;
    add_marks(2);
    gemm_.load_choices();
  }
  ~CudaBackend() override {
    for (Lane& l : lanes_) cudaStreamSynchronize(l.stream);
    for (cudaGraphExec_t g : graphs_) cudaGraphExecDestroy(g);
    for (cudaEvent_t e : marks_) cudaEventDestroy(e);
    uploader_.reset();
    for (Lane& l : lanes_) cudaStreamDestroy(l.stream);
  }

  std::string describe() const override {
    const char* type = options_.activations == DType::bf16  ? "bf16"
                       : options_.activations == DType::f16 ? "f16"
                                                            : "f32";
    return std::string("cuda:") + std::to_string(options_.index) + ", " + device_.name + ", " +
           type + (options_.fp8_weights ? ", fp8 weights" : "") +
           (options_.deterministic ? ", deterministic" : "");
  }
  void attach() override { check(cudaSetDevice(options_.index), "device"); }
  Buffer allocate(size_t bytes) override {
    void* p = nullptr;
    check(cudaMalloc(&p, std::max<size_t>(bytes, 1)), "memory");
    Buffer b(p, bytes, free_device);
    check(cudaMemsetAsync(p, 0, bytes, stream_), "memory");
    return b;
  }
  DType activation_type() const override { return options_.activations; }
  // Halves are chosen for their exactness: sums stay in f32 on their way to the residual stream.
  DType output_type() const override {
    return options_.activations == DType::f16 ? DType::f32 : options_.activations;
  }
  bool makes_random(Format f) const override { return cuda::makes_random(f); }
  bool keeps_source(const Weight&, size_t) const override { return false; }
  Buffer vector(std::span<const float> values) override {
    Buffer b = allocate(values.size_bytes());
    check(cudaMemcpyAsync(b.data(), values.data(), values.size_bytes(), cudaMemcpyHostToDevice,
                          stream_),
          "upload");
    check(cudaStreamSynchronize(stream_), "upload");
    return b;
  }

  Weight load(std::span<const WeightSegment> segments, std::vector<float> bias) override;

  void embed(Tensor out, const Weight& table, std::span<const int32_t> tokens) override {
    Timed t(*this, "embed");
    if (t.replaced()) return;
    const GemmWeight& g = cuda_weight(table).gemm;
    cuda::embed(out, g.data, g.type, tokens.data(), stream_);
  }
  void rope_table(float* cos_sin,
                  const RopeSpec& rope,
                  std::span<const int32_t> positions) override {
    Timed t(*this, "rope");
    if (t.replaced()) return;
    cuda::rope_table(cos_sin, rope, positions.data(), static_cast<int64_t>(positions.size()),
                     stream_);
  }
  void rms_norm(const Act& out,
                Tensor x,
                const float* weight,
                float eps,
                const int32_t* rows = nullptr) override {
    run_norm({out.f, x, {}, weight, nullptr, eps, rows, codes_of(out.f)});
  }
  void add_rms_norm(
      const Act& out, Tensor x, Tensor delta, const float* weight, float eps) override {
    run_norm({out.f, x, delta, weight, nullptr, eps, nullptr, codes_of(out.f)});
  }
  void layer_norm(const Act& out,
                  Tensor x,
                  const LayerNormSpec& n,
                  const int32_t* rows = nullptr) override {
    run_norm({out.f, x, {}, n.weight, n.bias, n.eps, rows, codes_of(out.f)});
  }
  void add_layer_norm(const Act& out, Tensor x, Tensor delta, const LayerNormSpec& n) override {
    run_norm({out.f, x, delta, n.weight, n.bias, n.eps, nullptr, codes_of(out.f)});
  }
  void add(Tensor x, Tensor delta) override {
    Timed t(*this, "add");
    if (t.replaced()) return;
    cuda::add(x, delta, stream_);
  }
  void scale(Tensor x, float factor) override {
    Timed t(*this, "scale");
    if (t.replaced()) return;
    cuda::scale(x, factor, stream_);
  }
  void softcap(Tensor x, float cap) override {
    Timed t(*this, "softcap");
    if (t.replaced()) return;
    cuda::softcap(x, cap, stream_);
  }
  void matmul(Tensor out, const Act& x, const Weight& w) override {
    const GemmWeight& g = cuda_weight(w).gemm;
    Timed t(*this, "matmul", g.rows, g.cols);
    Lane& l = lane();
    bool ready = l.quantized == x.f.data && l.quantized_cols == x.f.cols;
    if (g.scale && !ready) l.quantized = nullptr;  // its memory may take x's codes
    if (t.replaced()) return;
    gemm_.run(out, x.f, g, codes(), ready, stream_);
  }
  void finish_qkv(Tensor qkv, const QkvSpec& spec, const BatchView& batch, KvLayer kv) override {
    Timed t(*this, "rope_kv");
    if (t.replaced()) return;
    cuda::finish_qkv(qkv, spec, batch, kv, stream_);
  }
  void attention(const Act& out,
                 Tensor q,
                 const AttentionSpec& spec,
                 const BatchView& batch,
                 KvLayer kv) override;
  void activate(const Act& out, Tensor x, Activation activation) override {
    Timed t(*this, "activate");
    QuantizedRows codes = codes_of(out.f);
    if (!t.replaced()) cuda::activate(out.f, x, activation, codes, stream_);
  }
  void activate_gated(const Act& out, Tensor gate_up, Activation activation) override {
    Timed t(*this, "activate");
    QuantizedRows codes = codes_of(out.f);
    if (!t.replaced()) cuda::activate_gated(out.f, gate_up, activation, codes, stream_);
  }
  void copy_blocks(std::span<const KvLayer> layers, std::span<const BlockCopy> copies) override {
    Timed t(*this, "copy");
    for (const KvLayer& l : layers) cuda::copy_blocks(l, copies, stream_);
  }
  void parallel(int, void (*)(void*, int), void*) override { CHECK(!"host work on a device"); }

  Buffer pinned(size_t bytes) override {
    void* p = nullptr;
    check(cudaMallocHost(&p, std::max<size_t>(bytes, 1)), "pinned memory");
    std::memset(p, 0, bytes);
    return {p, bytes, free_pinned};
  }
  void upload(void* to, const void* from, size_t bytes) override {
    check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream_), "upload");
  }
  void download(void* to, const void* from, size_t bytes) override {
    check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, stream_), "download");
  }
  void reserve_lanes(int lanes, int marks) override {
    for (; static_cast<int>(lanes_.size()) > lanes; lanes_.pop_back()) {
      cudaStreamSynchronize(lanes_.back().stream);
      cudaStreamDestroy(lanes_.back().stream);
    }
    while (static_cast<int>(lanes_.size()) < lanes) add_lane();
    for (size_t i = 1; i < lanes_.size(); ++i) {
      Lane& l = lanes_[i];
      l.quantized = nullptr;
      if (!l.products.data()) l.products = allocate(Gemm::kWorkspace);
      l.rows8 = allocate(lanes_[0].rows8.bytes());
      l.row_scales = allocate(lanes_[0].row_scales.bytes());
    }
    add_marks(marks);
  }
  size_t lane_bytes() const override {
    return Gemm::kWorkspace + lanes_[0].rows8.bytes() + lanes_[0].row_scales.bytes();
  }
  void use_lane(int index) override {
    lane_ = static_cast<size_t>(index);
    stream_ = lane().stream;
    gemm_.use_workspace(lane().products.data());
  }
  void mark(int index) override { check(cudaEventRecord(mark_at(index), stream_), "mark"); }
  void wait(int index) override { check(cudaEventSynchronize(mark_at(index)), "step"); }
  void start_after(int index) override {
    check(cudaStreamWaitEvent(stream_, mark_at(index), 0), "lane");
  }
  float elapsed(int from, int to) override {
    float ms = 0;
    check(cudaEventElapsedTime(&ms, mark_at(from), mark_at(to)), "time");
    return ms;
  }

  void begin_capture() override {
    check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "capture");
  }
  int end_capture() override;
  void abort_capture() noexcept override {
    cudaGraph_t graph = nullptr;
    if (cudaStreamEndCapture(stream_, &graph) == cudaSuccess && graph) cudaGraphDestroy(graph);
    static_cast<void>(cudaGetLastError());
  }
  void launch(int sequence) override {
    check(cudaGraphLaunch(graphs_[static_cast<size_t>(sequence)], stream_), "graph");
  }

  void reserve_sampling(int slots, int vocab) override {
    sampler_.emplace();
    sampler_->reserve(slots, vocab);
  }
  size_t sampling_bytes(int slots, int vocab) const override {
    return Sampler::bytes(slots, vocab);
  }
  void prepare(const Packet& packet,
               const StepArrays& arrays,
               int num_tokens,
               int padded) override {
    Timed t(*this, "prepare");
    if (packet.num_specs > 0) sampler_->open_rows(packet, stream_);
    cuda::prepare(packet, arrays, num_tokens, padded, sampler_->last_tokens(), stream_);
  }
  void sample(const SampleStep& step) override {
    Timed t(*this, "sample");
    if (t.replaced()) return;
    sampler_->sample(step, stream_);
  }
  void reserve_attention(const AttentionSpec& spec, int max_decode, int max_positions) override {
    for (Lane& l : lanes_) l.attention = allocate(attention_bytes(spec, max_decode, max_positions));
    max_positions_ = max_positions;
  }
  size_t attention_bytes(const AttentionSpec& spec,
                         int max_decode,
                         int max_positions) const override {
    return cuda::attention_workspace(spec, max_decode, max_positions, device_.num_sms,
                                     options_.deterministic);
  }
  void tune(int max_tokens, int max_outputs) override;
  size_t free_memory() const override {
    size_t free = 0, total = 0;
    check(cudaMemGetInfo(&free, &total), "memory");
    return free;
  }

  DeviceLimits measure_limits() override;
  void begin_profile() override;
  std::vector<OpTime> end_profile() override;
  void replace_op(const OpTime& op, OpMode mode) override {
    replaced_op_ = op;
    replaced_mode_ = mode;
  }
  double time_captured(const std::function<void()>& queue,
                       std::vector<std::string>* kernels) override;
  void abort_profile() noexcept override {
    profiling_ = false;
    for (cudaEvent_t e : op_events_) cudaEventDestroy(e);
    op_events_.clear();
  }

 private:
  // An event after each op while a profile is taken; an op that is measured by its absence.
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
  void run_norm(const NormArgs& args) {
    Timed t(*this, "norm");
    if (!t.replaced()) cuda::norm(args, stream_);
  }
  void quantize(CudaWeight& w);
  // A stream, and the scratch of what it computes.
  struct Lane {
    cudaStream_t stream = nullptr;
    Buffer attention;
    Buffer products;                  // of lanes but the first, which uses Gemm's own
    Buffer rows8, row_scales;         // a matmul's input in f8
    const void* quantized = nullptr;  // the activations whose codes are there
    int64_t quantized_cols = 0;
  };
  void add_lane() {
    check(cudaStreamCreateWithFlags(&lanes_.emplace_back().stream, cudaStreamNonBlocking),
          "stream");
  }
  Lane& lane() { return lanes_[lane_]; }
  void add_marks(int num) {
    while (static_cast<int>(marks_.size()) < num)
      check(cudaEventCreate(&marks_.emplace_back()), "event");
  }
  cudaEvent_t mark_at(int index) const { return marks_[static_cast<size_t>(index)]; }
  QuantizedRows codes() {
    return {lane().rows8.data(), static_cast<float*>(lane().row_scales.data())};
  }
  // Where the op that writes `out` leaves its codes, for the products that read it; nowhere where
  // none does. Products of few rows read x as it is.
  QuantizedRows codes_of(const Tensor& out) {
    bool wanted = out.rows > kMaxSkinny && out.stride == out.cols && f8_inputs_.contains(out.cols);
    Lane& l = lane();
    if (wanted) {
      l.quantized = out.data;
      l.quantized_cols = out.cols;
      return codes();
    }
    if (l.quantized == out.data) l.quantized = nullptr;
    return {};
  }

  struct Gpu {
    explicit Gpu(const CudaOptions& o) {
      check(cudaSetDevice(o.index), "device");
      cudaDeviceProp p{};
      check(cudaGetDeviceProperties(&p, o.index), "properties");
      name = p.name;
      num_sms = p.multiProcessorCount;
      f8 = p.major == 9;
      if (std::string why = why_not(p); !why.empty()) throw std::runtime_error(name + " " + why);
      if (o.fp8_weights && !f8)
        throw std::runtime_error("weights in fp8 need a Hopper GPU, which " + name + " is not");
    }
    std::string name;
    int num_sms = 0;
    bool f8 = false;  // products with a scale per row
  };

  CudaOptions options_;
  Gpu device_;
  std::vector<Lane> lanes_;
  size_t lane_ = 0;                // the one in use
  cudaStream_t stream_ = nullptr;  // its stream
  Gemm gemm_;
  std::optional<Uploader> uploader_;
  std::optional<Sampler> sampler_;
  int max_positions_ = 0;  // that attention's memory is for
  std::vector<cudaEvent_t> marks_;
  std::vector<cudaGraphExec_t> graphs_;
  std::vector<LoadedWeight> loaded_;  // for tune()
  std::set<int64_t> f8_inputs_;       // widths of what weights in f8 read, once there is memory
  bool profiling_ = false;
  std::vector<OpTime> ops_;
  std::vector<cudaEvent_t> op_events_;  // one before the first, one after each
  OpTime replaced_op_{};
  OpMode replaced_mode_ = OpMode::run;
  std::vector<size_t>* op_ends_ = nullptr;  // while a graph is captured for names: nodes after each
};

Weight CudaBackend::load(std::span<const WeightSegment> segments, std::vector<float> bias) {
  if (!uploader_) uploader_.emplace(stream_);
  Weight w;
  for (const WeightSegment& s : segments) w.rows += s.tensor->rows;
  w.cols = segments[0].tensor->cols;
  DType type = options_.activations;
  auto data = std::make_unique<CudaWeight>();
  size_t row = static_cast<size_t>(w.cols) * dtype_bytes(type);
  data->data = allocate(static_cast<size_t>(w.rows) * row);
  auto* to = static_cast<std::byte*>(data->data.data());
  for (const WeightSegment& s : segments) {
    uploader_->convert(to, type, s);
    to += static_cast<size_t>(s.tensor->rows) * row;
  }
  data->gemm = {data->data.data(), type, w.rows, w.cols};
  if (!bias.empty()) {
    data->bias_f32 = vector(bias);
    TensorInfo info{"bias", Format::f32, 1, w.rows, bias.size() * 4};
    data->bias = allocate(bias.size() * dtype_bytes(type));
    uploader_->convert(data->bias.data(), type,
                       {&info, std::as_bytes(std::span<const float>(bias)), nullptr});
    data->gemm.bias = data->bias.data();
    data->gemm.bias_type = type;
    data->gemm.bias_f32 = static_cast<const float*>(data->bias_f32.data());
  }
  if (options_.fp8_weights && segments[0].tensor->name.starts_with("blk.") && w.cols % 16 == 0 &&
      w.rows % 16 == 0)
    quantize(*data);
  w.act = kActF32;
  w.bytes = data->data.bytes() + data->scale.bytes();
  loaded_.push_back({data->gemm, segments[0].tensor->name.starts_with("blk.")});
  w.data = std::move(data);
  return w;
}

// The embedding and the output matrix stay as they are: they are few and matter most.
void CudaBackend::quantize(CudaWeight& w) {
  GemmWeight& g = w.gemm;
  Buffer codes = allocate(static_cast<size_t>(g.rows * g.cols));
  w.scale = allocate(static_cast<size_t>(g.rows) * sizeof(float));
  Tensor from{w.data.data(), g.type, g.rows, g.cols, g.cols};
  quantize_rows({codes.data(), static_cast<float*>(w.scale.data())}, from, stream_);
  check(cudaStreamSynchronize(stream_), "quantize");
  w.data = std::move(codes);
  g.data = w.data.data();
  g.type = DType::f8;
  g.scale = static_cast<const float*>(w.scale.data());
}

void CudaBackend::attention(
    const Act& out, Tensor q, const AttentionSpec& spec, const BatchView& batch, KvLayer kv) {
  Timed t(*this, "attention");
  if (lane().quantized == out.f.data) lane().quantized = nullptr;
  AttentionArgs a{out.f.data,
                  out.f.stride,
                  q.data,
                  q.stride,
                  q.type,
                  kv.k,
                  kv.v,
                  kv.type,
                  kv.block_size,
                  spec,
                  batch.tables + kv.table_at,
                  batch.table_stride,
                  batch.positions,
                  batch.row_slot,
                  options_.deterministic,
                  max_positions_,
                  lane().attention.data(),
                  device_.num_sms};
  auto num_decode = static_cast<size_t>(batch.num_decode);
  if (batch.num_decode == batch.num_tokens && cuda::decode_makes_codes(a, batch.num_decode))
    a.codes = codes_of(out.f);
  if (t.replaced()) return;
  if (num_decode > 0) cuda::attend_decode(a, batch.num_decode, stream_);
  if (batch.slices.size() > num_decode) {
    cuda::attend_prefill(a, batch.slices.subspan(num_decode), batch.device_slices + num_decode,
                         stream_);
  }
}

int CudaBackend::end_capture() {
  cudaGraph_t graph = nullptr;
  check(cudaStreamEndCapture(stream_, &graph), "capture");
  cudaGraphExec_t exec = nullptr;
  cudaError_t e = cudaGraphInstantiate(&exec, graph, 0);
  cudaGraphDestroy(graph);
  check(e, "graph");
  graphs_.push_back(exec);
  return static_cast<int>(graphs_.size()) - 1;
}

// Which of a shape's products are timed: as the models run them.
struct TunedShape {
  std::vector<GemmWeight> weights;  // several, so that they do not stay in the cache
  bool f32_out = false;
  int most = 0;  // rows of x
};

// Groups the weights by shape. Products of the output matrix have few rows and put out f32, layers'
// put out either type where the backend has two.
std::vector<TunedShape> tuned_shapes(const std::vector<LoadedWeight>& loaded,
                                     bool both_types,
                                     int max_tokens,
                                     int max_outputs) {
  std::map<std::tuple<int64_t, int64_t, bool, bool>, TunedShape> shapes;
  for (const auto& [w, layer] : loaded) {
    for (bool f32_out : {false, true}) {
      if (layer ? f32_out && !both_types : !f32_out) continue;
      TunedShape& s = shapes[{w.rows, w.cols, w.bias != nullptr, f32_out}];
      s.weights.push_back(w);
      s.f32_out = f32_out;
      s.most = layer ? max_tokens : max_outputs;
    }
  }
  std::vector<TunedShape> list;
  for (auto& [key, shape] : shapes) list.push_back(std::move(shape));
  return list;
}

// Outputs go to scratch memory that is freed again; where that is scarce, large batches stay
// untimed.
void CudaBackend::tune(int max_tokens, int max_outputs) {
  if (uploader_) uploader_.reset();  // staging memory is free again: loading is over
  if (options_.fp8_weights) {
    Lane& l = lane();
    l.quantized = nullptr;
    int64_t most = 0;
    for (const LoadedWeight& w : loaded_) {
      if (w.gemm.type != DType::f8) continue;
      most = std::max(most, w.gemm.cols);
      f8_inputs_.insert(w.gemm.cols);
    }
    l.rows8 = allocate(static_cast<size_t>(most) * static_cast<size_t>(max_tokens));
    l.row_scales = allocate(static_cast<size_t>(max_tokens) * sizeof(float));
  }
  if (!options_.tune || options_.activations == DType::f32) return;
  constexpr int kMostTimed = 8192;
  int most = std::min(max_tokens, kMostTimed);
  std::vector<TunedShape> shapes;
  int64_t most_in = 0, most_out = 0;
  for (;; most /= 2) {
    shapes = tuned_shapes(loaded_, output_type() != activation_type(), most, max_outputs);
    most_in = most_out = 0;
    for (const TunedShape& s : shapes) {
      most_in = std::max(most_in, s.most * s.weights[0].cols);
      most_out = std::max(most_out, s.most * s.weights[0].rows);
    }
    if (static_cast<size_t>(most_in + most_out) * 4 < free_memory() / 2) break;
    if (most < 64) return;
  }
  Buffer x = allocate(static_cast<size_t>(most_in) * 4);
  Buffer out = allocate(static_cast<size_t>(most_out) * 4);
  RandomSource source{7, 1};
  TensorInfo info{"x", Format::bf16, 1, most_in, static_cast<size_t>(most_in) * 2};
  Uploader(stream_).convert(x.data(), options_.activations, {&info, {}, &source});
  Tensor input{x.data(), options_.activations, 1, most_in, most_in};
  for (const TunedShape& s : shapes)
    gemm_.tune(s.weights, s.f32_out, s.most, input, out.data(), codes(), stream_);
  check(cudaStreamSynchronize(stream_), "tune");
  gemm_.save_choices();
}

void CudaBackend::end_op(const OpTime& op) noexcept {
  cudaEvent_t e = nullptr;
  if (cudaEventCreate(&e) != cudaSuccess) return;
  cudaEventRecord(e, stream_);
  op_events_.push_back(e);
  ops_.push_back(op);
}

void CudaBackend::begin_profile() {
  hold(stream_, 0.02);
  cudaEvent_t e = nullptr;
  check(cudaEventCreate(&e), "event");
  check(cudaEventRecord(e, stream_), "event");
  op_events_ = {e};
  ops_.clear();
  profiling_ = true;
}

std::vector<OpTime> CudaBackend::end_profile() {
  profiling_ = false;
  check(cudaStreamSynchronize(stream_), "profile");
  for (size_t i = 0; i < ops_.size(); ++i) {
    float ms = 0;
    check(cudaEventElapsedTime(&ms, op_events_[i], op_events_[i + 1]), "time");
    ops_[i].seconds = ms * 1e-3;
  }
  for (cudaEvent_t e : op_events_) cudaEventDestroy(e);
  op_events_.clear();
  return std::move(ops_);
}

bool CudaBackend::run_replaced(const OpTime& op) {
  const OpTime& r = replaced_op_;
  if (std::string_view(r.op) != op.op || r.rows != op.rows || r.cols != op.cols) return false;
  if (replaced_mode_ == OpMode::empty) nothing(stream_);
  return true;
}

void CudaBackend::count_nodes() noexcept { op_ends_->push_back(num_captured_nodes(stream_)); }

double CudaBackend::time_captured(const std::function<void()>& queue,
                                  std::vector<std::string>* kernels) {
  constexpr int kWarm = 3, kTimed = 12;
  std::vector<size_t> ends;
  begin_capture();
  try {
    if (kernels) op_ends_ = &ends;
    queue();
    op_ends_ = nullptr;
  } catch (...) {
    op_ends_ = nullptr;
    abort_capture();
    throw;
  }
  cudaGraph_t graph = nullptr;
  check(cudaStreamEndCapture(stream_, &graph), "capture");
  if (kernels) *kernels = kernel_names(graph, ends);
  cudaGraphExec_t exec = nullptr;
  cudaError_t e = cudaGraphInstantiate(&exec, graph, 0);
  cudaGraphDestroy(graph);
  check(e, "graph");
  std::vector<double> times;
  cudaEvent_t begin = nullptr, end = nullptr;
  e = cudaEventCreate(&begin);
  if (e == cudaSuccess) e = cudaEventCreate(&end);
  for (int i = 0; i < kWarm + kTimed && e == cudaSuccess; ++i) {
    cudaEventRecord(begin, stream_);
    e = cudaGraphLaunch(exec, stream_);
    cudaEventRecord(end, stream_);
    if (e == cudaSuccess) e = cudaEventSynchronize(end);
    float ms = 0;
    if (e == cudaSuccess) e = cudaEventElapsedTime(&ms, begin, end);
    if (i >= kWarm) times.push_back(ms * 1e-3);
  }
  cudaEventDestroy(end);
  cudaEventDestroy(begin);
  cudaGraphExecDestroy(exec);
  check(e, "graph");
  std::ranges::nth_element(times, times.begin() + kTimed / 2);
  return times[kTimed / 2];
}

// On random data: zeros flatter. The best of several, each long enough to be past its start.
DeviceLimits CudaBackend::measure_limits() {
  constexpr int64_t kSide = 8192;
  constexpr size_t kBytes = size_t{2} << 30;
  DeviceLimits limits;
  auto best = [&](auto&& run) {
    double least = 0;
    for (int i = 0; i < 6; ++i) {
      mark(0);
      run();
      mark(1);
      wait(1);
      double s = elapsed(0, 1) * 1e-3;
      if (i > 0 && (least == 0 || s < least)) least = s;
    }
    return least;
  };
  {
    Buffer from = allocate(kBytes), to = allocate(kBytes);
    limits.copy =
        2.0 * kBytes / best([&] {
          check(cudaMemcpyAsync(to.data(), from.data(), kBytes, cudaMemcpyDeviceToDevice, stream_),
                "copy");
        });
    limits.read = kBytes / best([&] { read_all(from.data(), kBytes, to.data(), stream_); });
  }
  if (options_.activations == DType::f32) return limits;
  size_t bytes = kSide * kSide * 2;
  Buffer a = allocate(bytes), b = allocate(bytes), c = allocate(bytes);
  RandomSource source{11, kSide};
  TensorInfo info{"random", Format::bf16, kSide, kSide, bytes};
  {
    Uploader uploader(stream_);
    uploader.convert(a.data(), options_.activations, {&info, {}, &source});
    source.key = 12;
    uploader.convert(b.data(), options_.activations, {&info, {}, &source});
  }
  GemmWeight w{a.data(), options_.activations, kSide, kSide};
  Tensor x{b.data(), options_.activations, kSide, kSide, kSide};
  Tensor out{c.data(), options_.activations, kSide, kSide, kSide};
  auto rate = [&](const GemmWeight& weight, const Tensor& in, const QuantizedRows& codes) {
    gemm_.tune_bucket({weight}, out, in, codes, stream_);
    return 2.0 * kSide * kSide * kSide * 4 / best([&] {
             for (int i = 0; i < 4; ++i) gemm_.run(out, in, weight, codes, true, stream_);
           });
  };
  limits.gemm = rate(w, x, {});
  if (!device_.f8) return limits;
  // With a scale per row, as models run it, and with none: the faster is the device's rate.
  Buffer a8 = allocate(bytes / 2), b8 = allocate(bytes / 2), scales = allocate(2 * kSide * 4);
  auto* scale = static_cast<float*>(scales.data());
  QuantizedRows w8{a8.data(), scale}, x8{b8.data(), scale + kSide};
  quantize_rows(w8, Tensor{a.data(), options_.activations, kSide, kSide, kSide}, stream_);
  quantize_rows(x8, x, stream_);
  GemmWeight plain{a8.data(), DType::f8, kSide, kSide}, scaled = plain;
  scaled.scale = w8.scale;
  Tensor codes{b8.data(), DType::f8, kSide, kSide, kSide};
  limits.gemm_f8 = rate(scaled, x, x8);
  try {
    limits.gemm_f8 = std::max(limits.gemm_f8, rate(plain, codes, {}));
  } catch (const std::exception&) {
    // This cuBLAS has no such product.
  }
  return limits;
}

Device* open(const CudaOptions& options, char* error, size_t error_bytes) {
  try {
    return new CudaBackend(options);
  } catch (const std::bad_alloc&) {
    std::snprintf(error, error_bytes, "no free memory on this GPU: stop what else uses it");
    return nullptr;
  } catch (const std::exception& e) {
    std::snprintf(error, error_bytes, "%s", e.what());
    return nullptr;
  }
}

int num_gpus() {
  int num = 0;
  const cudaError_t failed = cudaGetDeviceCount(&num);
  if (failed == cudaSuccess) return num;
  static_cast<void>(cudaGetLastError());
  return -static_cast<int>(failed);
}

bool usable(int index) {
  cudaDeviceProp p{};
  return cudaGetDeviceProperties(&p, index) == cudaSuccess && why_not(p).empty();
}

}  // namespace

}  // namespace sluice::cuda

extern "C" __attribute__((visibility("default"))) const sluice::CudaExports* sluice_cuda() {
  static const sluice::CudaExports exports{sluice::kCudaPluginVersion, sluice::cuda::num_gpus,
                                           sluice::cuda::usable, sluice::cuda::open};
  return &exports;
}
