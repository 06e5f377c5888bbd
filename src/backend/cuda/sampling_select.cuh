// Device code: the most likely tokens of a row, by number or by weight, without sorting it. A
// histogram over the row finds the bucket in which the target is reached. Of a number, the tokens
// down to that bucket are gathered; of a weight, those in the bucket alone, which say where exactly
// it is reached. Where that is too many, the bucket is divided again. Included by sampling.cu.
#pragma once

#include "backend/cuda/sampling_block.cuh"
#include "backend/cuda/sampling_row.cuh"

namespace sluice::cuda {

// A block's slice of the row: tokens [first, first + num), in shared memory, or where the block is
// alone in global memory.
struct RowSlice {
  float* logits;
  int first, num;
};

// f(logit, its place in the slice) for all of it, by whole warps; NaN past the end. A block alone
// reads from global memory, with several loads under way.
template <int kBlocks, typename F>
__device__ inline void for_each_logit(const Block<kBlocks>& b, const RowSlice& row, F f) {
  constexpr int kAhead = kBlocks == 1 ? 8 : 1;
  for (int at = 0; at < row.num; at += kAhead * kSampleThreads) {
    float x[kAhead];
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      int i = at + k * kSampleThreads + b.thread;
      x[k] = i < row.num ? row.logits[i] : __int_as_float(0x7fffffff);
    }
#pragma unroll
    for (int k = 0; k < kAhead; ++k) f(x[k], at + k * kSampleThreads + b.thread);
  }
}

// What to select: the most likely tokens, from those at or above `floor`, whose measure reaches
// `target`. The measure of a token is its weight, or 1 where they are counted.
struct Wanted {
  Weigher weigher;
  bool counted;
  uint64_t floor, target;
  float max, range;  // the first histogram is even over logits [max - range, max]

  __device__ uint64_t measure(float x) const { return counted ? 1 : weigher(x); }
};

// Either `num` tokens are in the first block's `gathered`, all those wanted and maybe more, or
// (num < 0) those at or above `cut` are exactly the ones wanted.
struct Selected {
  int num;
  uint64_t cut;
};

// Buckets of one division, the most likely first. The first is by value, since float keys crowd in
// few exponents; the others by place within [lo, hi].
struct Division {
  int level = 0;
  float max, per_unit;
  uint64_t lo = 0, hi = 0;
  int shift = 0;

  __device__ explicit Division(const Wanted& w)
      : max(fminf(w.max, FLT_MAX)), per_unit((kBuckets - 1) / fmaxf(w.range, 1e-30f)) {}

  // Negative: above all buckets; kBuckets: below them.
  __device__ int bucket(float x, uint64_t place) const {
    if (level == 0) {
      // -inf, and anything when max is -inf, comes last: fminf drops the NaN.
      float b = fminf(__fmul_rn(__fsub_rn(max, x), per_unit), kBuckets - 1.0f);
      return static_cast<int>(fmaxf(b, 0.0f));
    }
    if (place > hi) return -1;
    if (place < lo) return kBuckets;
    return static_cast<int>((hi - place) >> shift);
  }
  __device__ void narrow(uint64_t least, uint64_t most) {
    ++level;
    lo = least;
    hi = most;
    int bits = 64 - __clzll(static_cast<long long>(hi - lo));
    constexpr int kBucketBits = 31 - __builtin_clz(kBuckets);
    shift = bits > kBucketBits ? bits - kBucketBits : 0;
  }
};

// Adds up the measures by bucket. The last bucket of the first division stays empty: it is what is
// left when no other reaches the target, and most of a vocabulary lies there.
template <int kBlocks>
__device__ inline void fill_histogram(Block<kBlocks>& b,
                                      const RowSlice& row,
                                      const Wanted& w,
                                      const Division& division) {
  for (int i = b.thread; i < kBuckets; i += kSampleThreads) b.s.low[i] = b.s.high[i] = 0;
  __syncthreads();
  int end = division.level == 0 ? kBuckets - 1 : kBuckets;
  for_each_logit(b, row, [&](float x, int i) {
    uint64_t place = place_of(x, row.first + i);
    if (place < w.floor) return;  // NaN too
    int k = division.bucket(x, place);
    if (k < 0 || k >= end) return;
    if (w.counted) {
      atomicAdd(&b.s.low[k], 1u);
      return;
    }
    uint64_t m = w.measure(x);
    if (m == 0) return;
    auto low = static_cast<uint32_t>(m);
    uint32_t was = atomicAdd(&b.s.low[k], low);
    uint32_t high = static_cast<uint32_t>(m >> 32) + (was + low < was ? 1 : 0);
    if (high != 0) atomicAdd(&b.s.high[k], high);
  });
}

// In the first block: the bucket where the sum of all blocks' histograms reaches the target, and
// the sum above it. Each thread has two buckets.
template <int kBlocks>
__device__ inline void pick_bucket(Block<kBlocks>& b, uint64_t target) {
  uint64_t sum[2] = {0, 0};
#pragma unroll
  for (int block = 0; block < kBlocks; ++block) {
    uint2 low = reinterpret_cast<const uint2*>(Block<kBlocks>::remote(b.s.low, block))[b.thread];
    uint2 high = reinterpret_cast<const uint2*>(Block<kBlocks>::remote(b.s.high, block))[b.thread];
    sum[0] += uint64_t{high.x} << 32 | low.x;
    sum[1] += uint64_t{high.y} << 32 | low.y;
  }
  uint64_t total;
  uint64_t above = b.sum_before(sum[0] + sum[1], total);
  if (b.thread == 0 && total < target) {
    b.s.bucket = kBuckets - 1;
    b.s.above = total;
  }
  if (above < target && above + sum[0] >= target) {
    b.s.bucket = 2 * b.thread;
    b.s.above = above;
  } else if (above + sum[0] < target && above + sum[0] + sum[1] >= target) {
    b.s.bucket = 2 * b.thread + 1;
    b.s.above = above + sum[0];
  }
  __syncthreads();
}

