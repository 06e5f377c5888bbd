// Attention of decode_stack.cu. A sequence's positions are shared out for each kv head to one
// block, or to several, whose parts another block merges.
#pragma once

#include "backend/cuda/decode_stack_block.cuh"
#include "backend/cuda/ldmatrix.cuh"
#include "backend/cuda/mma_sync.cuh"

namespace sluice::cuda {

// K and V of the block's positions are in shared memory, 16 bytes of a row where no two rows that
// are read together meet in a bank.
__device__ inline int kv_place(int row, int chunk, int head_dim) {
  const int turn = (row & 1) << 2 | (row >> 1 & 3);
  return row * head_dim * 2 + ((chunk ^ turn) << 4);
}

__device__ inline int32_t kv_id(const StackArgs& a, int row, int index) {
  const int64_t cell = a.table_at + a.row_slot[row] * a.table_stride + index;
  return a.tables ? a.tables[cell] : static_cast<int32_t>(a.first_block + cell);
}
__device__ inline int64_t kv_element(const StackArgs& a, int64_t id, int kv_head, int position) {
  const int in_block = position & ((1 << a.block_shift) - 1);
  return (((id * a.shape.kv_heads + kv_head) << a.block_shift) + in_block) * a.shape.head_dim;
}

// The blocks of positions from `first` on.
__device__ inline void find_ids(const Block& b, const Share& s, int first) {
  const int shift = b.a.block_shift, from = first >> shift;
  const int num = ((min(s.end, first + b.a.plan.kv_cap) - 1) >> shift) - from + 1;
  if (b.thread < num) b.small.ids[b.thread] = kv_id(b.a, s.row, from + b.thread);
}

// Queues copies of positions [first, first + kv_cap) of a share, zeros behind its end. The token's
// own place is left out.
template <int D>
__device__ inline void fetch_kv(
    const Block& b, const StackLayer& l, const Share& s, int first, int index, int step) {
  constexpr int kChunks = D / 8;
  const int shift = b.a.block_shift, from = first >> shift;
  const int end = min(s.end, first + b.a.plan.kv_cap), rows = (end - first + 15) & ~15;
  const uint32_t k_at = b.shared + static_cast<uint32_t>(b.a.plan.kv_at);
  const uint32_t v_at = k_at + static_cast<uint32_t>(b.a.plan.kv_cap * D * 2);
#pragma unroll 1
  for (int i = index; i < rows * kChunks; i += step) {
    const int r = i / kChunks, chunk = i % kChunks, position = first + r;
    if (position == s.position) continue;
    const bool there = position < end;
    const int64_t at =
        there ? kv_element(b.a, b.small.ids[(position >> shift) - from], s.kv_head, position) * 2 +
                    chunk * 16
              : 0;
    const auto to = static_cast<uint32_t>(kv_place(r, chunk, D));
    copy16(k_at + to, static_cast<const uint8_t*>(l.k) + at, there);
    copy16(v_at + to, static_cast<const uint8_t*>(l.v) + at, there);
  }
}

// One head of q, k or v of a token, as it comes: normed, rotated; to shared memory in T, and k and
// v to the cache. By half a warp; `active` or not, both halves call it.
template <typename T, int D>
__device__ inline void take_head(const Block& b,
                                 const StackLayer& l,
                                 const Share& s,
                                 int vector,
                                 bool active,
                                 int first,
                                 int layer,
                                 const uint32_t* qkv) {
  const StackShape& h = b.a.shape;
  const int group = b.a.group, half = h.rope_dims / 2, lane = b.lane % 16;
  const bool is_q = vector < group, is_v = vector == group + 1;
  const int head =
      is_q ? s.kv_head * group + vector : h.heads + (is_v ? h.kv_heads : 0) + s.kv_head;
  const uint32_t* from = qkv + s.row * h.qkv_dim() + head * D;
  constexpr int kPairs = D / 32;
  int at[kPairs], bt[kPairs];
  uint32_t x[kPairs], y[kPairs];
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
    const int p = lane + 16 * i;
    if (is_v || p >= half) {
      at[i] = is_v ? 2 * p : h.rope_dims + 2 * (p - half), bt[i] = at[i] + 1;
    } else {
      at[i] = h.interleaved ? 2 * p : p, bt[i] = h.interleaved ? 2 * p + 1 : p + half;
    }
    x[i] = y[i] = 0;
    if (active) x[i] = look1(from + at[i]), y[i] = look1(from + bt[i]);
  }
  bool missing;
  do {
    missing = false;
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      if (x[i] == kNothing) x[i] = look1(from + at[i]), missing = true;
      if (y[i] == kNothing) y[i] = look1(from + bt[i]), missing = true;
    }
  } while (missing);
  float squares = 0;
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
    const float u = __uint_as_float(x[i]), v = __uint_as_float(y[i]);
    squares += u * u + v * v;
  }
  float inverse = 1;
  const float* norm = nullptr;  // came with attention's
  if (b.a.shape.head_norms) {
    barrier_wait(b.full(b.a.plan.head_unit), layer);
    __syncwarp();
#pragma unroll
    for (int step = 8; step > 0; step /= 2) squares += __shfl_xor_sync(0xffffffffu, squares, step);
    if (!is_v) {
      inverse = rsqrtf(squares / D + h.eps);
      norm = reinterpret_cast<const float*>(b.memory + b.small.unit_at[b.a.plan.head_unit]) +
             (is_q ? 0 : D);
    }
  }
  if (!active) return;
  uint8_t* to = b.small.q;
  int row = vector;
  if (!is_q) {
    row = s.position - first;
    to = b.memory + b.a.plan.kv_at + (is_v ? b.a.plan.kv_cap * D * 2 : 0);
  }
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
    const int p = lane + 16 * i;
    float u = __uint_as_float(x[i]), v = __uint_as_float(y[i]);
    if (norm) u *= inverse * norm[at[i]], v *= inverse * norm[bt[i]];
    if (!is_v && p < half) {
      const float c = b.small.turn[p], d = b.small.turn[half + p], turned = u * c - v * d;
      v = v * c + u * d;
      u = turned;
    }
    const T head = from_float<T>(u), tail = from_float<T>(v);
    *reinterpret_cast<T*>(to + kv_place(row, at[i] / 8, D) + at[i] % 8 * 2) = head;
    *reinterpret_cast<T*>(to + kv_place(row, bt[i] / 8, D) + bt[i] % 8 * 2) = tail;
    if (!is_q) {
      T* cell = static_cast<T*>(is_v ? l.v : l.k) + s.cell;
      cell[at[i]] = head, cell[bt[i]] = tail;
    }
  }
}

