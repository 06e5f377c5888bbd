// Device code: what one row does to its logits, as in exec/row_state.cc. Included by sampling.cu.
#pragma once

#include <cfloat>
#include <cstdint>

#include "backend/cuda/sampling.cuh"

namespace sluice::cuda {

inline constexpr uint16_t kInPrompt = 0x8000;
constexpr float kMinusInf = -__builtin_huge_valf();

// First of list[0, num), ascending, that is not below `id`.
__device__ inline int lower_bound(const int32_t* list, int num, int32_t id) {
  int lo = 0, hi = num;
  while (lo < hi) {
    int mid = (lo + hi) / 2;
    if (list[mid] < id) {
      lo = mid + 1;
    } else {
      hi = mid;
    }
  }
  return lo;
}

// A row's lists of tokens.
struct RowLists {
  const SamplingRow* row;
  const int32_t* lists;
  int num_generated;
  bool bans;  // the ids that are banned before min_tokens

  __device__ bool is_banned(int32_t id) const {
    const RowSpec& s = row->spec;
    if (!bans) return false;
    const int32_t* banned = lists + SamplingRows::kBanned;
    int at = lower_bound(banned, s.num_banned, id);
    return at < s.num_banned && banned[at] == id;
  }

  // The tokens before the last one of sequence `i` are the end of the output.
  __device__ bool ends_with(const int32_t* ends, const int32_t* earlier, int i) const {
    int begin = i > 0 ? ends[i - 1] : 0;
    int num = ends[i] - begin;
    if (num > min(num_generated, kMaxBadLength)) return false;
    for (int k = 0; k < num; ++k) {
      int at = static_cast<int>(static_cast<unsigned>(num_generated - num + k) % kMaxBadLength);
      if (row->tail[at] != earlier[begin + k]) return false;
    }
    return true;
  }

  __device__ bool is_bad(int32_t id) const {
    int num = row->spec.num_bad;
    const int32_t* last = lists + SamplingRows::kBad;
    for (int i = lower_bound(last, num, id); i < num && last[i] == id; ++i) {
      if (ends_with(last + num, last + 2 * num, i)) return true;
    }
    return false;
  }

  __device__ float apply(float x, int32_t id) const {
    if (is_banned(id) || is_bad(id)) x = kMinusInf;
    int num = row->spec.num_bias;
    const int32_t* ids = lists + SamplingRows::kBiasIds;
    for (int i = lower_bound(ids, num, id); i < num && ids[i] == id; ++i) {
      x = __fadd_rn(x, __int_as_float(lists[SamplingRows::kBiasValues + i]));
    }
    return x;
  }
};

// Out of line for the few tokens that a list names. By value: what a reference names lives in
// local memory, and that is slow where shared memory leaves little cache.
__device__ __noinline__ inline float apply_lists(RowLists lists, float x, int32_t id) {
  return lists.apply(x, id);
}

// One row's view of SamplingRows.
struct RowAdjust {
  RowLists lists;
  const uint32_t* listed;   // null: no list names a token
  const uint32_t* allowed;  // null: all
  const uint32_t* mask;     // of the step; null: none
  const uint16_t* counts;   // null: no penalties
  float repetition, frequency, presence;

  __device__ RowAdjust(const SamplingRows& all, int slot, const uint32_t* step_mask)
      : mask(step_mask) {
    const SamplingRow* row = all.rows + slot;
    const RowSpec& s = row->spec;
    bool banned = s.num_banned > 0 && s.num_generated < s.min_tokens;
    lists = {row, all.lists + static_cast<int64_t>(slot) * SamplingRows::kRowWords, s.num_generated,
             banned};
    listed =
        s.num_bias > 0 || s.num_bad > 0 || banned ? all.listed + slot * all.mask_stride : nullptr;
    allowed = s.num_allowed > 0 ? all.allowed + slot * all.mask_stride : nullptr;
    repetition = s.repetition_penalty;
    frequency = s.frequency_penalty;
    presence = s.presence_penalty;
    bool penalised = repetition != 1 || frequency != 0 || presence != 0;
    counts = penalised ? all.counts + slot * all.count_stride : nullptr;
  }

  __device__ bool any() const {
    return listed != nullptr || allowed != nullptr || counts != nullptr || mask != nullptr;
  }

  // By a whole block. A mask is never left: where nothing but banned ids is left of it, they are
  // allowed.
  __device__ void settle(int vocab) {
    if (mask != nullptr && lists.bans) lists.bans = first_allowed(vocab) >= 0;
  }

  __device__ float penalise(float x, unsigned count) const {
    if (count == 0) return x;
    if (repetition != 1) x = x > 0 ? __fdiv_rn(x, repetition) : __fmul_rn(x, repetition);
    unsigned generated = count & ~static_cast<unsigned>(kInPrompt);
    if (generated > 0) {
      x = __fsub_rn(x, __fmul_rn(frequency, static_cast<float>(generated)));
      x = __fsub_rn(x, presence);
    }
    return x;
  }

