#include "backend/cuda/attention_bench.cuh"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include "backend/cuda/attention.cuh"
#include "backend/cuda/attention_prefix.cuh"
#include "backend/cuda/attention_prefill.cuh"
#include "backend/cuda/check.cuh"

namespace sluice::cuda {
namespace {

constexpr double kTargetBandwidth = 4.2e12;
constexpr size_t kRotate = size_t{256} << 20;  // well above the L2

struct Free {
  void operator()(void* p) const { cudaFree(p); }
};
using Memory = std::unique_ptr<void, Free>;

Memory allocate(size_t bytes) {
  void* p;
  check(cudaMalloc(&p, bytes), "malloc");
  return Memory(p);
}
template <typename X>
Memory upload(const std::vector<X>& x) {
  Memory m = allocate(x.size() * sizeof(X));
  check(cudaMemcpy(m.get(), x.data(), x.size() * sizeof(X), cudaMemcpyHostToDevice), "upload");
  return m;
}

// Random values of about [-2, 2], as f16, bf16 or two e4m3 at a time; codes and scales of such.
__global__ void fill(uint16_t* to, size_t n, DType type) {
  for (size_t i = blockIdx.x * size_t{256} + threadIdx.x; i < n; i += gridDim.x * size_t{256}) {
    uint32_t x = static_cast<uint32_t>(i) * 2654435761u + 12345;
    x = (x ^ (x >> 15)) * 2246822519u;
    x ^= x >> 13;
    uint16_t bits = static_cast<uint16_t>(x);
    if (type == DType::i8) {
      to[i] = (bits & 0x00ff) | 0x2400;  // scales of some 2^-6
    } else if (type == DType::f8) {
      to[i] = bits & 0xbfbf;
    } else {
      to[i] = type == DType::f16 ? (bits & 0x83ff) | 0x3800 : (bits & 0x807f) | 0x3f00;
    }
  }
}

// Microseconds of one of the `num` launches that `queue` makes, by graph replays.
double time_launches(int num, const std::function<void(cudaStream_t)>& queue) {
  cudaStream_t stream;
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  cudaEvent_t begin, end;
  check(cudaStreamCreate(&stream), "stream");
  check(cudaEventCreate(&begin), "event");
  check(cudaEventCreate(&end), "event");
  queue(stream);
  check(cudaStreamSynchronize(stream), "warm up");
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), "capture");
  queue(stream);
  check(cudaStreamEndCapture(stream, &graph), "capture");
  check(cudaGraphInstantiate(&exec, graph, 0), "instantiate");
  std::vector<float> ms;
  for (int i = 0; i < 12; ++i) {
    float t;
    check(cudaEventRecord(begin, stream), "event");
    check(cudaGraphLaunch(exec, stream), "launch");
    check(cudaEventRecord(end, stream), "event");
    check(cudaEventSynchronize(end), "graph");
    check(cudaEventElapsedTime(&t, begin, end), "event");
    if (i >= 2) ms.push_back(t);
  }
  std::nth_element(ms.begin(), ms.begin() + ms.size() / 2, ms.end());
  cudaGraphExecDestroy(exec);
  cudaGraphDestroy(graph);
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  cudaStreamDestroy(stream);
  return ms[ms.size() / 2] * 1e3 / num;
}

struct Model {
  int heads, kv_heads, head_dim;
  KvType kv_type = DType::bf16;

  Model with(KvType type) const { return {heads, kv_heads, head_dim, type}; }
  double bytes_per_position() const {
    return 2.0 * kv_heads * static_cast<double>(kv_type.head_bytes(head_dim, 1));
  }
  const char* name() const {
    if (kv_type.type == DType::i8) return kv_type.group == 8 ? "i8:8" : "i8  ";
    return kv_type.type == DType::f8 ? "f8  " : "bf16";
  }
};

