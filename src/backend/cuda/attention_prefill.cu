// Attention of slices: plans, and the kernel for every cache that the tensor cores can read through
// mma.sync: tiles of 64 (query, head) rows, four warps of 16 rows, K and V tiles of 64 positions.
#include <algorithm>
#include <cmath>

#include "backend/cuda/attention_kinds.cuh"
#include "backend/cuda/attention_prefill.cuh"
#include "backend/cuda/check.cuh"
#include "backend/cuda/target.cuh"
#include "base/check.h"

namespace sluice::cuda {
namespace {

// Heads above 128 add up by spans in tiles only where there is so much shared memory.
constexpr size_t kSpansShared = 224 * 1024;
constexpr int kRows = 64;
constexpr int kThreads = kRows / 16 * 32;

template <typename KV, int D>
constexpr int kRowsBytes = kKvTile* D* static_cast<int>(sizeof(KV));
template <typename KV, int D>
constexpr int kStageBytes = 2 * (kRowsBytes<KV, D> + ScaleRows<KV, D, kKvTile>::kSize);

// Shared memory: stages, queries, then the output of earlier spans. One stage where there is little
// shared memory: all then wait for each copy.
template <typename T, typename KV, int D, bool kSpans, int kStages>
struct MmaShape {
  static constexpr int kQueriesAt = kStages * kStageBytes<KV, D>;
  static constexpr int kTotalAt = kQueriesAt + kThreads / 32 * Queries<T, KV, D>::kSharedBytes;
  static constexpr size_t kBytes = kTotalAt + (kSpans ? SpanOutput<D, kThreads>::kBytes : 0);
};

template <typename T, typename KV, int D, bool kSpans, int kStages>
__global__ __launch_bounds__(kThreads) void mma_kernel(TilePlan plan) {
  using Shape = MmaShape<T, KV, D, kSpans, kStages>;
  extern __shared__ __align__(128) uint8_t smem[];
  constexpr int kStage = kStageBytes<KV, D>;
  wait_for_previous_kernel();
  Tile tile;
  if (!find_tile<kRows>(plan, tile)) return;
  const AttentionParams& p = plan.a;
  TileView<kRows> view(tile, p);
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  bool works = tile.first + warp * 16 < view.total;
  int begin = view.lo / kKvTile * kKvTile;
  int num = (view.hi - begin + kKvTile - 1) / kKvTile;

  uint32_t stages = smem_address(smem);
  using Scales = ScaleRows<KV, D, kKvTile>;
  TileLoader<kThreads, D* static_cast<int>(sizeof(KV)), Scales> loader(p, tile, view.lo, view.hi);
  loader.fetch(begin);
  loader.copy(stages, begin);
  copy_commit();
  loader.fetch(begin + kKvTile);

  const T* q = static_cast<const T*>(p.q);
  Queries<T, KV, D> queries;
  queries.load(view.row[0] < view.total ? q + view.offset(tile, p, 0, p.q_stride) : nullptr,
               view.row[1] < view.total ? q + view.offset(tile, p, 1, p.q_stride) : nullptr,
               p.head_dim, stages + Shape::kQueriesAt + warp * Queries<T, KV, D>::kSharedBytes,
               lane);
  float o[D / 8][4] = {};
  SoftmaxState state;
  SpanOutput<D, kThreads> before(smem + Shape::kTotalAt);
  for (int i = 0; i < num; ++i) {
    int at = begin + i * kKvTile;
    copy_wait<0>();
    __syncthreads();
    uint32_t k = stages + (i & (kStages - 1)) * kStage, v = k + kRowsBytes<KV, D>;
    if (kIsCodes<KV> && at < view.lo) {
      clear_scales<Scales>(v + kRowsBytes<KV, D> + Scales::kSize, view.lo - at, threadIdx.x);
      __syncthreads();
    }
    auto copy_next = [&] {
      if (i + 1 < num) {
        loader.copy(stages + ((i + 1) & (kStages - 1)) * kStage, at + kKvTile);
        loader.fetch(at + 2 * kKvTile);
      }
      copy_commit();
    };
    if constexpr (kStages == 2) {
      copy_next();
      if (!works) continue;
    }
    float s[kKvTile / 8][4], alpha[2];
    scores<T, KV, D, kKvTile>(s, queries, k, lane);
    apply_softcap(s, p);
    if (view.needs_mask(at)) mask(s, at, view.from, view.to, lane);
    online_softmax(s, p.factor, state, alpha);
    rescale(o, alpha);
    accumulate<T, KV, D, kKvTile>(o, s, v, lane);
    if (kSpans && i + 1 < num && at + kKvTile == span_end(at)) {
      float keep[2], take[2];
      before.total.add(state, keep, take);
      before.add(o, keep, take);
      clear(o);
      state = {};
    }
    if constexpr (kStages == 1) {
      __syncthreads();  // all warps have read the tile
      copy_next();
    }
  }
  before.template finish<kSpans>(o, state);
  store_output<T, KV, D, kRows>(o, before.total, plan, tile, view);
}

template <typename T, typename KV, int D, bool kSpans, int kStages = 2>
void launch(const TilePlan& plan, cudaStream_t stream) {
  constexpr size_t kBytes = MmaShape<T, KV, D, kSpans, kStages>::kBytes;
  if constexpr (kSpans) {
    static_assert(kBytes <= (D > 128 ? kSpansShared : kLeastShared));
  } else if constexpr (kBytes > kLeastShared) {
    static_assert(kStages > 1);
    if (kBytes > target().shared) return launch<T, KV, D, kSpans, 1>(plan, stream);
  }
  allow_shared<mma_kernel<T, KV, D, kSpans, kStages>>(kBytes, "attention prefill");
  mma_kernel<T, KV, D, kSpans, kStages>
      <<<plan.num_tiles * plan.a.kv_heads, kThreads, kBytes, stream>>>(plan);
  check_launch("attention prefill");
}

}  // namespace

AttentionParams make_params(const AttentionArgs& args) {
  constexpr float kLog2e = 1.44269504f;
  const AttentionSpec& spec = args.spec;
  AttentionParams p{};
  p.q = args.q;
  p.out = args.out;
  p.k = static_cast<const uint8_t*>(args.k);
  p.v = static_cast<const uint8_t*>(args.v);
  p.tables = args.tables;
  p.positions = args.positions;
  p.row_slot = args.row_slot;
  p.q_stride = args.q_stride;
  p.out_stride = args.out_stride;
  p.table_stride = args.table_stride;
  p.first_block = args.first_block;
  p.kv_heads = spec.num_kv_heads;
  p.group = spec.num_heads / spec.num_kv_heads;
  p.group_inverse =
      p.group > 1 ? static_cast<uint32_t>(((uint64_t{1} << 32) + p.group - 1) / p.group) : 0;
  p.head_dim = spec.head_dim;
  p.row_bytes = spec.head_dim * static_cast<int>(dtype_bytes(args.kv_type.type));
  p.block_bytes = static_cast<int64_t>(args.kv_type.head_bytes(spec.head_dim, args.block_size));
  if (int dims = args.kv_type.group; dims > 0) {
    p.scales_at = p.row_bytes * args.block_size;
    p.num_scales = spec.head_dim / dims;
    while (1 << p.dims_shift < dims) ++p.dims_shift;
    p.scale_shift = dims == 64 ? 1 : 0;
  }
  while ((1 << p.block_shift) < args.block_size) ++p.block_shift;
  CHECK(1 << p.block_shift == args.block_size && args.block_size >= 8);
  p.window = spec.window;
  p.factor = spec.scale * kLog2e;
  if (spec.softcap > 0) {
    p.factor = 1;
    p.cap = spec.softcap * kLog2e;
    p.cap_factor = 2 * spec.scale / spec.softcap * kLog2e;
  }
  return p;
}

bool has_tile_kernel(const AttentionArgs& args) {
  auto aligned = [](const void* p, int64_t stride) {
    return reinterpret_cast<uintptr_t>(p) % 16 == 0 && stride % 8 == 0;
  };
  if (args.type == DType::f32 || args.spec.head_dim > 256) return false;
  if (args.deterministic && args.spec.head_dim > 128 && target().shared < kSpansShared)
    return false;
  size_t row_bytes = args.spec.head_dim * dtype_bytes(args.kv_type.type);
  return row_bytes % 16 == 0 && aligned(args.q, args.q_stride) &&
         aligned(args.out, args.out_stride);
}

void plan_tiles(TilePlan& plan, std::span<const SliceView> slices, int rows) {
  int group = plan.a.group, total = 0, most = 0;
  for (const SliceView& s : slices) {
    int tiles = (s.count * group + rows - 1) / rows;
    total += tiles;
    most = std::max(most, tiles);
  }
  plan.num_slices = static_cast<int>(slices.size());
  // Blocks without a tile end at once, but many of them cost more than the order gains.
  int64_t by_rank = int64_t{most} * plan.num_slices;
  plan.by_rank = by_rank <= int64_t{total} * 5 / 4;
  plan.num_tiles = plan.by_rank ? static_cast<int>(by_rank) : total;
}

void launch_mma(TilePlan plan,
                DType type,
                KvType kv_type,
                bool spans,
                std::span<const SliceView> slices,
                cudaStream_t stream) {
  plan_tiles(plan, slices, kRows);
  with_tile_kernel(type, kv_type, plan.a.head_dim, [&](auto t, auto kv, auto dim) {
    using T = decltype(t);
    using KV = decltype(kv);
    constexpr int kDim = decltype(dim)::value;
    spans ? launch<T, KV, kDim, true>(plan, stream) : launch<T, KV, kDim, false>(plan, stream);
  });
}

void attend_prefill(const AttentionArgs& args,
                    std::span<const SliceView> slices,
                    const SliceView* device_slices,
                    cudaStream_t stream) {
  if (slices.empty()) return;
  if (has_tile_kernel(args)) {
    TilePlan plan{make_params(args), device_slices};
    const bool bytes = args.kv_type.type == DType::f8 || args.kv_type.type == DType::i8;
    if ((bytes ? !args.deterministic : args.kv_type.type == args.type) &&
        args.spec.head_dim <= 128 && has_wgmma()) {
      return launch_wgmma(plan, args.type, args.kv_type, args.deterministic, slices, stream);
    }
    return launch_mma(plan, args.type, args.kv_type, args.deterministic, slices, stream);
  }
  for (size_t i = 0; i < slices.size();) {
    int first = slices[i].row, end = first;
    for (; i < slices.size() && slices[i].row == end; ++i) end += slices[i].count;
    launch_plain(args, first, end - first, stream);
  }
}

}  // namespace sluice::cuda