  // Logits of tokens id to id + 3; id is a multiple of four. Past the vocabulary: anything.
  __device__ float4 operator()(float4 v, int id) const {
    float x[4] = {v.x, v.y, v.z, v.w};
    if (allowed != nullptr || mask != nullptr) {
      uint32_t bits = allowed_word(id / 32) >> (id % 32);
#pragma unroll
      for (int k = 0; k < 4; ++k) x[k] = (bits >> k & 1) != 0 ? x[k] : kMinusInf;
    }
    if (listed != nullptr) {
      uint32_t bits = listed[id / 32] >> (id % 32) & 15;
      if (bits != 0) {
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          if ((bits >> k & 1) != 0) x[k] = apply_lists(lists, x[k], id + k);
        }
      }
    }
    if (counts != nullptr) {
      ushort4 c = *reinterpret_cast<const ushort4*>(counts + id);
      x[0] = penalise(x[0], c.x);
      x[1] = penalise(x[1], c.y);
      x[2] = penalise(x[2], c.z);
      x[3] = penalise(x[3], c.w);
    }
    return {x[0], x[1], x[2], x[3]};
  }

  __device__ uint32_t allowed_word(int at) const {
    uint32_t bits = ~uint32_t{0};
    if (allowed != nullptr) bits &= allowed[at];
    if (mask != nullptr) bits &= mask[at];
    return bits;
  }

  // By a whole block: the lowest token that nothing forbids, or -1.
  __device__ int first_allowed(int vocab) const {
    __shared__ int found;
    auto t = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
    __syncthreads();
    if (t == 0) found = vocab;
    __syncthreads();
    for (int from = 0; from < vocab; from += threads) {
      int id = from + t;
      bool may = id < vocab && (allowed_word(id / 32) >> (id % 32) & 1) != 0 &&
                 !lists.is_banned(id) && !lists.is_bad(id);
      if (may) atomicMin(&found, id);
      if (__syncthreads_or(may) != 0) return found;
    }
    return -1;
  }
  // The same where no logit is a number: without a mask there is always a token.
  __device__ int lowest_allowed(int vocab) const {
    int id = first_allowed(vocab);
    return id < 0 && mask == nullptr ? 0 : id;
  }
};

// Stores the sampled token, if there is one, for the next step and in the row's history. One thread
// calls it, after all reads of the row.
__device__ inline void remember(const SamplingRows& all, int slot, int32_t token) {
  if (token < 0) return;
  SamplingRow& row = all.rows[slot];
  RowSpec& s = row.spec;
  all.last_token[slot] = token;
  row.tail[static_cast<unsigned>(s.num_generated) % kMaxBadLength] = token;
  ++s.num_generated;
  if (s.repetition_penalty != 1 || s.frequency_penalty != 0 || s.presence_penalty != 0) {
    uint16_t& count = all.counts[slot * all.count_stride + token];
    if ((count & ~kInPrompt) < Sampler::kMaxCount) ++count;
  }
}

// Temperature and min_p as a function from logit to integer weight: exec/sampler's Weigher in the
// same single operations, so that both give the same bits.
struct Weigher {
  float max, inv_temperature, x_min, scale;

  // The largest weight is 2^weight_bits(vocab); all of a vocabulary sum to at most 2^53.
  __device__ static int weight_bits(int vocab) { return 53 - (32 - __clz(vocab)); }

  __device__ Weigher(float max_logit, int vocab, float inv, float least)
      : max(fminf(max_logit, FLT_MAX)), inv_temperature(inv), x_min(least) {
    scale = __int_as_float((127 + weight_bits(vocab)) << 23);
  }

  __device__ uint64_t operator()(float logit) const {
    float x = __fmul_rn(__fsub_rn(logit, max), inv_temperature);
    if (!(x >= x_min)) return 0;
    return __float2ull_rn(__fmul_rn(exp_of(x < 0 ? x : 0.0f), scale));
  }

  // e^x for x in [-60, 0].
  __device__ static float exp_of(float x) {
    constexpr float kRound = 12582912.0f;  // 1.5 * 2^23
    float t = __fadd_rn(__fmul_rn(x, 1.44269504f), kRound);
    float n = __fsub_rn(t, kRound);
    float r = __fsub_rn(__fsub_rn(x, __fmul_rn(n, 0.693359375f)), __fmul_rn(n, -2.12194440e-4f));
    float p = 1.0f / 5040;
    p = __fadd_rn(__fmul_rn(p, r), 1.0f / 720);
    p = __fadd_rn(__fmul_rn(p, r), 1.0f / 120);
    p = __fadd_rn(__fmul_rn(p, r), 1.0f / 24);
    p = __fadd_rn(__fmul_rn(p, r), 1.0f / 6);
    p = __fadd_rn(__fmul_rn(p, r), 0.5f);
    p = __fadd_rn(__fmul_rn(p, r), 1.0f);
    p = __fadd_rn(__fmul_rn(p, r), 1.0f);
    // Adds n to the exponent of p, a normal number before and after; kRound's bits shift out.
    return __uint_as_float((__float_as_uint(t) << 23) + __float_as_uint(p));
  }
};

}  // namespace sluice::cuda
