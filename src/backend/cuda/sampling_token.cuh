// Device code: from one row of logits to a token drawn and its scores. Included by sampling.cu.
#pragma once

#include "backend/cuda/sampling_draw.cuh"
#include "backend/cuda/sampling_load.cuh"
#include "backend/cuda/sampling_reads.cuh"
#include "backend/cuda/sampling_select.cuh"
#include "base/random.h"

namespace sluice::cuda {

inline constexpr float kLeastLogprob =
    -9999.0f;  // reported for probability 0, as exec/sampler does

// The same thread fetches, adjusts and measures the same fours of a slice: no barrier between
// these.
template <typename F>
__device__ inline void for_each_four(RowSlice s, F f) {
  for (int at = 4 * static_cast<int>(threadIdx.x); at < s.num; at += 4 * kSampleThreads) {
    f(s.first + at, reinterpret_cast<float4*>(s.logits + at));
  }
}

// The raw logits of the slice to shared memory, all loads under way at once; NaN past the
// vocabulary.
__device__ inline void fetch(const SampleArgs& args, int row, RowSlice s) {
  const float* raw = args.step.logits + static_cast<int64_t>(row) * args.step.vocab;
  for_each_four(s, [&](int id, float4* to) {
    auto at = static_cast<uint32_t>(__cvta_generic_to_shared(to));
    if (args.vectored) {
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at), "l"(raw + id) : "memory");
      return;
    }
    for (int k = 0; k < 4; ++k) {
      if (id + k < args.step.vocab) {
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(at + 4 * k), "l"(raw + id + k)
                     : "memory");
      } else {
        reinterpret_cast<float*>(to)[k] = __int_as_float(0x7fffffff);
      }
    }
  });
  asm volatile("cp.async.wait_all;" ::: "memory");
}

// Out of line, with registers of their own, and arguments by value: what is passed by reference
// lives in local memory, and shared memory leaves that little cache.
__device__ __noinline__ inline void adjust_slice(const SampleArgs& args,
                                                 OutputRow out,
                                                 RowSlice s) {
  RowAdjust adjust(args.rows, out.slot, mask_of(args, out));
  adjust.settle(args.step.vocab);
  for_each_four(s, [&](int id, float4* four) { *four = adjust(*four, id); });
}
__device__ __noinline__ inline void adjust_to(float* to,
                                              const SampleArgs& args,
                                              OutputRow out,
                                              RowSlice s) {
  RowAdjust adjust(args.rows, out.slot, mask_of(args, out));
  adjust.settle(args.step.vocab);
  for_each_four(s, [&](int id, const float4* four) {
    *reinterpret_cast<float4*>(to + id) = adjust(*four, id);
  });
}

__device__ __noinline__ inline int lowest_allowed(const SampleArgs& args, OutputRow out) {
  RowAdjust adjust(args.rows, out.slot, mask_of(args, out));
  adjust.settle(args.step.vocab);
  return adjust.lowest_allowed(args.step.vocab);
}

// Whether logits are changed before a token is chosen.
__device__ inline bool adjusts(const SampleArgs& args, const OutputRow& out) {
  return out.actual < 0 && RowAdjust(args.rows, out.slot, mask_of(args, out)).any();
}

// Whether logits may be changed, by what no launch changes: all blocks, early and late, see the
// same rows as their own.
__device__ inline bool may_adjust(const SampleArgs& args, const OutputRow& out) {
  if (out.actual >= 0) return false;
  const RowSpec& s = args.rows.rows[out.slot].spec;
  return out.mask >= 0 || s.num_bias > 0 || s.num_bad > 0 || s.num_allowed > 0 ||
         (s.num_banned > 0 && s.min_tokens > 0) || s.repetition_penalty != 1 ||
         s.frequency_penalty != 0 || s.presence_penalty != 0;
}

// The row is in the hands of a cluster: each block keeps its slice of the logits, as adjusted, in
// shared memory. A block alone reads the logits where they are, or its scratch once they are
// adjusted. Candidates are the tokens above a threshold that at least as many tokens reach as
// are wanted, and rarely many more; the first block finishes with them alone. Only where there are
// too many, or a nucleus needs more, does select() look for the exact limit.
template <int kBlocks>
struct RowSampling {
  using RowBlock = Block<kBlocks>;
  static constexpr bool kAlone = RowBlock::kAlone;

