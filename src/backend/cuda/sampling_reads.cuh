// Device code: a block alone draws from a row of global memory in two reads, of all its tokens or
// of a nucleus. The first read finds the largest logit and counts a part of the tokens on a grid.
// Their weights say about where the nucleus ends. The second read adds up exact weights by run of
// neighbours, of all tokens surely in the nucleus, and lists those around its end, which decide it.
// A row whose nucleus does not end in the list is left to select(). Included by sampling.cu.
#pragma once

#include <cfloat>

#include "backend/cuda/sampling_draw.cuh"
#include "backend/cuda/sampling_select.cuh"

namespace sluice::cuda {

inline constexpr int kRun = 512;  // neighbours that a warp reads at once
inline constexpr int kLoads = kRun / 128;
inline constexpr int kMaxRuns = kMaxGathered;
inline constexpr int kGrid = 2 * kBuckets;     // cells of the grid
inline constexpr int kListed = 16;             // tokens that a thread can list
inline constexpr float kMostAround = 1000.0f;  // tokens listed before and after the guessed end
static_assert(kRun == kSampleThreads);         // of the run drawn, each thread has a token
static_assert(offsetof(SampleShared, high) == sizeof(uint32_t) * kBuckets);  // the grid has both

struct RowDraw {
  const float* logits;  // [how.vocab], aligned to 16 bytes
  float inv_temperature;
  Draw how;
};

// The first read has two runs of every warp; no min_p.
__device__ inline bool fits_two_reads(int vocab, float x_min) {
  return vocab >= 2 * kSampleWarps * kRun && vocab <= kMaxRuns * kRun && x_min <= -60.0f;
}

// Shared memory of a block alone: a function that is not inlined finds it here too.
__device__ inline SampleShared& alone_shared() {
  __shared__ SampleShared shared;
  return shared;
}

// The logits of a run: every lane has four of each 128. NaN past the end.
__device__ inline void load_run(const RowDraw& row, int run, float4* v) {
  int at = run * kRun + 4 * static_cast<int>(threadIdx.x % 32);
  constexpr float kNan = __builtin_nanf("");
#pragma unroll
  for (int j = 0; j < kLoads; ++j) {
    int id = at + 128 * j;
    v[j] = id < row.how.vocab ? *reinterpret_cast<const float4*>(row.logits + id)
                              : float4{kNan, kNan, kNan, kNan};
  }
}

// A grid over logits, cell 0 at and above `top`. Every fourth token counts for four, but all above
// `dense` count once: few tokens have much of the weight.
struct Grid {
  float top = 0, per_unit = 0, dense = 0;

  __device__ void add(uint32_t* cells, float x, uint32_t num) const {
    float at = (top - x) * per_unit;
    if (at < kGrid) atomicAdd(&cells[max(static_cast<int>(at), 0)], num);  // false for NaN
  }
  __device__ void add(uint32_t* cells, float4 v) const {
    float a = fmaxf(v.x, v.y), b = fmaxf(v.z, v.w), most = fmaxf(a, b);
    float second = fmaxf(fminf(a, b), fmaxf(fminf(v.x, v.y), fminf(v.z, v.w)));
    if (most > dense) add(cells, most, 1);
    if (!(v.x > dense)) add(cells, v.x, 4);
    if (second > dense) {
      float x[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        if (x[k] > dense && x[k] < most) add(cells, x[k], 1);
      }
    }
  }
  __device__ float logit(float cell) const { return top - cell / per_unit; }
};

// Lays the grid by the first logits that every warp reads. It ends where weights are e^-24 of
// theirs, or where they do; spread <= 0 when all are equal.
__device__ inline Grid lay_grid(Block<1>& b, const float4* v, float temperature) {
  float most = kMinusInf, least = FLT_MAX;
#pragma unroll
  for (int j = 0; j < 2 * kLoads; ++j) {
    float x[4] = {v[j].x, v[j].y, v[j].z, v[j].w};
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      most = fmaxf(most, x[k]);
      least = x[k] > kMinusInf ? fminf(least, x[k]) : least;
    }
  }
  uint32_t key = key_of(most);
  float lowest = logit_of(__reduce_min_sync(0xffffffffu, key));
  float warp_most = logit_of(__reduce_max_sync(0xffffffffu, key));
  most = logit_of(static_cast<uint32_t>(b.fold_block<Fold::max>(key)));
  least = logit_of(static_cast<uint32_t>(b.fold_block<Fold::min>(key_of(least))));
  float above = fminf(8 * temperature, 0.25f * (most - least));
  float below = fminf(24 * temperature, 1.1f * (most - least));
  Grid grid;
  grid.top = most + above;
  grid.per_unit = kGrid / (above + below);
  grid.dense = lowest + 0.4f * (warp_most - lowest);
  if (!(fabsf(grid.dense) <= FLT_MAX)) grid.dense = FLT_MAX;
  return grid;
}