// A warp's softmax so far: of head g, and out's dimensions 16 i + g and that plus 8 of heads 2 t
// and the next.
template <int D>
struct Running {
  float most = -INFINITY, total = 0;
  float out[D / 16][4] = {};
};

// 16 positions, from row `row` of shared memory on; those from `valid` on do not count.
template <typename T, int D>
__device__ inline void attend_tile(const Block& b, Running<D>& r, int row, int valid, float scale) {
  const uint8_t* k = b.memory + b.a.plan.kv_at;
  float s[2][4] = {};
#pragma unroll
  for (int i = 0; i < D / 32; ++i) {
    const uint4 q = *reinterpret_cast<const uint4*>(b.small.q + kv_place(b.g, i * 4 + b.t, D));
    const uint32_t first[4] = {q.x, 0, q.y, 0}, second[4] = {q.z, 0, q.w, 0};
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const uint4 w =
          *reinterpret_cast<const uint4*>(k + kv_place(row + 8 * h + b.g, i * 4 + b.t, D));
      mma(s[h], first, w.x, w.y, T{});
      mma(s[h], second, w.z, w.w, T{});
    }
  }
  float most = r.most;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    for (int j = 0; j < 2; ++j) {
      s[h][j] = 8 * h + 2 * b.t + j < valid ? s[h][j] * scale : -INFINITY;
      most = fmaxf(most, s[h][j]);
    }
  }
  most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
  most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));
  const float by = exp2f(r.most - most);
  r.most = most;
  float total = 0;
  uint32_t p[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const float u = exp2f(s[h][0] - most), v = exp2f(s[h][1] - most);
    total += u + v;
    p[h] = pack2<T>(u, v);
  }
  r.total = r.total * by + total;
  const float even = __shfl_sync(0xffffffffu, by, 8 * b.t),
              odd = __shfl_sync(0xffffffffu, by, 8 * b.t + 4);
  const uint32_t v_at = b.shared + static_cast<uint32_t>(b.a.plan.kv_at + b.a.plan.kv_cap * D * 2);
  const int position = row + (b.lane & 7) + (b.lane >> 4) * 8;