  const SampleArgs& args;
  RowBlock& b;
  int row;
  OutputRow out;
  RowSlice slice;
  float* own;  // memory for the slice: shared, of a block alone its scratch
  Extent e;
  uint64_t best = 0;                         // place of the most likely token, 0 when there is none
  float max = kMinusInf, least = kMinusInf;  // of the logits that are numbers

  __device__ RowSampling(const SampleArgs& a, RowBlock& block, float* memory, int index)
      : args(a),
        b(block),
        row(index),
        out(a.step.outputs[index]),
        slice{memory, block.rank * a.chunk, 0},
        own(memory) {
    slice.num = ::max(0, min(a.chunk, a.step.vocab - slice.first));
  }

  __device__ float raw(int token) const {
    return args.step.logits[static_cast<int64_t>(row) * args.step.vocab + token];
  }

  __device__ void fetch_slice() {
    if constexpr (kAlone) {
      const float* logits = args.step.logits + static_cast<int64_t>(row) * args.step.vocab;
      slice.logits = args.vectored ? const_cast<float*>(logits) : own;  // nobody writes there
      if (args.vectored) return;
      for_each_four(slice, [&](int id, float4* four) {
        float x[4];
#pragma unroll
        for (int k = 0; k < 4; ++k)
          x[k] = id + k < args.step.vocab ? logits[id + k] : __int_as_float(0x7fffffff);
        *four = {x[0], x[1], x[2], x[3]};
      });
    } else {
      fetch(args, row, slice);
    }
  }

  __device__ void scan(bool adjusts) {
    fetch_slice();
    if constexpr (kAlone) {
      if (adjusts) {
        adjust_to(own, args, out, slice);
        slice.logits = own;
      }
    } else if (adjusts) {
      adjust_slice(args, out, slice);
    }
    e = {};
    for_each_four(slice, [&](int id, const float4* four) {
      float4 v = *four;
      e.add_top(v, id);
      e.add_low(v);
    });
  }