// `layers` caches of num sequences of `length` positions, blocks in shuffled order. The first
// `shared` positions are the same blocks for all.
struct Bench {
  Bench(const Model& m, int num, int length, int rows, int sms, int shared = 0) : model(m) {
    constexpr int kBlock = 16;
    int per_slot = (length + kBlock - 1) / kBlock, blocks = num * per_slot + 1;
    layer_bytes =
        static_cast<size_t>(blocks) * m.kv_heads * m.kv_type.head_bytes(m.head_dim, kBlock);
    layers = static_cast<int>(std::min<size_t>(64, kRotate / (2 * layer_bytes) + 1));
    k = allocate(layer_bytes * layers);
    v = allocate(layer_bytes * layers);
    size_t q_elements = static_cast<size_t>(rows) * m.heads * m.head_dim;
    q = allocate(q_elements * 2);
    out = allocate(q_elements * 2);
    for (const Memory* p : {&k, &v}) {
      fill<<<2048, 256>>>(static_cast<uint16_t*>(p->get()), layer_bytes * layers / 2,
                          m.kv_type.type);
    }
    fill<<<2048, 256>>>(static_cast<uint16_t*>(q.get()), q_elements, DType::bf16);
    std::vector<int32_t> ids(static_cast<size_t>(num) * per_slot);
    std::iota(ids.begin(), ids.end(), 1);
    std::shuffle(ids.begin(), ids.end(), std::mt19937(1));
    for (int i = 1; i < num; ++i)
      std::copy_n(ids.begin(), shared / kBlock, ids.begin() + static_cast<size_t>(i) * per_slot);
    tables = upload(ids);
    args.type = DType::bf16;
    args.q = q.get();
    args.out = out.get();
    args.q_stride = args.out_stride = m.heads * m.head_dim;
    args.kv_type = m.kv_type;
    args.block_size = kBlock;
    float scale = 1 / std::sqrt(static_cast<float>(m.head_dim));
    args.spec = {m.heads, m.kv_heads, m.head_dim, scale, 0, 0};
    args.tables = static_cast<const int32_t*>(tables.get());
    args.table_stride = per_slot;
    args.max_positions = length;
    size_t bytes = std::max(attention_workspace(args.spec, num, length, sms, false),
                            attention_workspace(args.spec, num, length, sms, true));
    workspace = allocate(bytes);
    check(cudaMemset(workspace.get(), 0, bytes), "workspace");
    args.workspace = workspace.get();
    args.num_sms = sms;
  }
  AttentionArgs of_layer(int i) const {
    AttentionArgs a = args;
    a.k = static_cast<uint8_t*>(k.get()) + (i % layers) * layer_bytes;
    a.v = static_cast<uint8_t*>(v.get()) + (i % layers) * layer_bytes;
    return a;
  }

  Model model;
  size_t layer_bytes;
  int layers;
  Memory k, v, q, out, tables, workspace;
  AttentionArgs args{};
};

void bench_decode(const Model& m, int num, int context, bool deterministic, int sms) {
  Bench b(m, num, context, num, sms);
  std::vector<int32_t> positions(num, context - 1), slots(num);
  std::iota(slots.begin(), slots.end(), 0);
  Memory d_positions = upload(positions), d_slots = upload(slots);
  b.args.positions = static_cast<const int32_t*>(d_positions.get());
  b.args.row_slot = static_cast<const int32_t*>(d_slots.get());
  b.args.deterministic = deterministic;
  int launches = std::max(20, b.layers);
  double us = time_launches(launches, [&](cudaStream_t stream) {
    for (int i = 0; i < launches; ++i) attend_decode(b.of_layer(i), num, stream);
  });
  double bytes = m.bytes_per_position() * num * context;
  std::printf("decode%s %2d/%-2d x %3d %s  B %3d  context %6d  %8.1f us  %5.2f TB/s  %3.0f %%\n",
              deterministic ? " det" : "    ", m.heads, m.kv_heads, m.head_dim, m.name(), num,
              context, us, bytes / us * 1e-6, bytes / us * 1e8 / kTargetBandwidth);
  std::fflush(stdout);
}

