// All layers of a step of decodes in one kernel (decode_stack.cuh) beside plain kernels in f32:
// both types, heads of 64 and 128, one to eight sequences of different lengths, alone and shared
// out to several blocks, rotations, biases, norms of heads, block sizes, with and without tables.
//   cuda_stack_test [--small | --time]   --time: microseconds of the layers of two small models
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "backend/cuda/decode_stack.cuh"
#include "backend/cuda/decode_stack_plan.cuh"
#include "backend/cuda/launch.cuh"

namespace sluice::cuda {
namespace {

int checks = 0, failures = 0;

struct StackCase {
  const char* name;
  StackShape shape;
  int layers;
};

// Random numbers by position alone.
__device__ float noise(size_t i, uint32_t seed) {
  uint32_t h = static_cast<uint32_t>(i) * 2654435761u ^ seed * 40503u;
  h ^= h >> 15, h *= 2246822519u, h ^= h >> 13, h *= 3266489917u, h ^= h >> 16;
  return static_cast<float>(h) / 2147483648.0f - 1;
}
template <typename T>
__global__ void fill_kernel(T* p, size_t num, float base, float size, uint32_t seed) {
  for (size_t i = blockIdx.x * static_cast<size_t>(blockDim.x) + threadIdx.x; i < num;
       i += static_cast<size_t>(gridDim.x) * blockDim.x)
    p[i] = from_float<T>(base + size * noise(i, seed));
}

// out = x / rms * weight, a block per row.
__global__ void plain_norm(float* out, const float* x, const float* weight, int cols, float eps) {
  const float* row = x + blockIdx.x * static_cast<size_t>(cols);
  float sum = 0;
  for (int i = 0; i < cols; ++i) sum += row[i] * row[i];
  const float by = rsqrtf(sum / static_cast<float>(cols) + eps);
  for (int i = static_cast<int>(threadIdx.x); i < cols; i += static_cast<int>(blockDim.x))
    out[blockIdx.x * static_cast<size_t>(cols) + i] = row[i] * by * weight[i];
}

// out [n, rows] = (or +=) x · wᵀ + bias, a warp per element.
template <typename T>
__global__ void plain_product(
    float* out, const float* x, const T* w, const float* bias, int rows, int cols, bool add) {
  const int r = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (r >= rows) return;
  float sum = 0;
  for (int i = lane; i < cols; i += 32)
    sum += x[blockIdx.y * static_cast<size_t>(cols) + i] *
           to_float(w[static_cast<size_t>(r) * cols + i]);
  sum = warp_sum(sum);
  if (lane != 0) return;
  float& to = out[blockIdx.y * static_cast<size_t>(rows) + r];
  to = (add ? to : 0) + sum + (bias ? bias[r] : 0);
}

__global__ void plain_gate(float* out, const float* gate_up, int ffn, bool silu) {
  const float* row = gate_up + blockIdx.x * 2 * static_cast<size_t>(ffn);
  for (int i = static_cast<int>(threadIdx.x); i < ffn; i += static_cast<int>(blockDim.x)) {
    const float g = row[i];
    const float inner = 0.7978845608f * (g + 0.044715f * g * g * g);
    const float a = silu ? g / (1 + expf(-g)) : 0.5f * g * (1 + tanhf(inner));
    out[blockIdx.x * static_cast<size_t>(ffn) + i] = a * row[ffn + i];
  }
}

struct PlainAttention {
  StackShape shape;
  const float* qkv;
  const float* cos_sin;
  const float* q_norm;
  const float* k_norm;
  const int32_t* positions;
  const int32_t* tables;
  int64_t table_stride, first_block;
  const void* k;
  const void* v;
};

// One head of q or k: normed, then rotated. By one thread.
__device__ void plain_turn(const PlainAttention& a, float* x, const float* norm, int row) {
  const int dim = a.shape.head_dim, half = a.shape.rope_dims / 2;
  float squares = 0;
  for (int i = 0; i < dim; ++i) squares += x[i] * x[i];
  const float by = norm ? rsqrtf(squares / static_cast<float>(dim) + a.shape.eps) : 1;
  for (int i = 0; i < dim; ++i) x[i] *= norm ? by * norm[i] : 1;
  for (int p = 0; p < half; ++p) {
    float& u = x[a.shape.interleaved ? 2 * p : p];
    float& v = x[a.shape.interleaved ? 2 * p + 1 : p + half];
    const float c = a.cos_sin[row * 2 * half + p], s = a.cos_sin[row * 2 * half + half + p];
    const float turned = u * c - v * s;
    v = v * c + u * s;
    u = turned;
  }
}

// A block per sequence and head. The token's own K and V come from qkv.
constexpr int kMostPlain = 6000;  // positions
template <typename T>
__global__ void plain_attention(float* out, const PlainAttention a) {
  __shared__ float q[128], own[128], score[kMostPlain], total;
  const StackShape& h = a.shape;
  const int row = static_cast<int>(blockIdx.x), head = static_cast<int>(blockIdx.y);
  const int dim = h.head_dim, kv_head = head / (h.heads / h.kv_heads), last = a.positions[row];
  const float* x = a.qkv + static_cast<size_t>(row) * h.qkv_dim();
  const float* value = x + (h.heads + h.kv_heads + kv_head) * dim;
  if (threadIdx.x == 0) {
    for (int i = 0; i < dim; ++i)
      q[i] = x[head * dim + i], own[i] = x[(h.heads + kv_head) * dim + i];
    plain_turn(a, q, a.q_norm, row);
    plain_turn(a, own, a.k_norm, row);
  }
  __syncthreads();
  auto element = [&](int p) {
    const int64_t cell = row * a.table_stride + p / h.block_size;
    const int64_t block = a.tables ? a.tables[cell] : a.first_block + cell;
    return ((block * h.kv_heads + kv_head) * h.block_size + p % h.block_size) * dim;
  };
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  for (int p = thread; p <= last; p += threads) {
    const T* k = static_cast<const T*>(a.k) + element(p);
    float sum = 0;
    for (int i = 0; i < dim; ++i) sum += q[i] * (p == last ? own[i] : to_float(k[i]));
    score[p] = sum * h.scale;
  }
  __syncthreads();
  if (thread == 0) {
    float most = score[0];
    for (int p = 1; p <= last; ++p) most = fmaxf(most, score[p]);
    total = 0;
    for (int p = 0; p <= last; ++p) total += score[p] = expf(score[p] - most);
  }
  __syncthreads();
  for (int i = thread; i < dim; i += threads) {
    float sum = 0;
    for (int p = 0; p <= last; ++p)
      sum +=
          score[p] * (p == last ? value[i] : to_float(static_cast<const T*>(a.v)[element(p) + i]));
    out[(static_cast<size_t>(row) * h.heads + head) * dim + i] = sum / total;
  }
}

struct Memory {
  ~Memory() {
    for (void* p : all) cudaFree(p);
  }
  void* bytes(size_t num) {
    void* p = nullptr;
    check(cudaMalloc(&p, num), "cudaMalloc");
    all.push_back(p);
    return p;
  }
  template <typename T>
  T* filled(size_t num, float base, float size, uint32_t seed) {
    T* p = static_cast<T*>(bytes(num * sizeof(T)));
    fill_kernel<<<512, 256>>>(p, num, base, size, seed);
    return p;
  }
  template <typename T>
  T* copied(const std::vector<T>& v) {
    T* p = static_cast<T*>(bytes(v.size() * sizeof(T)));
    check(cudaMemcpy(p, v.data(), v.size() * sizeof(T), cudaMemcpyHostToDevice), "copy");
    return p;
  }
  std::vector<void*> all;
};

// A model's layers, its cache and the memory of both ways to compute them.
template <typename T>
struct Model {
  static constexpr int kRows = kMaxStackRows;