// The first read: the largest logit, and the grid's counts where there is a nucleus.
__device__ inline float read_extent(Block<1>& b, const RowDraw& row, bool nucleus, Grid& grid) {
  uint32_t* cells = b.s.low;
  for (int i = b.thread; i < kGrid; i += kSampleThreads) cells[i] = 0;
  float most = kMinusInf;
  int num_runs = (row.how.vocab + kRun - 1) / kRun;
  for (int run = b.warp; run < num_runs; run += 2 * kSampleWarps) {
    float4 v[2 * kLoads];
    load_run(row, run, v);
    load_run(row, run + kSampleWarps, v + kLoads);
    if (nucleus && run == b.warp) grid = lay_grid(b, v, 1.0f / row.inv_temperature);
#pragma unroll
    for (int j = 0; j < 2 * kLoads; ++j) {
      most = fmaxf(most, fmaxf(fmaxf(v[j].x, v[j].y), fmaxf(v[j].z, v[j].w)));
      if (nucleus) grid.add(cells, v[j]);
    }
  }
  return logit_of(static_cast<uint32_t>(b.fold_block<Fold::max>(key_of(most))));
}

// Logits: above `high` tokens are surely in the nucleus, below `low` surely not.
struct Around {
  float low, high;
};

// Guesses from the grid where the nucleus ends. Nothing here need be exact.
__device__ inline Around guess_end(Block<1>& b, const RowDraw& row, const Grid& grid, float max) {
  constexpr int kEach = kGrid / kSampleThreads;
  auto* cells = reinterpret_cast<const uint4*>(b.s.low);
  auto* found = reinterpret_cast<float*>(b.s.mail);  // tokens of the nucleus, low, high
  uint4 four = cells[b.thread];
  uint32_t num[kEach] = {four.x, four.y, four.z, four.w};
  uint64_t weight[kEach], num_sum = 0, weight_sum = 0;
  constexpr float kOne = 1 << 30;
  float first = (grid.top - max) * row.inv_temperature;
  float step = row.inv_temperature / grid.per_unit;
#pragma unroll
  for (int k = 0; k < kEach; ++k) {
    float x = first - (static_cast<float>(kEach * b.thread + k) + 0.5f) * step;
    weight[k] = __float2ull_rn(static_cast<float>(num[k]) * __expf(fminf(x, 0.0f)) * kOne);
    if (k == 0 && b.thread == 0 && first < 0) weight[k] += static_cast<uint64_t>(kOne);
    num_sum += num[k];
    weight_sum += weight[k];
  }
  uint64_t num_all, weight_all;
  uint64_t num_before = b.sum_before(num_sum, num_all);
  if (b.thread == 0) {
    found[0] = static_cast<float>(num_all);
    found[1] = grid.logit(kGrid);
    found[2] = -kMinusInf;
  }
  uint64_t before = b.sum_before(weight_sum, weight_all);
  uint64_t target = nucleus_weight(row.how.top_p, weight_all);
  auto tokens = static_cast<float>(num_before);
#pragma unroll
  for (int k = 0; k < kEach; ++k) {
    auto here = static_cast<float>(num[k]);
    if (before < target && target <= before + weight[k]) {
      found[0] = tokens + here * (static_cast<float>(target - before) / weight[k]);
    }
    before += weight[k];
    tokens += here;
  }
  __syncthreads();
  float end = found[0], margin = fminf(kMostAround, 128 + end);
  tokens = static_cast<float>(num_before);
#pragma unroll
  for (int k = 0; k < kEach; ++k) {
    auto here = static_cast<float>(num[k]), cell = static_cast<float>(kEach * b.thread + k);
#pragma unroll
    for (int side = 1; side <= 2; ++side) {
      float at = end + (side == 1 ? margin : -margin) - tokens;
      if (at >= 0 && at < here) found[side] = grid.logit(cell + at / here);
    }
    tokens += here;
  }
  __syncthreads();
  return {found[1], found[2]};
}