__global__ void plan_kernel(PrefixPlan* plan, PrefixGroup group, PrefixSizes sizes) {
  plan_prefixes(*plan, &group, 1, sizes);
}

// All rows in one group: both kernels together, each alone, and rows that each read all.
void bench_prefixes(const Model& m, int num, int context, int shared, int sms) {
  Bench b(m, num, context, num, sms, shared);
  std::vector<int32_t> positions(num, context - 1), slots(num), places(num);
  std::iota(slots.begin(), slots.end(), 0);
  for (int i = 0; i < num; ++i) places[i] = prefix_place(0, i);
  Memory d_positions = upload(positions), d_slots = upload(slots), d_places = upload(places);
  b.args.positions = static_cast<const int32_t*>(d_positions.get());
  b.args.row_slot = static_cast<const int32_t*>(d_slots.get());
  b.args.deterministic = true;
  const PrefixSizes sizes = prefix_sizes(b.args.spec, num, sms);
  Memory states = allocate(prefix_bytes(sizes)), plan = allocate(sizeof(PrefixPlan));
  auto* d_plan = static_cast<PrefixPlan*>(plan.get());
  plan_kernel<<<1, 1>>>(d_plan, PrefixGroup{0, num, shared}, sizes);
  check(cudaDeviceSynchronize(), "plan");
  const int launches = std::max(20, b.layers);
  auto time = [&](bool grouped, const auto& attend) {
    return time_launches(launches, [&](cudaStream_t stream) {
      for (int i = 0; i < launches; ++i) {
        AttentionArgs a = b.of_layer(i);
        if (grouped) {
          a.prefixes = {d_plan, static_cast<const int32_t*>(d_slots.get()),
                        static_cast<const int32_t*>(d_places.get())};
          a.prefix_states = static_cast<float*>(states.get());
        }
        attend(a, stream);
      }
    });
  };
  auto both = [&](const AttentionArgs& a, cudaStream_t s) { attend_decode(a, num, s); };
  const double apart = time(false, both), together = time(true, both);
  const double first =
      time(true, [&](const AttentionArgs& a, cudaStream_t s) { attend_prefixes(a, s); });
  const double second =
      time(true, [&](const AttentionArgs& a, cudaStream_t s) { attend_spans(a, num, s); });
  std::printf(
      "prefix %2d/%-2d x %3d %s  B %3d  context %6d  shared %6d  %8.1f us (prefix %.1f, "
      "own %.1f), apart %8.1f us  %4.2f x\n",
      m.heads, m.kv_heads, m.head_dim, m.name(), num, context, shared, together, first, second,
      apart, apart / together);
  std::fflush(stdout);
}

// Rows of one query by the prompts' kernel, to compare with those of their own.
void bench_decode_as_prefill(const Model& m, int num, int context, int sms) {
  Bench b(m, num, context, num, sms);
  std::vector<SliceView> slices;
  for (int i = 0; i < num; ++i) slices.push_back({i, 1, context - 1, i});
  Memory d_slices = upload(slices);
  const int launches = std::max(20, b.layers);
  const double us = time_launches(launches, [&](cudaStream_t stream) {
    for (int i = 0; i < launches; ++i)
      attend_prefill(b.of_layer(i), slices, static_cast<SliceView*>(d_slices.get()), stream);
  });
  std::printf("decode by the prompts' kernel %2d/%-2d x %3d  B %3d  context %6d  %8.1f us\n",
              m.heads, m.kv_heads, m.head_dim, num, context, us);
  std::fflush(stdout);
}

void bench_prefill(const Model& m, int num, int length, bool deterministic, int sms) {
  Bench b(m, num, length, num * length, sms);
  std::vector<SliceView> slices;
  for (int i = 0; i < num; ++i) slices.push_back({i * length, length, 0, i});
  Memory d_slices = upload(slices);
  b.args.deterministic = deterministic;
  int launches = 10;
  double us = time_launches(launches, [&](cudaStream_t stream) {
    for (int i = 0; i < launches; ++i) {
      attend_prefill(b.of_layer(i), slices, static_cast<SliceView*>(d_slices.get()), stream);
    }
  });
  double flops = 2.0 * num * length * (length + 1.0) * m.head_dim * m.heads;
  std::printf("prefill%s %2d/%-2d x %3d %s  %2d x %5d  %8.1f us  %5.0f TFLOP/s\n",
              deterministic ? " det" : "    ", m.heads, m.kv_heads, m.head_dim, m.name(), num,
              length, us, flops / us * 1e-6);
  std::fflush(stdout);
}

}  // namespace