  Model(const StackCase& c, int most_positions)
      : shape(c.shape), stride(most_positions / c.shape.block_size + 1) {
    const auto h = static_cast<size_t>(shape.hidden), f = static_cast<size_t>(shape.ffn);
    const auto q = static_cast<size_t>(shape.q_dim()), qkv = static_cast<size_t>(shape.qkv_dim());
    const auto d = static_cast<size_t>(shape.head_dim);
    const size_t cells = static_cast<size_t>(kRows) * static_cast<size_t>(stride) + 1;
    const size_t cache = cells * static_cast<size_t>(shape.block_size * shape.kv_heads) * d;
    auto matrix = [&](size_t rows, size_t cols, uint32_t seed) {
      return m.filled<T>(rows * cols, 0, 1.7f / std::sqrt(static_cast<float>(cols)), seed);
    };
    for (int l = 0; l < c.layers; ++l) {
      const uint32_t s = static_cast<uint32_t>(l) * 16 + 1;
      StackLayer y;
      y.qkv = matrix(qkv, h, s), y.o = matrix(h, q, s + 1);
      y.gate_up = matrix(2 * f, h, s + 2), y.down = matrix(h, f, s + 3);
      if (shape.biases) y.qkv_bias = m.filled<float>(qkv, 0, 0.5f, s + 4);
      y.attn_norm = m.filled<float>(h, 1, 0.3f, s + 5);
      y.ffn_norm = m.filled<float>(h, 1, 0.3f, s + 6);
      if (shape.head_norms) {
        y.q_norm = m.filled<float>(d, 1, 0.3f, s + 7);
        y.k_norm = m.filled<float>(d, 1, 0.3f, s + 8);
      }
      y.k = m.filled<T>(cache, 0, 1, s + 9), y.v = m.filled<T>(cache, 0, 1, s + 10);
      layers.push_back(y);
    }
    first = m.filled<float>(kRows * h, 0, 1, 7);
    x = static_cast<float*>(m.bytes(kRows * h * 4)),
    want = static_cast<float*>(m.bytes(kRows * h * 4));
    normed = static_cast<float*>(m.bytes(kRows * std::max(h, q) * 4));
    wide = static_cast<float*>(m.bytes(kRows * std::max(2 * f, qkv) * 4));
    narrow = static_cast<float*>(m.bytes(kRows * std::max(f, q) * 4));
    for (int n = 1; n <= kRows; ++n)
      relay_bytes = std::max(relay_bytes, stack_relay_bytes(shape, n, c.layers));
    relay = m.bytes(relay_bytes);
    std::vector<int32_t> ids;
    for (size_t i = 0; i < cells - 1; ++i) ids.push_back(static_cast<int32_t>(cells - 1 - i));
    tables = m.copied(ids);
    std::vector<int32_t> order;
    for (int i = 0; i < kRows; ++i) order.push_back(i);
    slots = m.copied(order);
    positions = static_cast<int32_t*>(m.bytes(kRows * 4));
    cos_sin = static_cast<float*>(m.bytes(kRows * d * 4));
    check(cudaStreamCreate(&stream), "stream");
  }
  ~Model() { cudaStreamDestroy(stream); }