// Weigher's integer as high * 2^18 + low, both to be added up in 32 bits. For finite logits at most
// `max`, and those that are NaN or -inf.
struct SplitWeigher {
  static constexpr int kLowBits = 18;
  static constexpr float kRound = 8388608.0f;  // 2^23: adding it leaves an integer in the mantissa
  float max, inv_temperature, scale, up, down;

  __device__ explicit SplitWeigher(const Weigher& w)
      : max(w.max), inv_temperature(w.inv_temperature), scale(w.scale) {
    up = scale * (1.0f / (1 << kLowBits));
    down = -1.0f / up;
  }
  __device__ uint2 operator()(float logit) const {
    float x = __fmul_rn(__fsub_rn(logit, max), inv_temperature);
    float e = Weigher::exp_of(fmaxf(x, -60.0f));  // whose weight is 0
    float high = __fmaf_rz(e, up, kRound);
    float rest = __fmaf_rn(__fsub_rn(high, kRound), down, e);  // exact
    float low = __fmaf_rn(rest, scale, kRound);
    return {__float_as_uint(high) - __float_as_uint(kRound),
            __float_as_uint(low) - __float_as_uint(kRound)};
  }
  __device__ static uint64_t join(uint32_t high, uint32_t low) {
    return (uint64_t{high} << kLowBits) + low;
  }
};

// A thread's list: number 16 i + 4 j + k names token k of its load j of the warp's run i.
struct Listed {
  int num = 0;

  // Shared memory, as in alone_shared().
  __device__ static uint16_t& number(int i) {
    __shared__ uint16_t numbers[kListed][kSampleThreads];
    return numbers[i][threadIdx.x];
  }

  __device__ void add(int name) {
    number(min(num, kListed - 1)) = static_cast<uint16_t>(name);
    ++num;
  }
  __device__ int id(int i) const {
    int name = number(i), thread = static_cast<int>(threadIdx.x);
    int run = thread / 32 + name / 16 * kSampleWarps;
    return run * kRun + name / 4 % 4 * 128 + thread % 32 * 4 + name % 4;
  }
};

// The second read, from the end: what the first read last may still be in the L2. Sums of runs go
// to s.list. Returns this thread's share of the weight of all tokens.
__device__ inline uint64_t read_weights(
    Block<1>& b, const RowDraw& row, const SplitWeigher& weigher, Around around, Listed& listed) {
  uint64_t* sums = b.s.list;
  int num_runs = (row.how.vocab + kRun - 1) / kRun;
  for (int i = num_runs + b.thread; i < kMaxRuns; i += kSampleThreads) sums[i] = 0;
  uint32_t all_high = 0, all_low = 0;
  for (int i = (num_runs - 1 - b.warp) / kSampleWarps; i >= 0; --i) {
    int run = b.warp + i * kSampleWarps;
    float4 v[kLoads];
    load_run(row, run, v);
    uint32_t high = 0, low = 0, near = 0;  // near: bit 4 j + k for token k of load j
#pragma unroll
    for (int j = 0; j < kLoads; ++j) {
      float x[4] = {v[j].x, v[j].y, v[j].z, v[j].w};
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        uint2 w = weigher(x[k]);
        all_high += w.x;
        all_low += w.y;
        bool sure = x[k] > around.high;
        high += sure ? w.x : 0;
        low += sure ? w.y : 0;
        near |= !sure && x[k] >= around.low ? 1u << (4 * j + k) : 0;
      }
    }
    for (; near != 0; near &= near - 1) listed.add(16 * i + __ffs(static_cast<int>(near)) - 1);
    high = __reduce_add_sync(0xffffffffu, high);
    low = __reduce_add_sync(0xffffffffu, low);
    if (b.lane == 0) sums[run] = SplitWeigher::join(high, low);
  }
  return SplitWeigher::join(all_high, all_low);
}