  // How many tokens of the slice, which is raw, stand before `token`. NaN counts as -inf.
  __device__ uint64_t count_before(int token) const {
    auto place = [](float x, int id) {
      uint32_t key = key_of(x);
      return place_of(key != 0 ? key : kMinusInfKey, id);
    };
    uint64_t mine = place(raw(token), token);
    unsigned before = 0;
    for_each_four(slice, [&](int id, const float4* four) {
      float x[4] = {four->x, four->y, four->z, four->w};
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        before += id + k < args.step.vocab && place(x[k], id + k) > mine ? 1 : 0;
      }
    });
    return before;
  }

  // Fills best, max and least. Returns a place that at least `num` tokens reach, if there are so
  // many: each block has its share of them.
  __device__ uint64_t meet_extents(int num) {
    uint64_t block_best = b.template fold_block<Fold::max>(e.best_of_warp());
    uint64_t block_low = b.template fold_block<Fold::min>(key_of(e.low));
    int share = (num + kBlocks - 1) / kBlocks;
    bool all = share > kSampleThreads || args.step.vocab <= kMaxGathered;
    uint32_t near = num > 0 && !all ? RowBlock::near_largest(e.key(), share) : 0;
    b.meet();
    auto letters = b.exchange(block_best, block_low, near);
    best = letters.template all<Fold::max>(0);
    max = best != 0 ? logit_at(best) : kMinusInf;
    least = logit_of(static_cast<uint32_t>(letters.template all<Fold::min>(1)));
    uint64_t place = letters.template all<Fold::min>(2) << 32;
    return place > kLeastRanked ? place : kLeastRanked;
  }

  // Lists the candidates, and sums weights over them (first) and over all (second).
  struct Sums {
    uint64_t listed = 0, all = 0;
  };
  __device__ Sums list_above(const Weigher& weigher, bool weighed, uint64_t from) {
    if (b.thread == 0) b.s.num_list = 0;
    __syncthreads();
    Sums sums;
    for_each_logit(b, slice, [&](float x, int i) {
      uint64_t place = place_of(x, slice.first + i);
      bool listed = place >= from;
      if (weighed) {
        uint64_t w = weigher(x);
        sums.all += w;
        sums.listed += listed ? w : 0;
      }
      add_to_list(b, listed, place);
    });
    sums.listed = b.template fold_block<Fold::sum>(sums.listed);
    sums.all = b.template fold_block<Fold::sum>(sums.all);
    return sums;
  }

  // Sum of the weights at or above the cut over all blocks.
  __device__ uint64_t total_weight(const Weigher& weigher, uint64_t cut) {
    uint64_t sum = 0;
    for_each_logit(b, slice, [&](float x, int i) {
      if (place_of(x, slice.first + i) >= cut) sum += weigher(x);
    });
    sum = b.template fold_block<Fold::sum>(sum);
    return b.exchange(sum).template all<Fold::sum>(0);
  }

  __device__ Draw how(const RowSpec& spec) const {
    DrawKey key{spec.seed, spec.choice, out.position, 0};
    return {draw_double(key), spec.top_p, spec.top_k, args.step.vocab};
  }

  // The logit of token `i` of the slice; NaN past the end.
  __device__ float logit_or_nan(int i) const {
    return i < slice.num ? slice.logits[i] : __int_as_float(0x7fffffff);
  }
  // Its weight, 0 below the cut, which NaN always is.
  __device__ uint64_t weight_from(const Weigher& weigher, uint64_t cut, float x, int i) const {
    return place_of(x, slice.first + i) >= cut ? weigher(x) : 0;
  }

  // draw_any() of a block alone, which reads memory: a warp adds up runs of neighbours.
  __device__ int draw_alone(const RowSpec& spec, const Weigher& weigher, uint64_t cut) {
    constexpr int kAhead = 8, kRuns = kMaxGathered;
    int run = 32 * kAhead;
    while (run * kRuns < slice.num) run *= 2;
    int num = (slice.num + run - 1) / run;
    uint64_t* sums = b.s.list;  // by run
    for (int k = num + b.thread; k < kRuns; k += kSampleThreads) sums[k] = 0;
    for (int k = b.warp; k < num; k += kSampleWarps) {
      uint64_t sum = 0;
      for (int at = k * run; at < (k + 1) * run; at += 32 * kAhead) {
        float x[kAhead];
#pragma unroll
        for (int j = 0; j < kAhead; ++j) x[j] = logit_or_nan(at + j * 32 + b.lane);
#pragma unroll
        for (int j = 0; j < kAhead; ++j)
          sum += weight_from(weigher, cut, x[j], at + j * 32 + b.lane);
      }
      sum = RowBlock::template fold_warp<Fold::sum>(sum);
      if (b.lane == 0) sums[k] = sum;
    }
    __syncthreads();
    uint64_t mine[2] = {sums[2 * b.thread], sums[2 * b.thread + 1]}, total;
    uint64_t before = b.sum_before(mine[0] + mine[1], total);
    uint64_t wanted = draw_weight(how(spec).uniform, total);
    if (b.thread == 0) b.s.bucket = 0, b.s.above = 0, b.s.token = -1;
    __syncthreads();
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      if (before < wanted && wanted <= before + mine[k]) {
        b.s.bucket = 2 * b.thread + k;
        b.s.above = before;
      }
      before += mine[k];
    }
    __syncthreads();
    if (b.warp == 0) {
      before = b.s.above;
      int from = b.s.bucket * run;
      for (int at = from; at < from + run; at += 32) {
        uint64_t w = weight_from(weigher, cut, logit_or_nan(at + b.lane), at + b.lane);
        uint64_t upto = before + RowBlock::sum_upto(w);
        if (upto >= wanted && upto - w < wanted) b.s.token = slice.first + at + b.lane;
        before = __shfl_sync(0xffffffffu, upto, 31);
      }
    }
    __syncthreads();
    return b.s.token;
  }

  // The token at or above the cut where the running sum in id order reaches the draw. Every thread
  // has a run of tokens, of odd length: no two lanes share a bank.
  __device__ int draw_any(const RowSpec& spec, const Weigher& weigher, uint64_t cut) {
    if constexpr (kAlone) return draw_alone(spec, weigher, cut);
    int run = ((args.chunk + kSampleThreads - 1) / kSampleThreads) | 1;
    auto weight = [&](int i) { return weight_from(weigher, cut, slice.logits[i], i); };
    int begin = min(b.thread * run, slice.num), end = min(begin + run, slice.num);
    uint64_t sum = 0;
#pragma unroll 4
    for (int i = begin; i < end; ++i) sum += weight(i);
    uint64_t block_total;
    uint64_t before = b.sum_before(sum, block_total);
    auto totals = b.exchange(block_total);
    uint64_t at = draw_weight(how(spec).uniform, totals.template all<Fold::sum>(0));
    for (int k = 0; k < b.rank; ++k) before += totals(k, 0);
    if (b.thread == 0) b.s.token = -1;
    __syncthreads();
    // The warp walks the run that the draw falls into, 32 tokens at a time.
    unsigned here = __ballot_sync(0xffffffffu, before < at && at <= before + sum);
    if (here != 0) {
      int owner = __ffs(static_cast<int>(here)) - 1;
      begin = __shfl_sync(0xffffffffu, begin, owner);
      end = __shfl_sync(0xffffffffu, end, owner);
      before = __shfl_sync(0xffffffffu, before, owner);
      for (int from = begin; from < end; from += 32) {
        uint64_t w = from + b.lane < end ? weight(from + b.lane) : 0;
        uint64_t upto = before + RowBlock::sum_upto(w);
        if (upto >= at && upto - w < at) b.s.token = slice.first + from + b.lane;
        before = __shfl_sync(0xffffffffu, upto, 31);
      }
    }
    __syncthreads();
    auto tokens = b.exchange(static_cast<uint64_t>(b.s.token + 1));
    return static_cast<int>(tokens.template all<Fold::max>(0)) - 1;
  }

  struct Scores {
    double max, log_sum;
    __device__ float logprob(float x) const {
      double lp = static_cast<double>(x > FLT_MAX ? FLT_MAX : x) - max - log_sum;
      return lp > kLeastLogprob ? static_cast<float>(lp) : kLeastLogprob;  // false for NaN
    }
  };

  // By the first block, from the n candidates gathered.
  __device__ int write_top(const Scores& scores, int n, int num_top) {
    b.sort_down(b.s.gathered, n);
    n = min(n, num_top);
    TopEntry* top = args.step.top + static_cast<int64_t>(row) * kMaxTopLogprobs;
    for (int i = b.thread; i < n; i += kSampleThreads) {
      uint64_t place = b.s.gathered[i];
      top[i] = {id_at(place), scores.logprob(logit_at(place))};
    }
    return n;
  }

  // Evenly over which logits a first histogram is laid.
  __device__ float range(const RowSpec& spec, bool counted) const {
    if (counted) return fminf(max - least, 64.0f);
    float reach = fmaxf(spec.x_min, -0.6932f * (Weigher::weight_bits(args.step.vocab) + 1));
    return fminf(max - least, -reach / spec.inv_temperature);
  }

  // What is wanted of the logits in the slice: the `num` most likely tokens where `counted`, else a
  // nucleus, of which `num` is a guess; 0: neither.
  struct Task {
    bool scoring, counted;
    int num;
  };
  __device__ Task task_of(const RowSpec& spec, bool scoring) const {
    constexpr int kNucleusGuess = 256;
    int vocab = args.step.vocab;
    if (scoring) {
      int num_top = min(min(out.num_top, vocab), kMaxTopLogprobs);
      return {true, true, args.step.top != nullptr ? ::max(num_top, 0) : 0};
    }
    if (spec.top_k > 0 && spec.top_k < vocab) return {false, true, spec.top_k};
    return {false, false, spec.top_p < 1 ? kNucleusGuess : 0};
  }

  // A token drawn, or the number of top entries written, in the first block.
  __device__ int perform(const RowSpec& spec, const Task& task, uint64_t from, Scores& scores) {
    bool scoring = task.scoring;
    Weigher weigher(max, args.step.vocab, scoring ? 1.0f : spec.inv_temperature,
                    scoring ? -60.0f : spec.x_min);
    if (!scoring && task.num == 0) return draw_any(spec, weigher, kLeastRanked);
    bool nucleus_only = !scoring && !task.counted;
    if (task.num == 0) from = ~uint64_t{0};
    Sums sums = list_above(weigher, scoring || nucleus_only, from);
    auto letters = b.exchange(b.s.num_list, sums.listed, sums.all);
    uint64_t total = letters.template all<Fold::sum>(2);
    if (scoring) {
      scores = {weigher.max, total > 0 ? log(static_cast<double>(total) / weigher.scale) : 0};
    }
    if (task.num == 0) return 0;
    uint64_t weight = nucleus_only ? nucleus_weight(spec.top_p, total) : 0;  // wanted
    uint64_t listed = letters.template all<Fold::sum>(0), cut = kLeastRanked;
    int gathered = -1;
    if (listed <= kMaxGathered && letters.template all<Fold::sum>(1) >= weight) {
      gathered = static_cast<int>(listed);
      if (b.rank == 0) gather(b, letters);
    }
    for (bool counted = task.counted; gathered < 0; counted = false) {
      auto target = counted ? static_cast<uint64_t>(task.num) : weight;
      Selected found = select(b, slice, {weigher, counted, cut, target, max, range(spec, counted)});
      gathered = found.num;
      cut = found.cut;
      if (gathered >= 0 || !counted || spec.top_p >= 1) break;
      weight = nucleus_weight(spec.top_p, total_weight(weigher, cut));
    }
    if (gathered < 0) return draw_any(spec, weigher, cut);
    if (b.rank != 0) return -1;
    return scoring ? write_top(scores, gathered, task.num)
                   : draw_gathered(b, how(spec), weigher, gathered, weight);
  }

  // Whether draw_in_two_reads() had the token.
  __device__ bool try_reads(const RowSpec& spec, int32_t& token) {
    if constexpr (kAlone) {
      int vocab = args.step.vocab;
      bool limited = spec.top_k > 0 && spec.top_k < vocab;
      if (limited || !args.vectored || !fits_two_reads(vocab, spec.x_min)) return false;
      const float* logits = args.step.logits + static_cast<int64_t>(row) * vocab;
      Draw all = how(spec);
      all.top_k = 0;
      token = draw_in_two_reads({logits, spec.inv_temperature, all});
      __syncthreads();  // it has a view of the block of its own
      return token >= 0;
    }
    return false;
  }

  __device__ void run() {
    bool sampled = out.actual < 0, reported = !sampled || out.num_top >= 0;
    const RowSpec& spec = args.rows.rows[out.slot].spec;
    bool adjusts = sluice::cuda::adjusts(args, out);
    bool draws = sampled && spec.inv_temperature >= 0;
    SampleResult result{out.actual, 0, 0, 0};
    Scores scores{};
    for (int turn = reported ? 0 : 1; turn < (sampled ? 2 : 1); ++turn) {
      bool scoring = turn == 0, fresh = scoring || !reported || adjusts;
      if (!scoring && draws && !adjusts && try_reads(spec, result.token)) break;
      if (fresh) scan(adjusts && !scoring);
      Task task = task_of(spec, scoring);
      uint64_t from = 0;
      if (fresh || draws) from = meet_extents(draws || scoring ? task.num : 0);
      bool chosen = !scoring && (!draws || best == 0);
      int n = chosen ? (best != 0 ? id_at(best) : -1) : perform(spec, task, from, scores);
      (scoring ? result.num_top : result.token) = n;
    }
    if (result.token < 0 && sampled && best == 0 && b.rank == 0) {
      result.token = lowest_allowed(args, out);
    }
    if (reported) {
      // The first block knows the token.
      result.token = static_cast<int>(b.exchange(static_cast<uint64_t>(result.token))(0, 0));
    }
    if (reported && result.token >= 0) {
      if (adjusts) fetch_slice();
      uint64_t before = b.template fold_block<Fold::sum>(count_before(result.token));
      result.rank = static_cast<int>(b.exchange(before).template all<Fold::sum>(0)) + 1;
      result.logprob = scores.logprob(raw(result.token));
    }
    if (b.rank != 0 || b.thread != 0) return;
    args.step.results[row] = result;
    if (sampled) remember(args.rows, out.slot, result.token);
  }
};

}  // namespace sluice::cuda