  // Positions of the step's tokens.
  StackStep step(const std::vector<int32_t>& at, bool with_tables) {
    const int half = shape.rope_dims / 2;
    std::vector<float> turn;
    for (int32_t p : at) {
      for (int k = 0; k < 2 * half; ++k) {
        const int i = k % half;
        const double angle = p * std::pow(10000.0, -static_cast<double>(i) / half);
        turn.push_back(static_cast<float>(k < half ? std::cos(angle) : std::sin(angle)));
      }
    }
    check(cudaMemcpy(positions, at.data(), at.size() * 4, cudaMemcpyHostToDevice), "copy");
    check(cudaMemcpy(cos_sin, turn.data(), turn.size() * 4, cudaMemcpyHostToDevice), "copy");
    StackStep s;
    s.batch.num_tokens = s.batch.num_decode = static_cast<int32_t>(at.size());
    s.batch.positions = positions, s.batch.row_slot = slots;
    s.batch.tables = with_tables ? tables : nullptr;
    s.batch.table_stride = stride, s.batch.first_block = 1;
    s.x = {x, DType::f32, static_cast<int64_t>(at.size()), shape.hidden, shape.hidden};
    s.cos_sin = cos_sin;
    s.relay = relay;
    return s;
  }
  void begin() {
    const size_t bytes = kRows * static_cast<size_t>(shape.hidden) * 4;
    check(cudaMemcpy(x, first, bytes, cudaMemcpyDeviceToDevice), "copy");
    check(cudaMemcpy(want, first, bytes, cudaMemcpyDeviceToDevice), "copy");
  }
  void product(float* out,
               const float* in,
               const void* w,
               const float* bias,
               int rows,
               int cols,
               int n,
               bool add) {
    plain_product<<<dim3(static_cast<unsigned>((rows + 7) / 8), static_cast<unsigned>(n)), 256>>>(
        out, in, static_cast<const T*>(w), bias, rows, cols, add);
  }
  // The same layers by plain kernels, from `want` to `want`.
  void run_plain(const StackStep& s) {
    const int n = s.batch.num_tokens, h = shape.hidden, f = shape.ffn;
    const auto blocks = static_cast<unsigned>(n);
    for (const StackLayer& y : layers) {
      plain_norm<<<blocks, 128>>>(normed, want, y.attn_norm, h, shape.eps);
      product(wide, normed, y.qkv, y.qkv_bias, shape.qkv_dim(), h, n, false);
      PlainAttention a{shape,
                       wide,
                       cos_sin,
                       y.q_norm,
                       y.k_norm,
                       positions,
                       s.batch.tables,
                       stride,
                       s.batch.first_block,
                       y.k,
                       y.v};
      plain_attention<T><<<dim3(blocks, static_cast<unsigned>(shape.heads)), 128>>>(narrow, a);
      product(want, narrow, y.o, nullptr, h, shape.q_dim(), n, true);
      plain_norm<<<blocks, 128>>>(normed, want, y.ffn_norm, h, shape.eps);
      product(wide, normed, y.gate_up, nullptr, 2 * f, h, n, false);
      plain_gate<<<blocks, 256>>>(narrow, wide, f, shape.activation == Activation::silu);
      product(want, narrow, y.down, nullptr, h, f, n, true);
    }
    check(cudaDeviceSynchronize(), "plain");
  }

