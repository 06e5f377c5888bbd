// Hopper's warpgroup matrix instructions, barriers in shared memory, and copies by tensor map.
#pragma once

#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "backend/cuda/arch.cuh"

#if !SLUICE_HAS_WGMMA
#pragma nv_diag_suppress 177  // functions that nobody calls where kernels are empty
#endif

namespace sluice::cuda {

// Kernels with wgmma are empty where code has none, and not started (has_wgmma()).
#if !SLUICE_HAS_WGMMA
#define SLUICE_WGMMA(...) __trap()
#else
#define SLUICE_WGMMA(...) asm volatile(__VA_ARGS__)
#endif

__device__ inline void wgmma_fence() { SLUICE_WGMMA("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void wgmma_commit() {
  SLUICE_WGMMA("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int kPending>
__device__ inline void wgmma_wait() {
  SLUICE_WGMMA("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
// Keeps the compiler from touching d before (or after) here.
template <int N>
__device__ void pin(float (&d)[N][4]) {
#pragma unroll
  for (int n = 0; n < N; ++n) {
    asm volatile("" : "+f"(d[n][0]), "+f"(d[n][1]), "+f"(d[n][2]), "+f"(d[n][3])::"memory");
  }
}
template <int N>
__device__ void pin(int32_t (&d)[N][4]) {
#pragma unroll
  for (int n = 0; n < N; ++n) {
    asm volatile("" : "+r"(d[n][0]), "+r"(d[n][1]), "+r"(d[n][2]), "+r"(d[n][3])::"memory");
  }
}

// The type of sums of products of T. Sums of int8 are exact.
template <typename T>
using SumOf = std::conditional_t<std::is_same_v<T, int8_t>, int32_t, float>;

// Registers of each thread of the warpgroup from here on: freed by one, taken by another.
template <int kRegisters>
__device__ inline void give_registers() {
  SLUICE_WGMMA("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ inline void take_registers() {
  SLUICE_WGMMA("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// Barriers in shared memory that count threads, in phases.
__device__ inline void barrier_init(uint32_t barrier, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}
// Before its memory becomes a barrier again.
__device__ inline void barrier_end(uint32_t barrier) {
  asm volatile("mbarrier.inval.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}
__device__ inline void barrier_arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// Built with SLUICE_BOUND_WAITS a wait that takes seconds ends the kernel with an error instead of
// hanging the GPU.
struct WaitBound {
#ifdef SLUICE_BOUND_WAITS
  const long long start = clock64();
  __device__ void check() const {
    if (clock64() - start > 4'000'000'000LL) __trap();
  }
#else
  __device__ void check() const {}
#endif
};
// Until phase `phase` (counted from 0) is complete.
__device__ inline void barrier_wait(uint32_t barrier, int phase) {
  uint32_t done;
  const WaitBound bound;
  do {
    bound.check();
    asm volatile(
        "{.reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; "
        "selp.u32 %0, 1, 0, p;}"
        : "=r"(done)
        : "r"(barrier), "r"(phase & 1)
        : "memory");
  } while (!done);
}

// Besides the arrival, `bytes` that copies will bring are part of the phase.
__device__ inline void barrier_expect(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}
// Barriers that were just made are visible to copies.
__device__ inline void publish_barriers() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// Barriers of a ring of boxes: copies fill a stage, `warps` warps read it. By all threads.
__device__ inline void init_ring_barriers(uint32_t full, uint32_t empty, int stages, int warps) {
  if (threadIdx.x == 0) {
    for (int i = 0; i < stages; ++i) {
      barrier_init(full + i * 8, 1);
      barrier_init(empty + i * 8, warps);
    }
    publish_barriers();
  }
  __syncthreads();
}

// Copies by this map will come.
__device__ inline void prefetch_map(const CUtensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

// The box of `map` at (column, row) into shared memory; `barrier` learns of it. Weights are read
// once: their lines leave the L2 first.
enum class Reuse : uint64_t {
  normal = 0x1000000000000000,
  once = 0x12f0000000000000,
  often = 0x14f0000000000000
};
template <Reuse kReuse>
__device__ inline void copy_box(
    uint32_t to, const CUtensorMap& map, int column, int row, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%2, %3}], [%4], %5;" ::"r"(to),
      "l"(&map), "r"(column), "r"(row), "r"(barrier), "l"(static_cast<uint64_t>(kReuse))
      : "memory");
}

// The box of a tile's weights, from row `row` of the tiles on. Gated (weight_map()): eight gates
// and their eight ups in turn.
template <Reuse kReuse>
__device__ inline void copy_weight_box(
    uint32_t to, const CUtensorMap& map, bool gated, int column, int row, uint32_t barrier) {
  if (!gated) return copy_box<kReuse>(to, map, column, row, barrier);
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%2, %3, %3, %4}], [%5], %6;" ::"r"(to),
      "l"(&map), "r"(column), "r"(0), "r"(row / 16), "r"(barrier),
      "l"(static_cast<uint64_t>(kReuse))
      : "memory");
}

// copy_box() into both blocks of a cluster of two: at the same place in each, whose barrier learns
// of it.
template <Reuse kReuse>
__device__ inline void copy_box_to_both(
    uint32_t to, const CUtensorMap& map, int column, int row, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes."
      "multicast::cluster.L2::cache_hint [%0], [%1, {%2, %3}], [%4], %5, %6;" ::"r"(to),
      "l"(&map), "r"(column), "r"(row), "r"(barrier), "h"(static_cast<uint16_t>(3)),
      "l"(static_cast<uint64_t>(kReuse))
      : "memory");
}

// Makes this thread's writes to shared memory visible to copies that begin behind a barrier.
__device__ inline void publish_writes() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
// A box in shared memory to (column, row) of `map`, less what lies outside.
__device__ inline void store_box(const CUtensorMap& map, int column, int row, uint32_t from) {
  asm volatile(
      "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];" ::"l"(&map),
      "r"(column), "r"(row), "r"(from)
      : "memory");
}
// Makes a group of this thread's stores since the last one.
__device__ inline void commit_stores() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
// Until this thread's groups but the last kPending have been read.
template <int kPending>
__device__ inline void wait_until_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}
// Until all groups have been written.
__device__ inline void wait_until_stored() {
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

// c: the constraint of a register, "+f" or "+r".
#define SLUICE_ACC(c, d, i) c(d[i][0]), c(d[i][1]), c(d[i][2]), c(d[i][3])
#define SLUICE_ACC1(c, d) SLUICE_ACC(c, d, 0)
#define SLUICE_ACC2(c, d) SLUICE_ACC1(c, d), SLUICE_ACC(c, d, 1)
#define SLUICE_ACC4(c, d) SLUICE_ACC2(c, d), SLUICE_ACC(c, d, 2), SLUICE_ACC(c, d, 3)
#define SLUICE_ACC6(c, d) SLUICE_ACC4(c, d), SLUICE_ACC(c, d, 4), SLUICE_ACC(c, d, 5)
#define SLUICE_ACC8(c, d)                                                           \
  SLUICE_ACC4(c, d), SLUICE_ACC(c, d, 4), SLUICE_ACC(c, d, 5), SLUICE_ACC(c, d, 6), \
      SLUICE_ACC(c, d, 7)
#define SLUICE_ACC12(c, d)                                                           \
  SLUICE_ACC8(c, d), SLUICE_ACC(c, d, 8), SLUICE_ACC(c, d, 9), SLUICE_ACC(c, d, 10), \
      SLUICE_ACC(c, d, 11)
#define SLUICE_ACC16(c, d)                                                                    \
  SLUICE_ACC8(c, d), SLUICE_ACC(c, d, 8), SLUICE_ACC(c, d, 9), SLUICE_ACC(c, d, 10),          \
      SLUICE_ACC(c, d, 11), SLUICE_ACC(c, d, 12), SLUICE_ACC(c, d, 13), SLUICE_ACC(c, d, 14), \
      SLUICE_ACC(c, d, 15)
#define SLUICE_ACC24(c, d)                                                                    \
  SLUICE_ACC16(c, d), SLUICE_ACC(c, d, 16), SLUICE_ACC(c, d, 17), SLUICE_ACC(c, d, 18),       \
      SLUICE_ACC(c, d, 19), SLUICE_ACC(c, d, 20), SLUICE_ACC(c, d, 21), SLUICE_ACC(c, d, 22), \
      SLUICE_ACC(c, d, 23)
#define SLUICE_ACC32(c, d)                                                                    \
  SLUICE_ACC24(c, d), SLUICE_ACC(c, d, 24), SLUICE_ACC(c, d, 25), SLUICE_ACC(c, d, 26),       \
      SLUICE_ACC(c, d, 27), SLUICE_ACC(c, d, 28), SLUICE_ACC(c, d, 29), SLUICE_ACC(c, d, 30), \
      SLUICE_ACC(c, d, 31)
#define SLUICE_LIST1 "{%0, %1, %2, %3}, %4, %5, p"
#define SLUICE_LIST2 "{%0, %1, %2, %3, %4, %5, %6, %7}, %8, %9, p"
#define SLUICE_LIST4 \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, %16, %17, p"
#define SLUICE_LIST6                                                             \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, " \
  "%17, %18, %19, %20, %21, %22, %23}, %24, %25, p"
#define SLUICE_LIST8                                                                  \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, " \
  "%18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, %32, %33, p"
#define SLUICE_LIST12                                                            \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, " \
  "%17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "  \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, "  \
  "%47}, %48, %49, p"
#define SLUICE_LIST16                                                            \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, " \
  "%17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "  \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, "  \
  "%47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, "  \
  "%62, %63}, %64, %65, p"
#define SLUICE_LIST24                                                            \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, " \
  "%17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "  \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, "  \
  "%47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, "  \
  "%62, %63, %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, "  \
  "%77, %78, %79, %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, "  \
  "%92, %93, %94, %95}, %96, %97, p"
#define SLUICE_LIST32                                                        \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "  \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, "   \
  "%30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, "   \
  "%44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, "   \
  "%58, %59, %60, %61, %62, %63, %64, %65, %66, %67, %68, %69, %70, %71, "   \
  "%72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, %84, %85, "   \
  "%86, %87, %88, %89, %90, %91, %92, %93, %94, %95, %96, %97, %98, %99, "   \
  "%100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
  "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, " \
  "%124, %125, %126, %127}, %128, %129, p"

// d [64 rows of w, 8 * tiles of x] += w · xᵀ over 32 bytes of columns, both operands in shared
// memory; from nothing where `add` is 0. A thread of the warpgroup has d[t][j] of w's row
// warp * 16 + lane / 4 + j / 2 * 8 and x's row t * 8 + lane % 4 * 2 + j % 2.
#define SLUICE_PRODUCT(type, c, tiles, shape, names, tail, flag)                                  \
  __device__ inline void product(SumOf<type>(&d)[tiles][4], uint64_t w, uint64_t x, int add,      \
                                 type) {                                                          \
    SLUICE_WGMMA("{.reg .pred p; setp.ne.b32 p, " flag                                            \
                 ", 0; wgmma.mma_async.sync.aligned." shape names " " SLUICE_LIST##tiles tail "}" \
                 : SLUICE_ACC##tiles(c, d)                                                        \
                 : "l"(w), "l"(x), "r"(add));                                                     \
  }
#define SLUICE_PRODUCTS(tiles, n, flag)                                                         \
  SLUICE_PRODUCT(__half, "+f", tiles, "m64n" n "k16", ".f32.f16.f16", ", 1, 1, 0, 0;", flag)    \
  SLUICE_PRODUCT(__nv_bfloat16, "+f", tiles, "m64n" n "k16", ".f32.bf16.bf16", ", 1, 1, 0, 0;", \
                 flag)                                                                          \
  SLUICE_PRODUCT(__nv_fp8_e4m3, "+f", tiles, "m64n" n "k32", ".f32.e4m3.e4m3", ", 1, 1;", flag) \
  SLUICE_PRODUCT(int8_t, "+r", tiles, "m64n" n "k32", ".s32.s8.s8", ";", flag)
SLUICE_PRODUCTS(1, "8", "%6")
SLUICE_PRODUCTS(2, "16", "%10")
SLUICE_PRODUCTS(4, "32", "%18")
SLUICE_PRODUCTS(6, "48", "%26")
SLUICE_PRODUCTS(8, "64", "%34")
SLUICE_PRODUCTS(12, "96", "%50")
SLUICE_PRODUCTS(16, "128", "%66")
SLUICE_PRODUCTS(24, "192", "%98")
SLUICE_PRODUCTS(32, "256", "%130")

#undef SLUICE_PRODUCTS
#undef SLUICE_PRODUCT
#undef SLUICE_LIST32
#undef SLUICE_LIST24
#undef SLUICE_LIST16
#undef SLUICE_LIST12
#undef SLUICE_LIST8
#undef SLUICE_LIST6
#undef SLUICE_LIST4
#undef SLUICE_LIST2
#undef SLUICE_LIST1
#undef SLUICE_ACC32
#undef SLUICE_ACC24
#undef SLUICE_ACC16
#undef SLUICE_ACC12
#undef SLUICE_ACC8
#undef SLUICE_ACC6
#undef SLUICE_ACC4
#undef SLUICE_ACC2
#undef SLUICE_ACC1
#undef SLUICE_ACC

// Rows of 128 bytes with the 128-byte swizzle, groups of eight rows 1,024 bytes apart.
__device__ inline uint64_t operand(uint32_t address) {
  return static_cast<uint64_t>((address & 0x3ffff) >> 4) | uint64_t{1} << 16 |
         uint64_t{1024 >> 4} << 32 | uint64_t{1} << 62;
}

template <typename S, int kTiles>
__device__ inline void add_parts(S (&sum)[2][kTiles][4], const S (&part)[2][kTiles][4]) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
#pragma unroll
      for (int j = 0; j < 4; ++j) sum[h][t][j] += part[h][t][j];
    }
  }
}

// The tensor cores add up f8 in few bits.
template <typename T>
inline constexpr bool kFewBits = std::is_same_v<T, __nv_fp8_e4m3>;

// One box of both operands, 128 rows of w: part += w · xᵀ over 128 bytes of columns, done when it
// returns. Of kFewBits `part` is the box's alone, and `sum` ours.
template <typename T, int kTiles>
__device__ inline void multiply_box(SumOf<T> (&sum)[2][kTiles][4],
                                    SumOf<T> (&part)[2][kTiles][4],
                                    uint32_t w,
                                    uint32_t x) {
  wgmma_fence();
#pragma unroll
  for (int k = 0; k < 4; ++k) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      product(part[h], operand(w + h * 64 * 128 + k * 32), operand(x + k * 32),
              !kFewBits<T> || k > 0, T{});
    }
  }
  wgmma_commit();
  wgmma_wait<0>();
  pin(part[0]);
  pin(part[1]);
  if constexpr (kFewBits<T>) add_parts(sum, part);
}

}  // namespace sluice::cuda
