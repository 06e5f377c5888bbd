#include "runtime/placement.h"

#include <algorithm>

#include "base/str.h"
#include "base/thread_pool.h"
#include "runtime/stream_plan.h"

namespace sluice {

namespace {

constexpr int kGpuBudget = 8192;  // tokens per step: what fills a GPU
// The same where a step's prompts bring the weights of layers with them: those of half a 7B model
// take longer than 4,096 rows compute.
constexpr int kStreamBudget = 4096;
constexpr int kMostHeadDim = 256;

// Rows of a step that runs prompts and decodes, by weights in the layers, for `serve` on a GPU. As
// measured by scripts/bench_mixed.py: the fewest rows that cost less than 5 % of the throughput
// where p99 between tokens is above 30 ms; 0: the whole budget, also where nothing was measured.
struct MixedBudget {
  double max_weights;
  int rows;
};
constexpr MixedBudget kGpuMixedBudgets[] = {
    {2e9, 0},
    {5e9, 0},
    {20e9, 1024},
    {1e15, 0},
};

double weights_in_layers(const ModelShape& m) {
  double head = m.head_dim, q = m.num_heads * head, kv = m.num_kv_heads * head;
  return m.hidden * (2 * q + 2 * kv + 3.0 * m.ffn) * m.num_layers;
}

int gpu_mixed_budget(const ModelShape& m) {
  for (const MixedBudget& b : kGpuMixedBudgets)
    if (weights_in_layers(m) <= b.max_weights) return b.rows;
  return 0;
}

// Models whose steps take at most some 5 % longer if bits do not depend on the batch, by weights in
// the layers, as measured (docs/performance.md): smaller ones lose more, larger ones too.
constexpr double kLeastDeterministic = 5e9, kMostDeterministic = 10e9;

// Prompt tokens beside decodes on a CPU. A core soon computes longer than memory needs to bring the
// weights, so every token more makes everybody's next one later; the more cores there are, the more
// tokens it takes.
int cpu_chunk(const EngineOptions& o) { return std::max(32, 16 * num_threads(o)); }

// Weights of a GPU where the user names no type: as they are, quantised ones in f16, which holds
// their values best. f32 has no fast matrix product; Gemma's activations outgrow f16.
DType natural_type(const Checkpoint& checkpoint) {
  size_t bf16 = 0, other = 0;
  for (const TensorInfo& t : checkpoint.tensors()) {
    if (t.rows > 1) (t.format == Format::bf16 ? bf16 : other) += t.bytes;
  }
  const std::string* arch = checkpoint.meta().string("general.architecture");
  bool wide = arch && arch->starts_with("gemma");
  return wide || bf16 > other ? DType::bf16 : DType::f16;
}

// What --quantize can do depends on where the weights go.
Result<void> check_quantize(const EngineOptions& o) {
  const bool gpu = o.device.is_gpu(), cpu = o.device.is_cpu();
  const std::string kind = name_of(kQuantizes, o.quantize);
  if (cpu && o.quantize == Quantize::fp8)
    return Error{400, "--quantize fp8 is for a GPU, and this runs on the CPU: use w8a8, w4 or u8"};
  if (gpu && (o.quantize == Quantize::w4 || o.quantize == Quantize::u8))
    return Error{400, strf("--quantize %s is for the CPU (--device cpu): on a GPU use fp8 or w8a8",
                           quote(kind).c_str())};
  if (!cpu && !gpu && o.quantize != Quantize::none)
    return Error{400, strf("--quantize %s: %s runs in the file's formats", quote(kind).c_str(),
                           quote(o.device.name()).c_str())};
  if (gpu && o.quantize != Quantize::w8a8 && !o.quantize_exclude.empty())
    return Error{400, "--quantize-exclude goes with --quantize w8a8 on a GPU"};
  if (!cpu && !gpu && !o.quantize_exclude.empty())
    return Error{400, "--quantize-exclude is for the CPU and GPUs (--device cpu, cuda)"};
  return {};
}

Result<void> check_attention(const EngineOptions& o) {
  if (o.attention == AttentionVia::tiled || o.device.is_cpu()) return {};
  return Error{400, strf("--attention %s is for the CPU (--device cpu): others have one way",
                         name_of(kAttentions, o.attention))};
}

}  // namespace

std::string why_no_gpu(const GpuFacts& f) {
  constexpr int kInsufficientDriver = -35;  // cudaErrorInsufficientDriver
  if (f.usable || !f.expected) return "";
  if (!f.driver) return "an NVIDIA GPU is here, but its driver is not loaded";
  if (!f.has_plugin)
    return "this build has no CUDA part (libsluice_cuda.so): build it where nvcc is";
  if (!f.plugin_error.empty()) return f.plugin_error;
  if (f.num == kInsufficientDriver) {
    return strf("the NVIDIA driver %sis too old for this build: update it",
                f.driver_version.empty() ? "" : (f.driver_version + " ").c_str());
  }
  if (f.num < 0) return strf("the NVIDIA driver does not start (CUDA error %d)", -f.num);
  if (f.num == 0) return "the NVIDIA driver shows no GPU (CUDA_VISIBLE_DEVICES?)";
  return f.why_not;
}

int num_threads(const EngineOptions& o) {
  return o.threads ? *o.threads : static_cast<int>(usable_cores().size());
}

DeviceChoice resolve_device(const DeviceChoice& asked) {
  DeviceChoice d = asked;
  if (d.kind == DeviceChoice::Kind::any)
    d.kind = find_gpu().usable ? DeviceChoice::Kind::cuda : DeviceChoice::Kind::cpu;
  if (d.is_gpu() && !d.index) d.index = freest_gpu();
  return d;
}

void resolve_step_sizes(EngineOptions& o, const ModelShape* shape) {
  if (!o.step_sizes) return;
  const StepSizes& asked = *o.step_sizes;
  SchedulerConfig& s = o.scheduler;
  // Layers on the CPU set the pace of a step, unless prompts run through the GPU.
  const bool split = o.device.is_gpu() && o.gpu_layers, streams = split && streams_prompts(o);
  const bool gpu = o.device.is_gpu() && !split,
             tuned = asked.serves && !asked.chunk && !s.slo.any();
  const int budget = streams ? kStreamBudget : SchedulerConfig().budget;
  s.budget = asked.budget.value_or(gpu ? kGpuBudget : budget);
  s.chunk = asked.chunk.value_or(tuned && !gpu && !streams ? cpu_chunk(o) : 0);
  s.mixed_budget =
      asked.mixed_budget.value_or(tuned && gpu && shape ? gpu_mixed_budget(*shape) : 0);
}

Result<void> choose_gpu(EngineOptions& o, const ModelShape& shape) {
  o.device.kind = DeviceChoice::Kind::cuda;
  if (o.gpu_layers && o.gpu_layers->num == 0)
    return Error{400, "--gpu-layers 0 is the CPU alone: leave out what is for a GPU"};
  if (o.gpu_layers && o.gpu_layers->num >= shape.num_layers) o.gpu_layers.reset();
  if (shape.head_dim > kMostHeadDim)
    return Error{400, strf("heads of %d dimensions: a GPU takes up to %d; use --device cpu",
                           shape.head_dim, kMostHeadDim)};
  if (o.full_sort)
    return Error{400,
                 "--full-sort is for the CPU (--device cpu): a GPU samples by its own kernels"};
  if (auto ok = check_attention(o); !ok) return ok.error();
  resolve_step_sizes(o, &shape);
  if (o.gpu_weights == GpuWeights::stored && o.dtype == DType::f32)
    return Error{400, "--gpu-weights stored goes with --dtype f16 or bf16, not f32"};
  return check_quantize(o);
}

int num_host_layers(const EngineOptions& o, const ModelShape& shape) {
  if (!o.device.is_gpu() || !o.gpu_layers || !o.gpu_layers->num) return 0;
  return std::max(0, shape.num_layers - *o.gpu_layers->num);
}

Result<void> choose_split(EngineOptions& o) {
  const SchedulerConfig& s = o.scheduler;
  const char* refused = nullptr;
  if (o.pipeline_given && s.pipeline != Pipeline::sync) refused = "--pipeline other than sync";
  if (s.preempt == Preempt::swap) refused = "--preempt swap";
  if (o.prefix_host_bytes > 0) refused = "--prefix-host";
  if (o.prefix_disk_bytes > 0) refused = "--prefix-disk";
  if (s.mapped()) refused = "--kv-allocator virtual";
  if (o.exporter) refused = "--role";
  if (refused)
    return Error{400, strf("--gpu-layers %s leaves layers on the CPU, and does not go with %s: "
                           "leave one of them out",
                           o.gpu_layers->name().c_str(), refused)};
  o.scheduler.pipeline = Pipeline::sync;
  return {};
}

Result<void> choose_device(EngineOptions& o, const ModelShape& shape) {
  if (!o.stream_prompts && !o.gpu_layers)
    return Error{400, "--no-stream-prompts is for --gpu-layers: add that, or leave it out"};
  if (o.gpu_layers && o.gpu_layers->num == 0) {
    if (o.device.is_gpu())
      return Error{400, strf("--gpu-layers 0 is the CPU alone, and --device says %s: leave one out",
                             o.device.name().c_str())};
    if (o.device.kind == DeviceChoice::Kind::any) o.device.kind = DeviceChoice::Kind::cpu;
    o.gpu_layers.reset();
  }
  const bool any = o.device.kind == DeviceChoice::Kind::any;
  o.device = resolve_device(o.device);
  if (o.device.is_gpu()) return choose_gpu(o, shape);
  if (any && o.gpu_layers && !o.gpu_layers->num) o.gpu_layers.reset();  // as many as fit: none
  resolve_step_sizes(o, &shape);
  if (o.dtype)
    return Error{400, strf("--dtype %s is for a GPU, and this runs on the CPU, in the file's types",
                           name_of(kDtypes, o.dtype))};
  if (o.gpu_weights)
    return Error{400, strf("--gpu-weights %s is for a GPU: the CPU keeps the file's formats",
                           name_of(kGpuWeights, o.gpu_weights))};
  if (o.gpu_layers)
    return Error{400, strf("--gpu-layers %s needs a GPU, and --device comes to %s",
                           o.gpu_layers->name().c_str(), quote(o.device.name()).c_str())};
  if (o.gpu_memory)
    return Error{400, strf("--gpu-memory is for a GPU, and this runs on %s",
                           quote(o.device.name()).c_str())};
  if (auto ok = check_attention(o); !ok) return ok.error();
  return check_quantize(o);
}

Result<LoadQuant> weight_quant(const EngineOptions& o, const Checkpoint& checkpoint) {
  const Quantize kind = o.quantize == Quantize::fp8 ? Quantize::none : o.quantize;
  return load_quant(name_of(kQuantizes, kind), o.quantize_exclude, checkpoint.tensors());
}

DType gpu_type(const EngineOptions& o, const Checkpoint& checkpoint) {
  return o.dtype.value_or(natural_type(checkpoint));
}

bool kv_in_bytes(const EngineOptions& o) {
  return o.kv_type && (o.kv_type->type == DType::f8 || o.kv_type->type == DType::i8);
}

void resolve_deterministic(EngineOptions& o, const ModelShape& shape, const Checkpoint& file) {
  if (!o.device.is_gpu() || o.deterministic || o.fast_products) return;
  const double weights = weights_in_layers(shape);
  // With weights in fp8 it costs more.
  const bool type = o.quantize == Quantize::w8a8 ||
                    (o.quantize == Quantize::none && gpu_type(o, file) != DType::f32);
  // Attention by spans over 8-bit K and V costs more.
  o.deterministic = o.deterministic_by_default =
      type && !kv_in_bytes(o) && o.gpu_weights != GpuWeights::stored && !o.gpu_layers &&
      weights >= kLeastDeterministic && weights <= kMostDeterministic;
}

Result<CudaOptions> cuda_options(const EngineOptions& o, const Checkpoint& checkpoint) {
  Result<LoadQuant> quant = weight_quant(o, checkpoint);
  if (!quant) return quant.error();
  CudaOptions c;
  c.index = o.device.index.value_or(0);
  c.deterministic = o.deterministic;
  c.by_default = o.deterministic_by_default;
  c.fuse_layers = o.fuse_layers;
  // Slots without tables have no blocks in common.
  if (!o.cascade || o.scheduler.allocator == KvAllocator::virtual_) c.least_shared = 0;
  c.fp8_weights = o.quantize == Quantize::fp8;
  c.stored_weights = o.gpu_weights == GpuWeights::stored;
  c.int8 = std::move(*quant);
  c.activations = gpu_type(o, checkpoint);
  return c;
}

}  // namespace sluice
