// Device code: a row is held by a cluster of blocks, each with a slice of the vocabulary, or by one
// block alone. Exchanges between its blocks, reductions and sorts within one. Included by
// sampling.cu.
#pragma once

#include <cooperative_groups.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "backend/cuda/arch.cuh"

namespace sluice::cuda {

inline constexpr int kCluster = 8;  // blocks of a row, where a cluster has it
inline constexpr int kSampleThreads = 512;
inline constexpr int kSampleWarps = kSampleThreads / 32;
inline constexpr int kBuckets = 2 * kSampleThreads;
inline constexpr int kMaxGathered = 2 * kSampleThreads;  // candidates that one block finishes alone
inline constexpr int kMail = 4;                          // words of a letter

// Order of likelihood as unsigned integers, all distinct: by logit, then by lower id. NaN is below
// kLeastRanked, -inf is not.
inline constexpr uint64_t kLeastRanked = uint64_t{1} << 32;
inline constexpr uint32_t kMinusInfKey = 0x007fffff;

__device__ inline uint32_t key_of(float x) {
  if (isnan(x)) return 0;
  uint32_t bits = __float_as_uint(__fadd_rn(x, 0.0f));  // -0 becomes 0
  return bits ^ (static_cast<uint32_t>(static_cast<int32_t>(bits) >> 31) | 0x80000000u);
}
__device__ inline float logit_of(uint32_t key) {
  return __uint_as_float((key & 0x80000000u) != 0 ? key ^ 0x80000000u : ~key);
}
__device__ inline uint64_t place_of(uint32_t key, int id) {
  return uint64_t{key} << 32 | ~static_cast<uint32_t>(id);
}
__device__ inline uint64_t place_of(float x, int id) { return place_of(key_of(x), id); }
__device__ inline int id_at(uint64_t place) {
  return static_cast<int>(~static_cast<uint32_t>(place));
}
__device__ inline float logit_at(uint64_t place) {
  return logit_of(static_cast<uint32_t>(place >> 32));
}

struct alignas(16) SampleShared {
  uint32_t low[kBuckets], high[kBuckets];  // a histogram of 64-bit sums
  uint64_t list[kMaxGathered];             // this block's candidates
  uint64_t gathered[kMaxGathered];         // those of all blocks, in the first block
  uint64_t partial[2][kSampleWarps];
  uint64_t mail[2][kCluster][kMail];  // letters from each block, by parity of the exchange
  uint64_t above;
  uint32_t num_list;
  int32_t bucket;
  int32_t token;
  uint16_t rows[kSampleThreads];  // that the cluster has to do
};

enum class Fold { sum, min, max };

template <Fold kFold>
__device__ inline uint64_t fold(uint64_t a, uint64_t b) {
  if constexpr (kFold == Fold::sum) return a + b;
  if constexpr (kFold == Fold::min) return a < b ? a : b;
  return a > b ? a : b;
}

// One thread's view of the cluster of kBlocks, 1: a block alone. Every member function is called by
// all threads of the block, and exchange() by all blocks.
template <int kBlocks>
struct Block {
  static constexpr bool kAlone = kBlocks == 1;
  SampleShared& s;
  int thread, warp, lane;
  int rank;  // of this block in the cluster; 0 leads
  int parity = 0;
  int turn = 0;  // of s.partial: two folds in a row need one barrier each

  bool met = false;

  // Announces this block to the others of the cluster.
  __device__ explicit Block(SampleShared& shared)
      : s(shared),
        thread(static_cast<int>(threadIdx.x)),
        warp(thread / 32),
        lane(thread % 32),
        rank(static_cast<int>(blockIdx.x) % kBlocks) {
    if constexpr (!kAlone) asm volatile("barrier.cluster.arrive.relaxed;");
  }

  // Before the first exchange: the other blocks are there. Loads may be under way meanwhile.
  __device__ void meet() {
    if constexpr (!kAlone) {
      if (!met) asm volatile("barrier.cluster.wait;" ::: "memory");
      met = true;
    }
  }

  __device__ static void sync_cluster() {
    if constexpr (kAlone) {
      __syncthreads();
    } else {
      asm volatile("barrier.cluster.arrive;\n\tbarrier.cluster.wait;" ::: "memory");
    }
  }

  template <typename T>
  __device__ static T* remote(T* mine, int block) {
    if constexpr (kAlone) return mine;
#if SLUICE_HAS_CLUSTERS
    return cooperative_groups::this_cluster().map_shared_rank(mine, static_cast<unsigned>(block));
#endif
  }

