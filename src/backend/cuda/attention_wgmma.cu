// Attention of slices on Hopper's warpgroup matrix instructions: f16, bf16, f8 or i8 cache,
// head_dim up to 128. Two warpgroups of a block take 64 (query, head) rows each, with q, scores and
// output in registers, and share the K and V tiles of 64 positions in shared memory, through a ring
// of stages that lets one do its softmax while the other has the tensor cores. A warpgroup queues
// the scores of its next tile and the weighted sum of this one together, so that its own softmax
// overlaps too.
#include "backend/cuda/attention_bytes.cuh"
#include "backend/cuda/attention_kinds.cuh"
#include "backend/cuda/attention_prefill.cuh"
#include "backend/cuda/check.cuh"
#include "backend/cuda/hopper.cuh"

namespace sluice::cuda {
namespace {

constexpr int kRows = 128;
constexpr int kThreads = 256;

#define SLUICE_ACC4(d, i) "+f"(d[i][0]), "+f"(d[i][1]), "+f"(d[i][2]), "+f"(d[i][3])
#define SLUICE_ACC8(d, i) SLUICE_ACC4(d, i), SLUICE_ACC4(d, i + 1)

// d [64, 64] = a [64, 16] · b [16, 64], plus d where `accumulate`.
template <typename T, int kTransposed>
__device__ void wgmma(float (&d)[8][4], const uint32_t (&a)[4], uint64_t b, int accumulate) {
  if constexpr (std::is_same_v<T, __half>) {
    SLUICE_WGMMA(
        "{.reg .pred p; setp.ne.b32 p, %37, 0; "
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, "
        "%19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
        "{%32,%33,%34,%35}, %36, p, 1, 1, %38;}"
        : SLUICE_ACC8(d, 0), SLUICE_ACC8(d, 2), SLUICE_ACC8(d, 4), SLUICE_ACC8(d, 6)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate), "n"(kTransposed));
  } else {
    SLUICE_WGMMA(
        "{.reg .pred p; setp.ne.b32 p, %37, 0; "
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, "
        "%19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
        "{%32,%33,%34,%35}, %36, p, 1, 1, %38;}"
        : SLUICE_ACC8(d, 0), SLUICE_ACC8(d, 2), SLUICE_ACC8(d, 4), SLUICE_ACC8(d, 6)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate), "n"(kTransposed));
  }
}

// d [64, 128] = a [64, 16] · b [16, 128], plus d where `accumulate`.
template <typename T, int kTransposed>
__device__ void wgmma(float (&d)[16][4], const uint32_t (&a)[4], uint64_t b, int accumulate) {
  if constexpr (std::is_same_v<T, __half>) {
    SLUICE_WGMMA(
        "{.reg .pred p; setp.ne.b32 p, %69, 0; "
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, "
        "%19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, "
        "%36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, "
        "%53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
        "{%64,%65,%66,%67}, %68, p, 1, 1, %70;}"
        : SLUICE_ACC8(d, 0), SLUICE_ACC8(d, 2), SLUICE_ACC8(d, 4), SLUICE_ACC8(d, 6),
          SLUICE_ACC8(d, 8), SLUICE_ACC8(d, 10), SLUICE_ACC8(d, 12), SLUICE_ACC8(d, 14)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate), "n"(kTransposed));
  } else {
    SLUICE_WGMMA(
        "{.reg .pred p; setp.ne.b32 p, %69, 0; "
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, "
        "%19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, "
        "%36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, "
        "%53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
        "{%64,%65,%66,%67}, %68, p, 1, 1, %70;}"
        : SLUICE_ACC8(d, 0), SLUICE_ACC8(d, 2), SLUICE_ACC8(d, 4), SLUICE_ACC8(d, 6),
          SLUICE_ACC8(d, 8), SLUICE_ACC8(d, 10), SLUICE_ACC8(d, 12), SLUICE_ACC8(d, 14)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate), "n"(kTransposed));
  }
}

#undef SLUICE_ACC8
#undef SLUICE_ACC4

// A store that never happens, for sums are not negative: it needs x, so that the exponentials are
// done in front of the wait that follows, while the tensor cores work. The assembler would move
// them behind it.
__device__ inline void finish_before_wait(float x, uint32_t address) {
  asm volatile(
      "{.reg .pred p; setp.lt.f32 p, %0, 0f00000000; @p st.volatile.shared.f32 [%1], %0;}" ::"f"(x),
      "r"(address)
      : "memory");
}
// What this thread's copies wrote becomes visible to the tensor cores.
__device__ inline void publish_copies() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Panels of SmemRows as operands: 128-byte swizzle, groups of eight rows 1,024 bytes apart, panels
// of 64 columns kKvTile * 128 bytes apart.
__device__ uint64_t descriptor(uint32_t address) {
  constexpr uint64_t kPanel = kKvTile * 128;
  return static_cast<uint64_t>((address & 0x3ffff) >> 4) | (kPanel >> 4) << 16 |
         uint64_t{1024 >> 4} << 32 | uint64_t{1} << 62;
}