#pragma unroll
  for (int i = 0; i < D / 16; ++i) {
    uint32_t v[4];
    ldmatrix_trans(v,
                   v_at + static_cast<uint32_t>(kv_place(position, 2 * i + (b.lane >> 3 & 1), D)));
    r.out[i][0] *= even, r.out[i][1] *= odd, r.out[i][2] *= even, r.out[i][3] *= odd;
    mma(r.out[i], v, p[0], p[1], T{});
  }
}

// The block's warps' results become one: the head's output, or the block's part of it. Two columns
// of a head per thread; eight heads of 128 have more of them than the block has threads.
template <typename T, int D>
__device__ inline void merge_warps(const Block& b, const Share& s, int warps, uint32_t* relay) {
  const StackPlan& plan = b.a.plan;
  const StackShape& shape = b.a.shape;
#pragma unroll 1
  for (int e = b.thread; e < b.a.group * (D / 2); e += kComputeThreads) {
    const int h = e / (D / 2), c = e % (D / 2);
    float most = -INFINITY, total = 0;
#pragma unroll 4
    for (int w = 0; w < warps; ++w) most = fmaxf(most, b.small.merge[w][h].x);
    float2 out{};
#pragma unroll 4
    for (int w = 0; w < warps; ++w) {
      const float2 m = b.small.merge[w][h];
      const float by = exp2f(m.x - most);
      const float2 v = *reinterpret_cast<const float2*>(b.memory + plan.kv_at + w * 32 * D +
                                                        (h * D + 2 * c) * 4);
      total += by * m.y, out.x += by * v.x, out.y += by * v.y;
    }
    if (s.splits == 1) {
      const float by = __frcp_rn(total);
      send(relay + plan.attended_at + (s.row * shape.heads + s.kv_head * b.a.group + h) * (D / 2) +
               c,
           pack2<T>(out.x * by, out.y * by));
      continue;
    }
    uint32_t* part =
        relay + plan.parts_at +
        (((s.row * shape.kv_heads + s.kv_head) * plan.splits + s.split) * b.a.group + h) * (D + 2);
    send(part + 2 * c, out.x);
    send(part + 2 * c + 1, out.y);
    if (c == 0) send(part + D, most), send(part + D + 1, total);
  }
}

