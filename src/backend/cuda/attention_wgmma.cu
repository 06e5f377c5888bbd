// Attention of slices on Hopper's warpgroup matrix instructions: f16 or bf16 cache, head_dim up to
// 128. A warpgroup takes 64 (query, head) rows with q, scores and output in registers; K and V
// tiles of 64 positions lie in shared memory, four deep. The next tile's scores and this tile's
// weighted sum are queued together, so that the softmax runs while the tensor cores do the sum.
#include "backend/cuda/attention_prefill.cuh"
#include "backend/cuda/check.cuh"

namespace sluice::cuda {
namespace {

constexpr int kWarpgroups = 2;  // of a block

#define SLUICE_ACC4(d, i) "+f"(d[i][0]), "+f"(d[i][1]), "+f"(d[i][2]), "+f"(d[i][3])
#define SLUICE_ACC8(d, i) SLUICE_ACC4(d, i), SLUICE_ACC4(d, i + 1)

// d [64, 64] = a [64, 16] · b [16, 64], plus d where `accumulate`.
template <typename T, int kTransposed>
__device__ void wgmma(float (&d)[8][4], const uint32_t (&a)[4], uint64_t b, int accumulate) {
  if constexpr (std::is_same_v<T, __half>) {
    asm volatile(
        "{.reg .pred p; setp.ne.b32 p, %37, 0; "
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, "
        "%19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
        "{%32,%33,%34,%35}, %36, p, 1, 1, %38;}"
        : SLUICE_ACC8(d, 0), SLUICE_ACC8(d, 2), SLUICE_ACC8(d, 4), SLUICE_ACC8(d, 6)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate), "n"(kTransposed));
  } else {
    asm volatile(
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
    asm volatile(
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
    asm volatile(
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

__device__ inline void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int kPending>
__device__ inline void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
// Keeps the compiler from touching d before (or after) here.
template <int N>
__device__ void pin(float (&d)[N][4]) {
#pragma unroll
  for (int n = 0; n < N; ++n) {
    asm volatile("" : "+f"(d[n][0]), "+f"(d[n][1]), "+f"(d[n][2]), "+f"(d[n][3])::"memory");
  }
}
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

template <typename T, int D, int kGroups>
struct WgmmaShape {
  static constexpr int kRows = 64 * kGroups;
  static constexpr int kThreads = 128 * kGroups;
  static constexpr int kStages = kGroups == 1 ? 3 : 4;
  using Rows = SmemRows<kKvTile, D * 2>;
  static constexpr int kStageBytes = 2 * Rows::kSize;
  static constexpr int kBytes = kStages * kStageBytes + 1024;  // and room to align
};

// s = q · kᵀ, queued.
template <typename T, int D>
__device__ void queue_scores(float (&s)[kKvTile / 8][4], const Queries<T, T, D>& q, uint32_t k) {
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
#pragma unroll
  for (int n = 0; n < kKvTile / 16; ++n) wgmma<T, 1>(o, w[n], descriptor(v + n * 16 * 128), 1);
  wgmma_commit();
}

template <typename T, int D, int kGroups>
__global__ __launch_bounds__(128 * kGroups, kGroups == 1 ? 2 : 1) void wgmma_kernel(TilePlan plan) {
  using Shape = WgmmaShape<T, D, kGroups>;
  constexpr int kStages = Shape::kStages, kStage = Shape::kStageBytes, kRows = Shape::kRows;
  extern __shared__ __align__(128) uint8_t smem[];
  wait_for_previous_kernel();
  Tile tile;
  if (!find_tile<kRows>(plan, tile)) return;
  const AttentionParams& p = plan.a;
  TileView<kRows> view(tile, p);
  int lane = threadIdx.x % 32;
  int begin = view.lo / kKvTile * kKvTile;
  int num = (view.hi - begin + kKvTile - 1) / kKvTile;

  uint32_t stages = (smem_address(smem) + 1023) & ~1023u;
  TileLoader<Shape::kThreads, D * 2> loader(p, tile, view.lo, view.hi);
  loader.fetch(begin);
#pragma unroll
  for (int i = 0; i < kStages - 1; ++i) {
    if (i < num) loader.copy(stages + i * kStage, begin + i * kKvTile);
    copy_commit();
    loader.fetch(begin + (i + 1) * kKvTile);
  }
  const T* q = static_cast<const T*>(p.q);
  Queries<T, T, D> queries;
  queries.load(view.row[0] < view.total ? q + view.offset(tile, p, 0, p.q_stride) : nullptr,
               view.row[1] < view.total ? q + view.offset(tile, p, 1, p.q_stride) : nullptr,
               p.head_dim, 0, lane);

  float o[D / 8][4] = {}, s[kKvTile / 8][4] = {};
  SoftmaxState state;
  copy_wait<kStages - 2>();
  publish_copies();
  __syncthreads();
  wgmma_fence();
  queue_scores<T, D>(s, queries, stages);
  wgmma_wait<0>();
  pin(s);
  int stage = 0;
  for (int i = 0; i < num; ++i) {
    int at = begin + i * kKvTile;
    float alpha[2];
    uint32_t weights[kKvTile / 16][4];
    apply_softcap(s, p);
    if (view.needs_mask(at)) mask(s, at, view.from, view.to, lane);
    online_softmax(s, p.factor, state, alpha);
    finish_before_wait(state.sum[0] + state.sum[1], stages);
    wgmma_wait<0>();  // the previous tile's sum, which reads the registers of its weights
    pin(o);
    pin(s);
#pragma unroll
    for (int n = 0; n < kKvTile / 16; ++n) weights_fragment<T, kKvTile>(weights[n], s, n);
    if (__any_sync(~0u, alpha[0] != 1 || alpha[1] != 1)) rescale(o, alpha);
    copy_wait<kStages - 3>();
    publish_copies();
    __syncthreads();  // tile i + 1 has come, and nobody reads tile i - 1
    int next = stage + 1 == kStages ? 0 : stage + 1;
    uint32_t v = stages + stage * kStage + kStage / 2;
    pin(o);
    pin(s);
    wgmma_fence();
    if (i + 1 < num) queue_scores<T, D>(s, queries, stages + next * kStage);
    queue_sum<T, D>(o, weights, v);
    int ahead = i + kStages - 1;
    if (ahead < num) {
      loader.copy(stages + (stage == 0 ? kStages - 1 : stage - 1) * kStage,
                  begin + ahead * kKvTile);
      loader.fetch(begin + (ahead + 1) * kKvTile);
    }
    copy_commit();
    wgmma_wait<1>();  // the next scores; nothing after the last tile
    pin(s);
    stage = next;
  }
  wgmma_wait<0>();
  pin(o);
  store_output<T, T, D, kRows>(o, state, plan, tile, view);
}

template <typename T, int D, int kGroups>
void launch(TilePlan plan, std::span<const SliceView> slices, cudaStream_t stream) {
  using Shape = WgmmaShape<T, D, kGroups>;
  plan_tiles(plan, slices, Shape::kRows);
  static const cudaError_t ready = cudaFuncSetAttribute(
      wgmma_kernel<T, D, kGroups>, cudaFuncAttributeMaxDynamicSharedMemorySize, Shape::kBytes);
  check(ready, "attention prefill");
  wgmma_kernel<T, D, kGroups>
      <<<plan.num_tiles * plan.a.kv_heads, Shape::kThreads, Shape::kBytes, stream>>>(plan);
  check_launch("attention prefill");
}

template <typename T>
void launch_dim(const TilePlan& plan, std::span<const SliceView> slices, cudaStream_t stream) {
  if (plan.a.head_dim <= 64) return launch<T, 64, kWarpgroups>(plan, slices, stream);
  launch<T, 128, kWarpgroups>(plan, slices, stream);
}

}  // namespace

void launch_wgmma(TilePlan plan,
                  DType type,
                  std::span<const SliceView> slices,
                  cudaStream_t stream) {
  type == DType::f16 ? launch_dim<__half>(plan, slices, stream)
                     : launch_dim<__nv_bfloat16>(plan, slices, stream);
}

}  // namespace sluice::cuda