// Appends to the block's list as far as it has room; s.num_list counts all. By whole warps.
template <int kBlocks>
__device__ inline void add_to_list(Block<kBlocks>& b, bool listed, uint64_t place) {
  unsigned lanes = __ballot_sync(0xffffffffu, listed);
  if (lanes == 0) return;
  uint32_t slot = 0;
  if (b.lane == 0) slot = atomicAdd(&b.s.num_list, static_cast<uint32_t>(__popc(lanes)));
  slot = __shfl_sync(0xffffffffu, slot, 0) +
         static_cast<uint32_t>(__popc(lanes & ((1u << b.lane) - 1)));
  if (listed && slot < kMaxGathered) b.s.list[slot] = place;
}

// Number, least and most of the tokens in the bucket. They go into the block's list, where tokens
// are counted together with those above the bucket.
struct InBucket {
  uint64_t num = 0, least = ~uint64_t{0}, most = 0;
};
template <int kBlocks>
__device__ inline InBucket list_candidates(
    Block<kBlocks>& b, const RowSlice& row, const Wanted& w, const Division& division, int bucket) {
  const int first = w.counted ? -1 : bucket;
  if (b.thread == 0) b.s.num_list = 0;
  __syncthreads();
  InBucket in;
  for_each_logit(b, row, [&](float x, int i) {
    uint64_t place = place_of(x, row.first + i);
    bool listed = place >= w.floor;
    int k = listed ? division.bucket(x, place) : kBuckets;
    listed = listed && k >= first && k <= bucket && w.measure(x) != 0;
    if (listed && k == bucket) {
      ++in.num;
      in.least = fold<Fold::min>(in.least, place);
      in.most = fold<Fold::max>(in.most, place);
    }
    add_to_list(b, listed, place);
  });
  in.num = b.template fold_block<Fold::sum>(in.num);  // its barrier also completes the list
  in.least = b.template fold_block<Fold::min>(in.least);
  in.most = b.template fold_block<Fold::max>(in.most);
  return in;
}

// The lists of all blocks, one after the other: as many warps for each.
template <int kBlocks>
__device__ inline void gather(Block<kBlocks>& b, const typename Block<kBlocks>::Letters& letters) {
  constexpr int kLanes = kSampleWarps / kBlocks * 32;
  int block = b.warp % kBlocks;
  uint64_t to = 0;
  for (int k = 0; k < block; ++k) to += letters(k, 0);
  const uint64_t* list = Block<kBlocks>::remote(b.s.list, block);
  auto num = static_cast<int>(letters(block, 0));
  for (int i = b.warp / kBlocks * 32 + b.lane; i < num; i += kLanes) b.s.gathered[to + i] = list[i];
  __syncthreads();
}

// In the first block: the place at which the running weight of the n tokens gathered reaches the
// target.
template <int kBlocks>
__device__ inline uint64_t cut_at(Block<kBlocks>& b,
                                  const Weigher& weigher,
                                  int n,
                                  uint64_t target) {
  const uint64_t* a = b.s.gathered;
  b.sort_down(b.s.gathered, n);
  uint64_t place[2], weight[2], total;
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    const int at = 2 * b.thread + k;
    place[k] = at < n ? a[at] : 0;
    weight[k] = at < n ? weigher(logit_at(place[k])) : 0;
  }
  uint64_t before = b.sum_before(weight[0] + weight[1], total);
  if (b.thread == 0) b.s.above = n > 0 ? a[n - 1] : kLeastRanked;
  __syncthreads();
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    if (before < target && target <= before + weight[k]) b.s.above = place[k];
    before += weight[k];
  }
  __syncthreads();
  return b.s.above;
}

// All blocks of the row. The target is at most the measure of everything at or above the floor,
// unless it is a number of tokens. After it, remote memory may still be read by the first block
// until the next exchange.
template <int kBlocks>
__device__ inline Selected select(Block<kBlocks>& b, const RowSlice& row, const Wanted& wanted) {
  Division division(wanted);
  uint64_t target = wanted.target;
  // Every division leaves at most one of kBuckets parts of 64 bits: seven after the first suffice.
  for (int level = 0; level < 8; ++level) {
    fill_histogram(b, row, wanted, division);
    Block<kBlocks>::sync_cluster();
    if (b.rank == 0) pick_bucket(b, target);
    auto picked = b.exchange(static_cast<uint64_t>(b.s.bucket), b.s.above);
    auto bucket = static_cast<int>(picked(0, 0));
    target -= picked(0, 1);
    InBucket in = list_candidates(b, row, wanted, division, bucket);
    auto found = b.exchange(b.s.num_list, in.num, in.least, in.most);
    uint64_t num = found.template all<Fold::sum>(0);
    if (num <= kMaxGathered) {
      uint64_t cut = wanted.floor;
      if (b.rank == 0) {
        gather(b, found);
        if (!wanted.counted) cut = cut_at(b, wanted.weigher, static_cast<int>(num), target);
      }
      if (wanted.counted) return {static_cast<int>(num), cut};
      return {-1, b.exchange(cut)(0, 0)};
    }
    if (wanted.counted && num < wanted.target) break;  // fewer than wanted: all
    uint64_t least = found.template all<Fold::min>(2);
    if (found.template all<Fold::sum>(1) == 1) return {-1, least};
    division.narrow(least, found.template all<Fold::max>(3));
  }
  return {-1, wanted.floor};
}

}  // namespace sluice::cuda