template <typename T, int D>
__device__ inline void attend(
    const Block& b, const StackLayer& l, const Share& s, bool fetched, int layer, uint32_t* relay) {
  const StackPlan& plan = b.a.plan;
  const int group = b.a.group;
  const float scale = b.a.shape.scale * 1.44269504f;
  Running<D> r;
  int warps = 0;
#pragma unroll 1
  for (int first = s.first; first < s.end; first += plan.kv_cap) {
    const int end = min(s.end, first + plan.kv_cap);
    const bool holds = s.position >= first && s.position < end, begins = first == s.first;
    if (!begins || !fetched) {
      meet();  // all have read the positions before
      find_ids(b, s, first);
      meet();
      fetch_kv<D>(b, l, s, first, b.thread, kComputeThreads);
      copy_commit();
    }
    const int v = b.thread / 16;
    if (2 * b.warp < group + 2 && (begins || holds))
      take_head<T, D>(b, l, s, v, v < group ? begins : v < group + 2 && holds, first, layer,
                      relay + plan.qkv_at);
    if (begins && fetched) {
      barrier_wait(smem_address(&b.small.kv_full), layer);
    } else {
      copy_wait<0>();
    }
    meet();
    const int tiles = (end - first + 15) / 16;
#pragma unroll 1
    for (int tile = b.warp; tile < tiles; tile += kStackWarps)
      attend_tile<T, D>(b, r, tile * 16, end - first - tile * 16, scale);
    warps = max(warps, min(kStackWarps, tiles));
  }
  // The warp's own tile of K makes place for its output.
  __syncwarp();
  float total = r.total;
  total += __shfl_xor_sync(0xffffffffu, total, 1);
  total += __shfl_xor_sync(0xffffffffu, total, 2);
  if (b.warp < warps) {
    if (b.t == 0 && b.g < group) b.small.merge[b.warp][b.g] = {r.most, total};
    float* to =
        reinterpret_cast<float*>(b.memory + plan.kv_at + b.warp * 32 * D) + 2 * b.t * D + b.g;
#pragma unroll
    for (int i = 0; i < D / 16; ++i) {
      if (2 * b.t < group) to[16 * i] = r.out[i][0], to[16 * i + 8] = r.out[i][2];
      if (2 * b.t + 1 < group) to[D + 16 * i] = r.out[i][1], to[D + 16 * i + 8] = r.out[i][3];
    }
  }
  meet();
  merge_warps<T, D>(b, s, warps, relay);
}

// A sequence's positions shared out: how many each block takes.
__device__ inline int span_of(const StackPlan& plan, int context) {
  const int want = (context + plan.span - 1) / plan.span;
  const int splits = min(plan.splits, want);
  return ((context + splits - 1) / splits + 15) & ~15;
}

// The share `index` of all, none where a sequence has fewer.
__device__ inline Share share_of(const StackArgs& a, int index) {
  const StackPlan& plan = a.plan;
  Share s;
  const int pair = index / plan.splits;
  s.split = index % plan.splits;
  s.row = pair / a.shape.kv_heads, s.kv_head = pair % a.shape.kv_heads;
  s.position = a.positions[s.row];
  const int context = s.position + 1, span = span_of(plan, context);
  s.first = s.split * span, s.end = min(context, s.first + span);
  s.splits = s.first < context ? (context + span - 1) / span : 0;
  s.cell = kv_element(a, kv_id(a, s.row, s.position >> a.block_shift), s.kv_head, s.position);
  return s;
}

// A head of a sequence that several blocks have; splits == 0: none.
struct Merge {
  int row = 0, head = 0, splits = 0;
};
// One per block, from the last block on.
__device__ inline Merge merge_of(const StackArgs& a, int index) {
  Merge m;
  if (index >= a.plan.n * a.shape.heads) return m;
  m.row = index / a.shape.heads, m.head = index % a.shape.heads;
  const int context = a.positions[m.row] + 1, span = span_of(a.plan, context);
  m.splits = (context + span - 1) / span;
  if (m.splits == 1) m.splits = 0;
  return m;
}