int bench_attention(int num_sms) {
  const Model qwen{28, 4, 128}, llama{32, 8, 128}, small{14, 2, 64}, one{16, 16, 128};
  const Model f8 = llama.with(DType::f8), i8 = qwen.with({DType::i8, 32});
  for (bool det : {false, true}) {
    for (const Model& m : {qwen, i8, llama, f8}) {
      for (int num : {1, 4, 8, 16, 32, 64, 256}) {
        for (int context : {1024, 8192}) bench_decode(m, num, context, det, num_sms);
      }
    }
    for (int context : {32768, 131072}) bench_decode(qwen, 1, context, det, num_sms);
    for (int num : {48, 96, 200}) bench_decode(qwen, num, 1100, det, num_sms);
    for (int num : {1, 32, 256}) bench_decode(small, num, 256, det, num_sms);
    for (int num : {1, 32, 256}) bench_decode(one, num, 1024, det, num_sms);
  }
  for (const Model& m : {qwen, one}) {
    for (int num : {1, 8, 64, 256}) {
      for (int context : {1024, 8192}) bench_decode_as_prefill(m, num, context, num_sms);
    }
  }
  for (int num : {8, 64, 256}) bench_decode(one, num, 8192, false, num_sms);
  for (bool det : {false, true}) {
    for (const Model& m : {qwen, i8, llama, one, small, f8}) {
      bench_prefill(m, 8, 1024, det, num_sms);
      bench_prefill(m, 1, 8192, det, num_sms);
    }
    bench_prefill(qwen, 32, 256, det, num_sms);
    bench_prefill(qwen, 2, 4096, det, num_sms);
  }
  return 0;
}

int bench_common_prefixes(int num_sms) {
  const Model qwen{28, 4, 128}, qwen3{32, 8, 128}, small{14, 2, 64};
  for (const Model& m : {qwen3, qwen, small, qwen3.with(DType::f8)}) {
    bench_prefixes(m, 64, 8448, 8192, num_sms);
    bench_prefixes(m, 16, 8448, 8192, num_sms);
    bench_prefixes(m, 64, 1280, 1024, num_sms);
    bench_prefixes(m, 8, 2304, 2048, num_sms);
  }
  return 0;
}

// Types of K and V side by side, of Qwen2.5-7B's heads.
int bench_cache_types(int num_sms, bool decodes) {
  const Model qwen{28, 4, 128};
  const Model kinds[] = {qwen, qwen.with(DType::f8), qwen.with({DType::i8, 32}),
                         qwen.with({DType::i8, 8})};
  if (!decodes) {
    for (bool det : {false, true}) {
      for (const Model& m : kinds) bench_prefill(m, 8, 1024, det, num_sms);
      for (const Model& m : kinds) bench_prefill(m, 32, 256, det, num_sms);
      for (const Model& m : kinds) bench_prefill(m, 1, 8192, det, num_sms);
    }
    return 0;
  }
  for (int context : {1024, 8192, 32768}) {
    for (int num : {1, 8, 32, 64, 256}) {
      for (const Model& m : kinds) bench_decode(m, num, context, false, num_sms);
    }
  }
  for (int num : {1, 32, 256}) {
    for (const Model& m : kinds) bench_decode(m, num, 8192, true, num_sms);
  }
  for (const Model& m : kinds) bench_prefill(m, 8, 1024, false, num_sms);
  for (const Model& m : kinds) bench_prefill(m, 1, 8192, false, num_sms);
  return 0;
}

}  // namespace sluice::cuda