template <int D>
constexpr int kStageBytes = 2 * SmemRows<kKvTile, D * 2>::kSize;

// Shared memory: stages (at a multiple of 1,024), the output of earlier spans, two barriers per
// stage. Two blocks fit on a multiprocessor for D = 64, to within a kilobyte.
template <int D, bool kSpans>
struct Layout {
  static constexpr int kStages = kSpans ? 5 : 6;
  // Tiles that are copied ahead of the one whose softmax runs. Two stages of slack let the
  // warpgroups be out of step.
  static constexpr int kAhead = kStages - 2;
  static constexpr int kTotal = kStages * kStageBytes<D>;
  static constexpr int kBarriers = kTotal + (kSpans ? SpanOutput<D, kThreads>::kBytes : 0);
  static constexpr int kBytes = kBarriers + 2 * kStages * 8;
};

// Rows of q in fragments, by way of shared memory (SmemRows of kRows).
template <typename T, int D>
struct QueryLoader {
  using Rows = SmemRows<kRows, D * 2>;
  static_assert(Rows::kSize <= kStageBytes<D>);
  static constexpr int kStep = kThreads / Rows::kChunks;

  __device__ static void copy(uint32_t to, const AttentionParams& p, const Tile& tile, int total) {
    int row = threadIdx.x / Rows::kChunks, c = threadIdx.x % Rows::kChunks;
    const T* q = static_cast<const T*>(p.q) + tile.slice.row * p.q_stride +
                 static_cast<int64_t>(tile.kv_head) * p.group * p.head_dim + c * 8;
#pragma unroll
    for (int i = 0; i < kRows / kStep; ++i) {
      int r = row + i * kStep, in_slice = tile.first + r;
      int query = p.query_of(in_slice);
      bool valid = in_slice < total && c * 8 < p.head_dim;
      const T* from = q + query * p.q_stride + (in_slice - query * p.group) * p.head_dim;
      copy16(to + Rows::at(r, c), valid ? from : q, valid);
    }
  }
  __device__ static void load(Queries<T, T, D>& queries, uint32_t from) {
    int lane = threadIdx.x % 32;
    int row = threadIdx.x / 32 * 16 + ((lane >> 3) & 1) * 8 + (lane & 7);
#pragma unroll
    for (int step = 0; step < D / 16; ++step) {
      ldmatrix(queries.f[step], from + Rows::at(row, step * 2, lane >> 4));
    }
  }
};

// s = q · kᵀ, queued.
template <typename T, int D>
__device__ void queue_scores(float (&s)[kKvTile / 8][4], const Queries<T, T, D>& q, uint32_t k) {
  wgmma_fence();
#pragma unroll
  for (int step = 0; step < D / 16; ++step) {
    uint32_t address = k + step / 4 * (kKvTile * 128) + step % 4 * 32;
    wgmma<T, 0>(s, q.f[step], descriptor(address), step > 0);
  }
  wgmma_commit();
}

// o += weights · v, queued.
template <typename T, int D>
__device__ void queue_sum(float (&o)[D / 8][4], const uint32_t (&w)[kKvTile / 16][4], uint32_t v) {
  wgmma_fence();
#pragma unroll
  for (int n = 0; n < kKvTile / 16; ++n) wgmma<T, 1>(o, w[n], descriptor(v + n * 16 * 128), 1);
  wgmma_commit();
}

// The block's copies of K and V tiles through the ring of stages. Every thread copies a part of
// every tile.
template <int D, bool kSpans>
struct Ring {
  static constexpr int kStages = Layout<D, kSpans>::kStages, kAhead = Layout<D, kSpans>::kAhead;
  uint32_t stages, full, empty;  // addresses; barriers are kStages times 8 bytes
  int begin, num;
  TileLoader<kThreads, D * 2> loader;

  __device__ uint32_t k(int i) const { return stages + i % kStages * kStageBytes<D>; }
  __device__ uint32_t v(int i) const { return k(i) + kStageBytes<D> / 2; }

