#include "runtime/placement.h"

#include <algorithm>
#include <charconv>

#include "base/str.h"
#include "base/thread_pool.h"

namespace sluice {

namespace {

constexpr int kGpuBudget = 8192;  // tokens per step: what fills a GPU
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

int gpu_mixed_budget(const ModelShape& m) {
  double head = m.head_dim, q = m.num_heads * head, kv = m.num_kv_heads * head;
  double layer = m.hidden * (2 * q + 2 * kv + 3.0 * m.ffn);
  for (const MixedBudget& b : kGpuMixedBudgets)
    if (layer * m.num_layers <= b.max_weights) return b.rows;
  return 0;
}

// Prompt tokens beside decodes on a CPU. A core soon computes longer than memory needs to bring the
// weights, so every token more makes everybody's next one later; the more cores there are, the more
// tokens it takes.
int cpu_chunk(const EngineOptions& o) {
  int threads = o.threads > 0 ? o.threads : static_cast<int>(usable_cores().size());
  return std::max(32, 16 * threads);
}

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
  const bool gpu = o.backend.starts_with("cuda"), cpu = o.backend == "cpu";
  const std::string& kind = o.quantize;
  if (cpu && kind == "fp8")
    return Error{400, "--quantize fp8 is for a GPU, and this runs on the CPU: use w8a8, w4 or u8"};
  if (gpu && kind != "none" && kind != "fp8")
    return Error{400, strf("--quantize %s is for the CPU (--device cpu): on a GPU use fp8",
                           quote(kind).c_str())};
  if (!cpu && !gpu && kind != "none")
    return Error{400, strf("--quantize %s: %s runs in the file's formats", quote(kind).c_str(),
                           quote(o.backend).c_str())};
  if (!cpu && !o.quantize_exclude.empty())
    return Error{400, "--quantize-exclude is for the CPU (--device cpu)"};
  return {};
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
  return "this build has no kernels for this GPU";
}

Result<void> choose_gpu(EngineOptions& o, const ModelShape& shape) {
  if (!o.backend.starts_with("cuda")) o.backend = "cuda";
  if (shape.head_dim > kMostHeadDim)
    return Error{400, strf("heads of %d dimensions: a GPU takes up to %d; use --device cpu",
                           shape.head_dim, kMostHeadDim)};
  if (o.default_budget) o.scheduler.budget = kGpuBudget;
  if (o.default_mixed) o.scheduler.mixed_budget = gpu_mixed_budget(shape);
  return check_quantize(o);
}

Result<void> choose_device(EngineOptions& o, const ModelShape& shape) {
  if (o.backend == "auto") o.backend = find_gpu().usable ? "cuda" : "cpu";
  if (o.backend == "cuda" || o.backend.starts_with("cuda:")) return choose_gpu(o, shape);
  if (o.backend != "cpu" && o.backend != "ref")
    return Error{400,
                 strf("--device %s: use auto, cpu, cuda, cuda:N or ref", quote(o.backend).c_str())};
  if (o.default_chunk) o.scheduler.chunk = cpu_chunk(o);
  if (o.dtype != "auto")
    return Error{400, strf("--dtype %s is for a GPU, and this runs on the CPU, in the file's types",
                           o.dtype.c_str())};
  return check_quantize(o);
}

Result<CudaOptions> cuda_options(const EngineOptions& o, const Checkpoint& checkpoint) {
  CudaOptions c;
  if (o.backend.starts_with("cuda:")) {
    std::string_view digits = std::string_view(o.backend).substr(5);
    auto [end, failed] = std::from_chars(digits.data(), digits.data() + digits.size(), c.index);
    if (failed != std::errc() || end != digits.data() + digits.size())
      return Error{400, strf("--device %s: use cuda:0, cuda:1, ...", quote(o.backend).c_str())};
  }
  c.deterministic = o.deterministic;
  c.fp8_weights = o.quantize == "fp8";
  c.activations = natural_type(checkpoint);
  if (o.dtype == "f16") c.activations = DType::f16;
  if (o.dtype == "bf16") c.activations = DType::bf16;
  if (o.dtype == "f32") c.activations = DType::f32;
  if (o.dtype != "auto" && o.dtype != "f16" && o.dtype != "bf16" && o.dtype != "f32")
    return Error{400, strf("--dtype %s: use auto, bf16, f16 or f32", quote(o.dtype).c_str())};
  return c;
}

}  // namespace sluice