// The token at or above the cut where the running sum in id order reaches the draw. s.list has the
// weights of runs.
__device__ inline int draw_by_run(Block<1>& b,
                                  const RowDraw& row,
                                  const Weigher& weigher,
                                  uint64_t cut) {
  uint64_t mine[2] = {b.s.list[2 * b.thread], b.s.list[2 * b.thread + 1]}, total;
  uint64_t before = b.sum_before(mine[0] + mine[1], total);
  uint64_t wanted = draw_weight(row.how.uniform, total);
  if (b.thread == 0) b.s.token = -1;
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    if (before < wanted && wanted <= before + mine[k]) {
      b.s.bucket = 2 * b.thread + k;
      b.s.above = before;
    }
    before += mine[k];
  }
  __syncthreads();
  int id = b.s.bucket * kRun + b.thread;
  uint64_t weight = 0;
  if (id < row.how.vocab) {
    float x = row.logits[id];
    weight = place_of(x, id) >= cut ? weigher(x) : 0;
  }
  before = b.s.above + b.sum_before(weight, total);
  if (before < wanted && wanted <= before + weight) b.s.token = id;
  __syncthreads();
  return b.s.token;
}

// This thread's listed tokens, all loads under way at once.
struct Candidates {
  float logit[kListed];

  __device__ Candidates(const RowDraw& row, const Listed& listed) {
#pragma unroll
    for (int i = 0; i < kListed; ++i) logit[i] = i < listed.num ? row.logits[listed.id(i)] : 0.0f;
  }
};

// Buckets that are even over the logits listed.
struct ListBuckets {
  float high, per_unit;

  __device__ ListBuckets(Around around, float max) : high(fminf(around.high, max)) {
    per_unit = (kBuckets - 1) / fmaxf(high - around.low, 1e-30f);
  }
  __device__ int operator()(float x) const {
    return static_cast<int>(fminf(fmaxf((high - x) * per_unit, 0.0f), kBuckets - 1.0f));
  }
};

// Adds up this thread's listed weights, by bucket too.
__device__ inline uint64_t fill_buckets(Block<1>& b,
                                        const Listed& listed,
                                        const Candidates& candidates,
                                        const Weigher& weigher,
                                        const ListBuckets& bucket) {
  uint64_t sum = 0;
#pragma unroll
  for (int i = 0; i < kListed; ++i) {
    if (i >= listed.num) continue;
    int k = bucket(candidates.logit[i]);
    uint64_t w = weigher(candidates.logit[i]);
    sum += w;
    auto low = static_cast<uint32_t>(w);
    uint32_t was = atomicAdd(&b.s.low[k], low);
    uint32_t carried = static_cast<uint32_t>(w >> 32) + (was + low < was ? 1 : 0);
    if (carried != 0) atomicAdd(&b.s.high[k], carried);
  }
  return sum;
}

