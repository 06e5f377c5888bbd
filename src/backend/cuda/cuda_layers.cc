// All layers of a step of few decodes in one kernel (decode_stack.cuh), where that is faster. Not
// in deterministic mode: more rows go through other kernels, whose sums have other bits.
#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <vector>

#include "backend/cuda/cuda_backend.cuh"
#include "backend/cuda/decode_stack.cuh"

namespace sluice::cuda {

namespace {

// With more rows the kernels of single ops are as fast (docs/performance.md).
constexpr int kMostRows = 4;
constexpr int kMostRowsWide = 1;  // of hidden sizes above kNarrow
constexpr int kNarrow = 1024;
// Sequences may become so long that attention wants more blocks than this kernel gives it.
constexpr int kMostPositions = 40960;

constexpr int kMaxGpus = 64;
// The one backend of each GPU that may run these kernels: those of two could wait for each other.
std::atomic<const CudaBackend*> owners[kMaxGpus];

// Processes that share a GPU through MPS run at once, and their blocks could wait for each other.
bool shares_gpu() {
  using std::filesystem::path;
  const char* pipes = std::getenv("CUDA_MPS_PIPE_DIRECTORY");
  std::error_code none;
  return exists((pipes ? path(pipes) : path("/tmp") / "nvidia-mps") / "control", none);
}

bool is_plain(const Weight& w, DType type, bool may_have_bias) {
  const CudaWeight& c = cuda_weight(w);
  return c.parts.empty() && c.gemm.type == type && (may_have_bias || !c.gemm.bias_f32);
}

// The shape that all layers have; false: they differ, or the kernel has no such op.
bool shape_of(std::span<const DecodeLayer> layers, DType type, StackShape* shape) {
  const DecodeLayer& l = layers[0];
  const AttentionSpec& a = l.spec.attention;
  StackShape& s = *shape;
  s.type = type;
  s.hidden = static_cast<int>(l.qkv->cols), s.ffn = static_cast<int>(l.down->cols);
  s.heads = a.num_heads, s.kv_heads = a.num_kv_heads, s.head_dim = a.head_dim;
  s.rope_dims = l.spec.rope->dims, s.interleaved = l.spec.rope->interleaved;
  s.scale = a.scale, s.eps = l.spec.eps;
  s.activation = l.activation;
  s.block_size = l.kv.block_size;
  s.biases = cuda_weight(*l.qkv).gemm.bias_f32 != nullptr;
  s.head_norms = l.spec.q_norm != nullptr;
  return std::all_of(layers.begin(), layers.end(), [&](const DecodeLayer& d) {
    const AttentionSpec& at = d.spec.attention;
    return is_plain(*d.qkv, type, true) && is_plain(*d.o, type, false) &&
           is_plain(*d.gate_up, type, false) && is_plain(*d.down, type, false) &&
           d.kv.type == type && d.kv.table_at == l.kv.table_at && at.window == 0 &&
           at.softcap == 0 && at.scale == a.scale && d.spec.cos_sin == l.spec.cos_sin &&
           (cuda_weight(*d.qkv).gemm.bias_f32 != nullptr) == s.biases &&
           (d.spec.q_norm != nullptr) == s.head_norms && (d.spec.k_norm != nullptr) == s.head_norms;
  });
}

StackLayer stack_layer(const DecodeLayer& l) {
  const GemmWeight& qkv = cuda_weight(*l.qkv).gemm;
  return {qkv.data,
          cuda_weight(*l.o).gemm.data,
          cuda_weight(*l.gate_up).gemm.data,
          cuda_weight(*l.down).gemm.data,
          qkv.bias_f32,
          l.attn_norm,
          l.ffn_norm,
          l.spec.q_norm,
          l.spec.k_norm,
          l.kv.k,
          l.kv.v};
}

}  // namespace

bool CudaBackend::owns_stack() const {
  if (options_.index < 0 || options_.index >= kMaxGpus) return false;
  static const bool shared = shares_gpu();
  if (shared) return false;
  const CudaBackend* owner = nullptr;
  auto& place = owners[options_.index];
  return place.compare_exchange_strong(owner, this) || owner == this;
}

void CudaBackend::disown_stack() {
  if (options_.index < 0 || options_.index >= kMaxGpus) return;
  const CudaBackend* owner = this;
  owners[options_.index].compare_exchange_strong(owner, nullptr);
}

int CudaBackend::max_decode_rows() const {
  const bool may = has_stack() && options_.fuse_layers && !options_.deterministic &&
                   options_.activations != DType::f32 && lanes_.size() == 1 &&
                   max_positions_ <= kMostPositions && owns_stack();
  return may ? kMostRows : 0;
}

bool CudaBackend::decode_layers(const DecodeStep& step, std::span<const DecodeLayer> layers) {
  const int rows = step.batch.num_tokens, num = static_cast<int>(layers.size());
  StackShape shape;
  if (rows == 0 || rows > max_decode_rows() || layers.empty() || step.batch.prefixes.plan ||
      !shape_of(layers, options_.activations, &shape) ||
      (shape.hidden > kNarrow && rows > kMostRowsWide) || !can_stack(shape, rows, num) ||
      stack_relay_bytes(shape, rows, num) > step.scratch.size())
    return false;
  Timed t(*this, "layers", rows, shape.hidden);
  if (t.replaced()) return true;
  std::vector<StackLayer> stack;
  for (const DecodeLayer& l : layers) stack.push_back(stack_layer(l));
  run_stack(
      shape,
      {step.batch, step.x, layers[0].spec.cos_sin, layers[0].kv.table_at, step.scratch.data()},
      stack, stream_);
  return true;
}

}  // namespace sluice::cuda