  // Every block sends the same letter to all, then all have all letters. Two parities: a letter may
  // be read until the exchange after the next.
  struct Letters {
    const uint64_t (*words)[kMail];
    __device__ uint64_t operator()(int block, int word) const { return words[block][word]; }
    template <Fold kFold>
    __device__ uint64_t all(int word) const {
      uint64_t v = words[0][word];
#pragma unroll
      for (int b = 1; b < kBlocks; ++b) v = fold<kFold>(v, words[b][word]);
      return v;
    }
  };
  __device__ Letters exchange(uint64_t a, uint64_t b = 0, uint64_t c = 0, uint64_t d = 0) {
    if (thread < kBlocks) {
      uint64_t* to = remote(&s.mail[parity][rank][0], thread);
      to[0] = a;
      to[1] = b;
      to[2] = c;
      to[3] = d;
    }
    sync_cluster();
    Letters letters{s.mail[parity]};
    parity ^= 1;
    return letters;
  }

  template <Fold kFold, int kLanes = 32>
  __device__ static uint64_t fold_warp(uint64_t v) {
#pragma unroll
    for (int step = kLanes / 2; step > 0; step /= 2) {
      v = fold<kFold>(v, __shfl_xor_sync(0xffffffffu, v, step));
    }
    return v;
  }

  // The result in every thread.
  template <Fold kFold>
  __device__ uint64_t fold_block(uint64_t v) {
    v = fold_warp<kFold>(v);
    uint64_t* partial = s.partial[turn];
    turn ^= 1;
    if (lane == 0) partial[warp] = v;
    __syncthreads();
    return fold_warp<kFold, kSampleWarps>(partial[lane % kSampleWarps]);
  }

  // Sum over the lanes up to this one.
  __device__ static uint64_t sum_upto(uint64_t v) {
    auto lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      uint64_t below = __shfl_up_sync(0xffffffffu, v, static_cast<unsigned>(step));
      if (lane >= step) v += below;
    }
    return v;
  }

  // Sum over the threads before this one; `total` over all.
  __device__ uint64_t sum_before(uint64_t v, uint64_t& total) {
    uint64_t inclusive = sum_upto(v);
    uint64_t* partial = s.partial[turn];
    turn ^= 1;
    if (lane == 31) partial[warp] = inclusive;
    __syncthreads();
    uint64_t before = 0;
    total = 0;
#pragma unroll
    for (int w = 0; w < kSampleWarps; ++w) {
      uint64_t p = partial[w];
      if (w < warp) before += p;
      total += p;
    }
    return before + inclusive - v;
  }

  // Not above the num-th largest of the threads' keys and close to it; 0 when fewer are not 0.
  __device__ static uint32_t near_largest(uint32_t key, int num) {
    uint32_t at = 0;
    for (int bit = 31; bit >= 12; --bit) {
      uint32_t next = at | 1u << bit;
      if (__syncthreads_count(key >= next ? 1 : 0) >= num) at = next;
    }
    return at;
  }

  // Distinct values a[0, n), n <= kMaxGathered, from the largest down.
  __device__ void sort_down(uint64_t* a, int n) {
    if (n <= kSampleThreads / 2) {
      sort_by_rank(a, n);
    } else {
      sort_bitonic(a, n);
    }
  }

 private:
  // Two threads count how many values stand before one.
  __device__ void sort_by_rank(uint64_t* a, int n) {
    int i = thread / 2, half = thread % 2;
    uint64_t v = i < n ? a[i] : 0;
    int before = 0;
    if (warp * 16 < n) {
#pragma unroll 4
      for (int j = half; j < n; j += 2) before += a[j] > v ? 1 : 0;
      before += __shfl_xor_sync(0xffffffffu, before, 1);
    }
    __syncthreads();
    if (i < n && half == 0) a[before] = v;
    __syncthreads();
  }

  __device__ void sort_bitonic(uint64_t* a, int n) {
    int size = kSampleThreads;
    while (size < n) size *= 2;
    for (int i = n + thread; i < size; i += kSampleThreads) a[i] = 0;
    for (int span = 2; span <= size; span *= 2) {
      for (int gap = span / 2; gap > 0; gap /= 2) {
        __syncthreads();
        for (int p = thread; p < size / 2; p += kSampleThreads) {
          int i = 2 * p - (p & (gap - 1));
          uint64_t x = a[i], y = a[i + gap];
          bool down = (i & span) == 0;
          if ((x < y) == down) {
            a[i] = y;
            a[i + gap] = x;
          }
        }
      }
    }
    __syncthreads();
  }
};

}  // namespace sluice::cuda