// The place at which the nucleus ends: where the weights of listed tokens reach the target, which
// they do. 0: too many are too close.
__device__ inline uint64_t end_of_nucleus(Block<1>& b,
                                          const Listed& listed,
                                          const Candidates& candidates,
                                          const Weigher& weigher,
                                          const ListBuckets& bucket,
                                          uint64_t target) {
  if (b.thread == 0) b.s.num_list = 0;
  __syncthreads();
  pick_bucket(b, target);
  int wanted = b.s.bucket;
#pragma unroll
  for (int i = 0; i < kListed; ++i) {
    if (i >= listed.num || bucket(candidates.logit[i]) != wanted) continue;
    uint32_t slot = atomicAdd(&b.s.num_list, 1u);
    if (slot < kMaxGathered) b.s.gathered[slot] = place_of(candidates.logit[i], listed.id(i));
  }
  uint64_t above = b.s.above;
  __syncthreads();
  auto num = static_cast<int>(b.s.num_list);
  if (num > kMaxGathered) return 0;
  return cut_at(b, weigher, num, target - above);
}

// The token drawn from the nucleus, after the second read; -1: it does not end in the list. Out of
// line, with registers of its own.
__device__ __noinline__ inline int draw_listed(
    RowDraw row, Weigher weigher, Around around, Listed listed, uint64_t total) {
  Block<1> b(alone_shared());
  if (__syncthreads_or(listed.num > kListed ? 1 : 0) != 0) return -1;
  uint64_t sure = b.fold_block<Fold::sum>(b.s.list[2 * b.thread] + b.s.list[2 * b.thread + 1]);
  uint64_t target = nucleus_weight(row.how.top_p, total), num;
  Candidates candidates(row, listed);
  ListBuckets bucket(around, weigher.max);
  uint64_t weight = b.fold_block<Fold::sum>(fill_buckets(b, listed, candidates, weigher, bucket));
  if (target <= sure || target > sure + weight) return -1;
  auto before = static_cast<int>(b.sum_before(static_cast<uint64_t>(listed.num), num));
  if (sure == 0 && num <= kMaxGathered) {
#pragma unroll
    for (int i = 0; i < kListed; ++i) {
      if (i >= listed.num) continue;
      b.s.gathered[before + i] = place_of(candidates.logit[i], listed.id(i));
    }
    __syncthreads();
    return draw_gathered(b, row.how, weigher, static_cast<int>(num), target);
  }
  uint64_t cut = end_of_nucleus(b, listed, candidates, weigher, bucket, target - sure);
  if (cut == 0) return -1;
#pragma unroll
  for (int i = 0; i < kListed; ++i) {
    if (i >= listed.num) continue;
    int id = listed.id(i);
    if (place_of(candidates.logit[i], id) < cut) continue;
    atomicAdd(reinterpret_cast<unsigned long long*>(&b.s.list[id / kRun]),
              static_cast<unsigned long long>(weigher(candidates.logit[i])));
  }
  __syncthreads();
  return draw_by_run(b, row, weigher, cut);
}

// -1: not by this way. Out of line, with registers of its own.
__device__ __noinline__ inline int draw_in_two_reads(RowDraw row) {
  Block<1> b(alone_shared());
  __syncthreads();
  bool nucleus = row.how.top_p < 1;
  Grid grid;
  float max = read_extent(b, row, nucleus, grid);
  if (!(fabsf(max) <= FLT_MAX)) return -1;
  Around around{-kMinusInf, kMinusInf};  // all tokens above -inf are drawn from, none is listed
  if (nucleus) {
    if (!(grid.per_unit <= FLT_MAX)) return -1;  // all alike
    around = guess_end(b, row, grid, max);
    for (int i = b.thread; i < kBuckets; i += kSampleThreads) b.s.low[i] = b.s.high[i] = 0;
  }
  Weigher weigher(max, row.how.vocab, row.inv_temperature, -60.0f);
  Listed listed;
  uint64_t total = read_weights(b, row, SplitWeigher(weigher), around, listed);
  __syncthreads();
  if (!nucleus) return draw_by_run(b, row, weigher, kLeastRanked);
  total = b.fold_block<Fold::sum>(total);
  return draw_listed(row, weigher, around, listed, total);
}

}  // namespace sluice::cuda
