// Device code: a stretch of a row of logits, four at a time. Included by sampling.cu.
#pragma once

#include "backend/cuda/sampling_block.cuh"
#include "backend/cuda/sampling_row.cuh"

namespace sluice::cuda {

// The rows of a launch, of those that draw or are scored. adjusted: whose logits may change first;
// plain: the others; all: both, in one launch.
enum class SampledRows : uint8_t { all, adjusted, plain };

struct SampleArgs {
  SamplingRows rows;
  SampleStep step;
  int chunk;                 // tokens of a block's slice, a multiple of four
  bool vectored;             // rows of logits are aligned to 16 bytes
  float* scratch = nullptr;  // [blocks, chunk], where a row has one block; null: for plain rows
  SampledRows which = SampledRows::all;
};

// The mask of an output; null: none.
__device__ inline const uint32_t* mask_of(const SampleArgs& args, const OutputRow& out) {
  if (out.mask < 0 || out.actual >= 0) return nullptr;
  return args.step.masks + out.mask * mask_words(args.step.vocab);
}

// The row is done with its most likely token and nobody asks for scores.
__device__ inline bool only_greedy(const SampleArgs& args, const OutputRow& out) {
  return out.actual < 0 && out.num_top < 0 && args.rows.rows[out.slot].spec.inv_temperature < 0;
}

// The largest logit that one thread saw, with the lowest id it saw it at, and the least finite one.
struct Extent {
  float top = kMinusInf, low = FLT_MAX;
  int top_id = 0;

  __device__ void add_top(float4 v, int id) {
    float x[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      if (x[k] > top) {
        top = x[k];
        top_id = id + k;
      }
    }
  }
  __device__ void add_low(float4 v) {
    float x[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int k = 0; k < 4; ++k) low = x[k] > kMinusInf ? fminf(low, x[k]) : low;
  }
  // 0: no number above -inf.
  __device__ uint32_t key() const { return top > kMinusInf ? key_of(top) : 0; }
  // Place of the most likely token of the warp, 0 when there is none: by key, then by id.
  __device__ uint64_t best_of_warp() const {
    uint32_t mine = key();
    uint32_t best = __reduce_max_sync(0xffffffffu, mine);
    uint32_t id = mine == best && mine != 0 ? ~static_cast<uint32_t>(top_id) : 0;
    return uint64_t{best} << 32 | __reduce_max_sync(0xffffffffu, id);
  }
};

// Tokens [first, first + num) of a row; first is a multiple of four.
struct RowLoad {
  const float* raw;  // [vocab]
  int vocab, first, num;
  bool vectored;

  __device__ RowLoad(const SampleArgs& args, int row, int from, int most)
      : raw(args.step.logits + static_cast<int64_t>(row) * args.step.vocab),
        vocab(args.step.vocab),
        first(from),
        num(max(0, min(most, args.step.vocab - from))),
        vectored(args.vectored) {}

  // f(id, logits of tokens id to id + 3) for every four, ascending in each thread, with kAhead
  // loads under way. NaN past the end.
  template <int kThreads, int kAhead, typename F>
  __device__ void each(F f) const {
    if (vectored) {
      walk<kThreads, kAhead, true>(f);
    } else {
      walk<kThreads, kAhead, false>(f);
    }
  }

 private:
  template <bool kVectored>
  __device__ float4 four(int id) const {
    if constexpr (kVectored) {
      return *reinterpret_cast<const float4*>(raw + id);
    } else {
      float x[4];
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        x[k] = id + k < vocab ? raw[id + k] : __int_as_float(0x7fffffff);
      }
      return {x[0], x[1], x[2], x[3]};
    }
  }

  template <int kThreads, int kAhead, bool kVectored, typename F>
  __device__ void walk(F f) const {
    int end = first + num;
    for (int id = first + 4 * static_cast<int>(threadIdx.x); id < end;
         id += 4 * kAhead * kThreads) {
      float4 v[kAhead];
#pragma unroll
      for (int k = 0; k < kAhead; ++k) {
        int at = id + 4 * k * kThreads;
        if (at < end) v[k] = four<kVectored>(at);
      }
#pragma unroll
      for (int k = 0; k < kAhead; ++k) {
        int at = id + 4 * k * kThreads;
        if (at < end) f(at, v[k]);
      }
    }
  }
};

}  // namespace sluice::cuda