  StackShape shape;
  Memory m;
  int64_t stride;
  std::vector<StackLayer> layers;
  float *first, *x, *want, *normed, *wide, *narrow, *cos_sin;
  void* relay;
  size_t relay_bytes = 0;
  int32_t *tables, *slots, *positions;
  cudaStream_t stream = nullptr;
};

// Root mean square of x - want over that of what the layers added.
template <typename T>
double difference(Model<T>& model, int n) {
  std::vector<float> got(static_cast<size_t>(n * model.shape.hidden)), want = got, from = got;
  const size_t bytes = got.size() * 4;
  check(cudaMemcpy(got.data(), model.x, bytes, cudaMemcpyDeviceToHost), "copy");
  check(cudaMemcpy(want.data(), model.want, bytes, cudaMemcpyDeviceToHost), "copy");
  check(cudaMemcpy(from.data(), model.first, bytes, cudaMemcpyDeviceToHost), "copy");
  double off = 0, all = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    off += std::pow(got[i] - want[i], 2.0);
    all += std::pow(want[i] - from[i], 2.0);
  }
  return std::sqrt(off / all);  // NaN where anything is
}

template <typename T>
void run_case(const StackCase& c, const std::vector<int>& contexts, const std::vector<int>& rows) {
  Model<T> model(c, *std::max_element(contexts.begin(), contexts.end()) + 1);
  // Rounding to eight bits adds up to about 0.3 % per layer.
  const double bound = (std::is_same_v<T, __half> ? 0.0008 : 0.006) * std::sqrt(c.layers);
  for (int context : contexts) {
    for (int n : rows) {
      if (!can_stack(c.shape, n, c.layers)) {
        if (n > 4) continue;  // inputs of many rows may not fit
        ++checks, ++failures;
        std::printf("FAIL %s: no plan for %d rows\n", c.name, n);
        continue;
      }
      std::vector<int32_t> at;
      for (int i = 0; i < n; ++i) at.push_back(std::max(0, context - 1 - i * 37 % context));
      for (bool with_tables : {true, false}) {
        StackStep s = model.step(at, with_tables);
        model.begin();
        check(cudaMemset(model.relay, 0, model.relay_bytes), "memset");  // whatever was there
        model.run_plain(s);
        run_stack(model.shape, s, model.layers, model.stream);
        check(cudaStreamSynchronize(model.stream), "stack");
        const double off = difference(model, n);
        ++checks;
        if (off <= bound) continue;
        if (++failures <= 20)
          std::printf("FAIL %s, context %d, %d rows, %s: off by %.3f %%\n", c.name, context, n,
                      with_tables ? "tables" : "no tables", 100 * off);
      }
    }
  }
}

StackShape shape_of(int hidden, int ffn, int heads, int kv_heads, int head_dim) {
  StackShape s;
  s.hidden = hidden, s.ffn = ffn, s.heads = heads, s.kv_heads = kv_heads, s.head_dim = head_dim;
  s.rope_dims = head_dim;
  s.scale = 1 / std::sqrt(static_cast<float>(head_dim)), s.eps = 1e-6f;
  return s;
}

std::vector<StackCase> small_models() {
  StackShape qwen2 = shape_of(896, 4864, 14, 2, 64);
  qwen2.biases = true;
  StackShape qwen3 = shape_of(1024, 3072, 16, 8, 128);
  qwen3.head_norms = true;
  return {{"Qwen2.5-0.5B", qwen2, 24}, {"Qwen3-0.6B", qwen3, 28}};
}

// Units are copied and freed in their order, layer after layer: whose place a unit takes must be
// known to be free, and two neighbours of a product whose tiles are multiplied in pairs must fit.
void check_plan(const StackShape& shape, const StackPlan& plan, int unit_bytes) {
  const int num = plan.num_units;
  ++checks;
  if (plan.splits > 1 && plan.n * shape.heads > plan.blocks) {
    ++failures;
    std::printf("FAIL %d heads of %d rows: nobody merges some\n", shape.heads, plan.n);
  }
  for (int u = 0; u < num; ++u) {
    const int waits = plan.unit_waits[u] < u ? plan.unit_waits[u] : plan.unit_waits[u] - num;
    const bool paired = std::any_of(plan.product, plan.product + 4, [&](const StackProduct& p) {
      return p.chunks == 1 && u > p.first_unit && u < p.first_unit + p.tiles;
    });
    bool right =
        waits <= (paired ? u - 2 : u - 1) && plan.unit_at[u] < static_cast<uint32_t>(plan.ring);
    // Units that begin within the first bytes of this one.
    for (int v = u - num; v < u; ++v) {
      const uint32_t at = plan.unit_at[(v + num) % num];
      if (at >= plan.unit_at[u] && at < plan.unit_at[u] + static_cast<uint32_t>(unit_bytes))
        right = right && v <= waits;
    }
    ++checks;
    if (right) continue;
    if (++failures <= 20)
      std::printf("FAIL hidden size %d, %d rows: unit %d waits for %d\n", shape.hidden, plan.n, u,
                  waits);
  }
}

void check_plans() {
  constexpr int kLeastUnit = 128;  // bytes
  for (bool norms : {false, true}) {
    for (int head_dim : {64, 128}) {
      for (int hidden = 64; hidden <= 2048; hidden += 32) {
        for (int n = 1; n <= kMaxStackRows; ++n) {
          StackShape s = shape_of(hidden, hidden * 7 / 2 / 32 * 32, 2048 / head_dim, 2, head_dim);
          s.head_norms = norms, s.biases = !norms;
          StackPlan plan;
          if (plan_stack(s, n, 28, 132, &plan)) check_plan(s, plan, kLeastUnit);
        }
      }
    }
  }
}

void run_cases(bool small) {
  std::vector<StackCase> cases = small_models();
  for (StackCase& c : cases) c.layers = 3;
  StackShape turned = shape_of(576, 1536, 9, 3, 64);  // SmolLM2-135M's, turned as GGUF's llama
  turned.interleaved = true, turned.block_size = 8;
  cases.push_back({"interleaved", turned, 2});
  StackShape part = shape_of(2048, 8192, 16, 8, 128);
  part.rope_dims = 64, part.activation = Activation::gelu_tanh, part.block_size = 32;
  cases.push_back({"part of a head turns", part, 2});
  StackShape one = shape_of(1536, 8960, 12, 2, 128);  // Qwen2.5-1.5B's
  one.biases = true, one.block_size = 128;
  cases.push_back({"Qwen2.5-1.5B", one, 2});
  const std::vector<int> contexts =
      small ? std::vector<int>{1, 40} : std::vector<int>{1, 17, 192, 225, 1024, 5000};
  const std::vector<int> rows = small ? std::vector<int>{1, 3} : std::vector<int>{1, 2, 3, 4, 8};
  for (StackCase c : cases) {
    std::printf("%s\n", c.name);
    c.shape.type = DType::bf16;
    run_case<__nv_bfloat16>(c, contexts, rows);
    c.shape.type = DType::f16;
    run_case<__half>(c, contexts, rows);
  }
}

int time_models() {
  constexpr int kSteps = 20;
  for (const StackCase& c : small_models()) {
    Model<__nv_bfloat16> model(c, 4096);
    for (int context : {192, 1024, 4096}) {
      for (int n : {1, 2, 4, 8}) {
        StackStep s = model.step(std::vector<int32_t>(static_cast<size_t>(n), context - 1), true);
        model.begin();
        cudaGraph_t graph;
        cudaGraphExec_t steps;
        check(cudaStreamBeginCapture(model.stream, cudaStreamCaptureModeThreadLocal), "capture");
        for (int i = 0; i < kSteps; ++i) run_stack(model.shape, s, model.layers, model.stream);
        check(cudaStreamEndCapture(model.stream, &graph), "capture");
        check(cudaGraphInstantiate(&steps, graph, 0), "graph");
        cudaEvent_t from, to;
        cudaEventCreate(&from), cudaEventCreate(&to);
        float best = 1e9f;
        for (int i = 0; i < 5; ++i) {
          cudaEventRecord(from, model.stream);
          check(cudaGraphLaunch(steps, model.stream), "graph");
          cudaEventRecord(to, model.stream);
          check(cudaStreamSynchronize(model.stream), "stack");
          float ms = 0;
          cudaEventElapsedTime(&ms, from, to);
          best = std::min(best, ms);
        }
        std::printf("%s, context %d, %d rows: %.0f us\n", c.name, context, n, best * 1000 / kSteps);
        cudaEventDestroy(from), cudaEventDestroy(to);
        cudaGraphExecDestroy(steps), cudaGraphDestroy(graph);
      }
    }
  }
  return 0;
}

}  // namespace
}  // namespace sluice::cuda

int main(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  sluice::cuda::check_plans();
  int gpus = 0;
  if (cudaGetDeviceCount(&gpus) != cudaSuccess || gpus == 0) {
    std::printf("no GPU\n");
    return sluice::cuda::failures ? 1 : 0;
  }
  sluice::cuda::StackShape any = sluice::cuda::shape_of(896, 4864, 14, 2, 64);
  if (!sluice::cuda::can_stack(any, 1, 1)) {
    std::printf("this GPU has no such kernel\n");
    return sluice::cuda::failures ? 1 : 0;
  }
  const std::string mode = argc > 1 ? argv[1] : "";
  if (mode == "--time") return sluice::cuda::time_models();
  sluice::cuda::run_cases(mode == "--small");
  std::printf("%d checks, %d failures\n", sluice::cuda::checks, sluice::cuda::failures);
  return sluice::cuda::failures ? 1 : 0;
}