template <typename T, int D>
__device__ inline void merge_splits(const Block& b, const Merge& m, uint32_t* relay) {
  constexpr int kGroups = kComputeThreads / (D / 2), kEach = (kStackSplits + kGroups - 1) / kGroups;
  const StackPlan& plan = b.a.plan;
  const int group = b.a.group, c = b.thread % (D / 2), q = b.thread / (D / 2);
  const uint32_t* part =
      relay + plan.parts_at +
      ((m.row * b.a.shape.kv_heads + m.head / group) * plan.splits * group + m.head % group) *
          (D + 2);
  const int step = group * (D + 2);
  uint32_t v[kEach][4];
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int s = q + i * kGroups;
    if (s < m.splits) {
      const uint32_t* p = part + s * step;
      v[i][0] = look1(p + D), v[i][1] = look1(p + D + 1);
      v[i][2] = look1(p + 2 * c), v[i][3] = look1(p + 2 * c + 1);
    }
  }
  bool missing;
  do {
    missing = false;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int s = q + i * kGroups;
      const uint32_t* p = part + s * step;
      if (s < m.splits && (v[i][0] == kNothing || v[i][1] == kNothing || v[i][2] == kNothing ||
                           v[i][3] == kNothing)) {
        v[i][0] = look1(p + D), v[i][1] = look1(p + D + 1);
        v[i][2] = look1(p + 2 * c), v[i][3] = look1(p + 2 * c + 1);
        missing = true;
      }
    }
  } while (missing);
  float4 sum{-INFINITY, 0, 0, 0};  // most, total, two columns
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    if (q + i * kGroups < m.splits) {
      const float most = __uint_as_float(v[i][0]), now = fmaxf(sum.x, most);
      const float old = exp2f(sum.x - now), by = exp2f(most - now);
      sum = {now, sum.y * old + by * __uint_as_float(v[i][1]),
             sum.z * old + by * __uint_as_float(v[i][2]),
             sum.w * old + by * __uint_as_float(v[i][3])};
    }
  }
  b.small.split[b.thread] = sum;
  meet();
  if (b.thread >= D / 2) return;
  float most = -INFINITY;
#pragma unroll
  for (int i = 0; i < kGroups; ++i) most = fmaxf(most, b.small.split[i * (D / 2) + c].x);
  float total = 0, x = 0, y = 0;
#pragma unroll
  for (int i = 0; i < kGroups; ++i) {
    const float4 s = b.small.split[i * (D / 2) + c];
    const float by = exp2f(s.x - most);
    total += by * s.y, x += by * s.z, y += by * s.w;
  }
  const float by = __frcp_rn(total);
  send(relay + plan.attended_at + (m.row * b.a.shape.heads + m.head) * (D / 2) + c,
       pack2<T>(x * by, y * by));
}

__device__ inline void load_turn(const Block& b, int row) {
  const int dims = b.a.shape.rope_dims;
  if (b.thread < dims) b.small.turn[b.thread] = b.a.cos_sin[row * dims + b.thread];
}

// Every layer's K and V of the block's share, as soon as the layer before is done with its place.
template <int D>
__device__ inline void copy_kv(const Block& b) {
  const Share s = b.small.share;
  if (s.splits == 0) return;
  const uint32_t full = smem_address(&b.small.kv_full), empty = smem_address(&b.small.kv_empty);
#pragma unroll 1
  for (int l = 0; l < b.a.plan.layers; ++l) {
    if (l > 0) barrier_wait(empty, l - 1);
    fetch_kv<D>(b, b.a.layer[l], s, s.first, b.lane, 32);
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(full) : "memory");
  }
}

template <typename T, int D>
__device__ inline void attention_of(
    const Block& b, int l, bool own, int shares, const Merge& merge, uint32_t* relay) {
  const StackArgs& a = b.a;
#pragma unroll 1
  for (int i = static_cast<int>(blockIdx.x); i < shares; i += a.plan.blocks) {
    const Share s = own ? b.small.share : share_of(a, i);
    if (!own) {
      meet();
      load_turn(b, s.row);
    }
    if (s.splits > 0) {
      attend<T, D>(b, a.layer[l], s, own, l, relay);
      if (own) {
        // The ids of the first positions, for the next layer.
        if (s.end - s.first > a.plan.kv_cap) {
          find_ids(b, s, s.first);
          meet();
        }
        release(b, smem_address(&b.small.kv_empty));
      }
    }
  }
  if (a.shape.head_norms) release(b, b.empty(a.plan.head_unit));
  if (merge.splits > 0) merge_splits<T, D>(b, merge, relay);
}

}  // namespace sluice::cuda