  __device__ void start_copy(int i) {
    if (i < num) {
      if (i >= kStages) barrier_wait(empty + i % kStages * 8, i / kStages - 1);
      loader.copy(k(i), begin + i * kKvTile);
      loader.fetch(begin + (i + 1) * kKvTile);
    }
    copy_commit();
  }
  // This thread's part of tile i has come; kAfter copies were started after it.
  template <int kAfter>
  __device__ void finish_copy(int i) {
    copy_wait<kAfter>();
    publish_copies();
    barrier_arrive(full + i % kStages * 8);
  }
  __device__ void wait(int i) { barrier_wait(full + i % kStages * 8, i / kStages); }
  __device__ void release(int i) { barrier_arrive(empty + i % kStages * 8); }
  // The first copies, behind those of q; q's are done.
  __device__ void start() {
    for (int i = 0; i < kAhead; ++i) start_copy(i);
    copy_wait<kAhead>();
  }
  __device__ void finish_first() {
    finish_copy<kAhead - 1>(0);
    finish_copy<kAhead - 2>(1);
  }
  __device__ void step(int i) {
    start_copy(i + kAhead);
    finish_copy<kAhead - 2>(i + 2);
  }
};

// The same of an 8-bit cache: tile i + 3 is loaded into registers while tile i is in work, and
// written to its stage a step later.
template <typename KV, int D>
struct WideningRing {
  using Loader = WideningLoader<KV, kThreads, D>;
  static constexpr int kStages = Layout<D, false>::kStages;
  uint32_t stages, full, empty;
  int begin, num;
  Loader loader;
  typename Loader::Bytes first, ahead;

  __device__ uint32_t k(int i) const { return stages + i % kStages * kStageBytes<D>; }
  __device__ uint32_t v(int i) const { return k(i) + kStageBytes<D> / 2; }

  // Tile i, whose ids are there; then the ids of the next.
  __device__ void load(typename Loader::Bytes& to, int i) {
    if (i >= num) return;
    loader.load(to, begin + i * kKvTile);
    loader.fetch(begin + (i + 1) * kKvTile);
  }
  __device__ void put(const typename Loader::Bytes& from, int i) {
    if (i >= num) return;
    if (i >= kStages) barrier_wait(empty + i % kStages * 8, i / kStages - 1);
    loader.store(from, k(i));
    publish_copies();
    barrier_arrive(full + i % kStages * 8);
  }
  __device__ void wait(int i) { barrier_wait(full + i % kStages * 8, i / kStages); }
  __device__ void release(int i) { barrier_arrive(empty + i % kStages * 8); }
  __device__ void start() {
    load(first, 0);
    load(ahead, 1);
    copy_wait<0>();
  }
  __device__ void finish_first() {
    put(first, 0);
    put(ahead, 1);
    load(ahead, 2);
  }
  __device__ void step(int i) {
    put(ahead, i + 2);
    load(ahead, i + 3);
  }
};

template <typename KV, int D, bool kSpans>
using RingOf = std::conditional_t<sizeof(KV) == 1, WideningRing<KV, D>, Ring<D, kSpans>>;

