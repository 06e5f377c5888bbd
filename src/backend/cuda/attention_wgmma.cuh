// Attention of 128 rows on Hopper's warpgroup matrix instructions: products, queries in fragments,
// and the ring of K and V tiles. Device code, shared by attention_wgmma.cu and
// attention_prefix_wgmma.cu.
#pragma once

#include "backend/cuda/attention_prefill.cuh"
#include "backend/cuda/hopper.cuh"

namespace sluice::cuda {

// A block has two warpgroups of 64 (query, head) rows each.
inline constexpr int kWgmmaRows = 128;
inline constexpr int kWgmmaThreads = 256;

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
// Makes this thread's finished copies visible to the tensor cores.
__device__ inline void publish_copies() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Panels of SmemRows as operands: 128-byte swizzle, groups of eight rows 1,024 bytes apart, panels
// of 64 columns kKvTile * 128 bytes apart.
__device__ inline uint64_t descriptor(uint32_t address) {
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
  static constexpr int kBarriers = kTotal + (kSpans ? SpanOutput<D, kWgmmaThreads>::kBytes : 0);
  static constexpr int kBytes = kBarriers + 2 * kStages * 8;
};

// Rows of q in fragments, by way of shared memory (SmemRows of kWgmmaRows).
template <typename T, int D>
struct QueryLoader {
  using Rows = SmemRows<kWgmmaRows, D * 2>;
  static_assert(Rows::kSize <= kStageBytes<D>);
  static constexpr int kStep = kWgmmaThreads / Rows::kChunks;

  // row_of(query): the batch row of the tile's query.
  template <typename RowOf>
  __device__ static void copy(
      uint32_t to, const AttentionParams& p, const Tile& tile, int total, const RowOf& row_of) {
    int row = threadIdx.x / Rows::kChunks, c = threadIdx.x % Rows::kChunks;
    const T* q = static_cast<const T*>(p.q) +
                 static_cast<int64_t>(tile.kv_head) * p.group * p.head_dim + c * 8;
#pragma unroll
    for (int i = 0; i < kWgmmaRows / kStep; ++i) {
      int r = row + i * kStep, in_slice = tile.first + r;
      int query = p.query_of(in_slice);
      bool valid = in_slice < total && c * 8 < p.head_dim;
      const T* from = q;
      if (valid) from += row_of(query) * p.q_stride + (in_slice - query * p.group) * p.head_dim;
      copy16(to + Rows::at(r, c), from, valid);
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

// o += weights · v, queued; where o is new, without what it was. To set it to zero instead would
// make the products wait for each other (ptxas: C7514).
template <typename T, int D>
__device__ void queue_sum(float (&o)[D / 8][4],
                          const uint32_t (&w)[kKvTile / 16][4],
                          uint32_t v,
                          bool is_new) {
  wgmma_fence();
#pragma unroll
  for (int n = 0; n < kKvTile / 16; ++n) {
    wgmma<T, 1>(o, w[n], descriptor(v + n * 16 * 128), n > 0 || !is_new);
  }
  wgmma_commit();
}

// The block's copies of K and V tiles through the ring of stages. Every thread copies a part of
// every tile.
template <int D, bool kSpans>
struct Ring {
  static constexpr int kStages = Layout<D, kSpans>::kStages, kAhead = Layout<D, kSpans>::kAhead;
  uint32_t stages, full, empty;  // addresses; barriers are kStages times 8 bytes
  int begin, num;
  TileLoader<kWgmmaThreads, D * 2> loader;

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

}  // namespace sluice::cuda