// An 8-bit cache is multiplied in halves. Its kernels do not add up by spans, whose bits must be
// those of launch_mma().
template <typename T, typename KV, int D, bool kSpans>
__global__ __launch_bounds__(kThreads, D <= 64 ? 2 : 1) void wgmma_kernel(TilePlan plan) {
#if SLUICE_HAS_WGMMA
  constexpr int kStages = Layout<D, kSpans>::kStages;
  constexpr bool kBytes = sizeof(KV) == 1;
  constexpr bool kUnits = kBytes && std::is_same_v<T, __nv_bfloat16>;
  static_assert(!(kBytes && kSpans));
  using M = std::conditional_t<kBytes, __half, T>;
  using TileRing = RingOf<KV, D, kSpans>;
  extern __shared__ __align__(1024) uint8_t smem[];
  wait_for_previous_kernel();
  Tile tile;
  if (!find_tile<kRows>(plan, tile)) return;
  const AttentionParams& p = plan.a;
  TileView<kRows> view(tile, p);
  int lane = threadIdx.x % 32, group = threadIdx.x / 128;
  bool pair = tile.first + 64 < view.total;  // both warpgroups have rows
  int begin = view.lo / kKvTile * kKvTile;
  int num = (view.hi - begin + kKvTile - 1) / kKvTile;
  uint32_t stages = smem_address(smem), full = stages + Layout<D, kSpans>::kBarriers;
  uint32_t empty = full + kStages * 8;
  if (threadIdx.x < kStages) {
    barrier_init(full + threadIdx.x * 8, kThreads);
    barrier_init(empty + threadIdx.x * 8, pair ? kThreads : kThreads / 2);
  }
  TileRing ring{stages, full, empty, begin, num, {p, tile, view.lo, view.hi}};

  ring.loader.fetch(begin);
  // A stage that is not filled before step 1: q has been read by then.
  uint32_t q_smem = ring.k(kStages - 1);
  QueryLoader<T, D>::copy(q_smem, p, tile, view.total);
  copy_commit();
  ring.start();
  __syncthreads();
  Queries<M, M, D> queries;
  QueryLoader<M, D>::load(queries, q_smem);
  float unit[2];
  if constexpr (kUnits) halve_queries<D>(queries.f, unit);
  ring.finish_first();
  if (group == 1 && !pair) {
    for (int i = 0; i < num; ++i) {
      if (i > 0) ring.wait(i);  // so that q has been read before its stage is filled
      ring.step(i);
    }
    return;
  }

  float o[D / 8][4] = {}, s[kKvTile / 8][4] = {};
  SoftmaxState state;
  SpanOutput<D, kThreads> before(smem + Layout<D, kSpans>::kTotal);
  ring.wait(0);
  queue_scores<M, D>(s, queries, ring.k(0));
  wgmma_wait<0>();
  pin(s);
  for (int i = 0; i < num; ++i) {
    int at = begin + i * kKvTile;
    float alpha[2], keep[2], take[2];
    bool new_span = kSpans && i > 0 && at == span_end(at - kKvTile);
    if (new_span) {
      before.total.add(state, keep, take);
      state = {};
    }
    uint32_t weights[kKvTile / 16][4];
    if constexpr (kUnits) {
#pragma unroll
      for (int n = 0; n < kKvTile / 8; ++n) {
#pragma unroll
        for (int c = 0; c < 4; ++c) s[n][c] *= unit[c / 2];
      }
    }
    apply_softcap(s, p);
    if (view.needs_mask(at)) mask(s, at, view.from, view.to, lane);
    online_softmax(s, p.factor, state, alpha);
    finish_before_wait(state.sum[0] + state.sum[1], ring.stages);
    wgmma_wait<0>();  // the previous tile's sum, which reads the registers of its weights
    pin(o);
    pin(s);
    if (i > 0) ring.release(i - 1);
#pragma unroll
    for (int n = 0; n < kKvTile / 16; ++n) {
      weights_fragment<M>(weights[n], s[n * 2], s[n * 2 + 1]);
    }
    if (new_span) {
      before.add(o, keep, take);
    } else if (__any_sync(~0u, alpha[0] != 1 || alpha[1] != 1)) {
      rescale(o, alpha);
    }
    if constexpr (!kBytes) ring.step(i);
    if (i + 1 < num) ring.wait(i + 1);
    pin(o);
    pin(s);
    if (i + 1 < num) queue_scores<M, D>(s, queries, ring.k(i + 1));
    queue_sum<M, D>(o, weights, ring.v(i));
    if constexpr (kBytes) ring.step(i);  // widens a tile while the tensor cores work
    wgmma_wait<1>();                     // the next scores; nothing after the last tile
    pin(s);
  }
  wgmma_wait<0>();
  pin(o);
  before.template finish<kSpans>(o, state);
  store_output<T, T, D, kRows>(o, before.total, plan, tile, view);
#else
  __trap();
#endif
}

template <typename T, typename KV, int D, bool kSpans>
void launch(TilePlan plan, std::span<const SliceView> slices, cudaStream_t stream) {
  constexpr int kBytes = Layout<D, kSpans>::kBytes;
  plan_tiles(plan, slices, kRows);
  allow_shared<wgmma_kernel<T, KV, D, kSpans>>(kBytes, "attention prefill");
  wgmma_kernel<T, KV, D, kSpans>
      <<<plan.num_tiles * plan.a.kv_heads, kThreads, kBytes, stream>>>(plan);
  check_launch("attention prefill");
}

template <typename T, typename KV, bool kSpans>
void launch_dim(const TilePlan& plan, std::span<const SliceView> slices, cudaStream_t stream) {
  if (plan.a.head_dim <= 64) return launch<T, KV, 64, kSpans>(plan, slices, stream);
  launch<T, KV, 128, kSpans>(plan, slices, stream);
}

}  // namespace

void launch_wgmma(TilePlan plan,
                  DType type,
                  KvType kv_type,
                  bool spans,
                  std::span<const SliceView> slices,
                  cudaStream_t stream) {
  with_cache_types(type, kv_type, [&](auto t, auto kv) {
    using T = decltype(t);
    using KV = decltype(kv);
    if constexpr (sizeof(KV) == 2) {
      if (spans) return launch_dim<T, KV, true>(plan, slices, stream);
    }
    launch_dim<T, KV, false>(plan, slices, stream);
  });
}

}  // namespace sluice::cuda
