// Products of decode_stack.cu: inputs out of the relay, the block's tiles, and sums into the relay.
#pragma once

#include "backend/cuda/activation.cuh"
#include "backend/cuda/decode_stack_block.cuh"
#include "backend/cuda/mma_sync.cuh"

namespace sluice::cuda {

// Halves hold x times a norm's weight only when that is shrunk: x grows to tens of thousands.
template <typename T>
constexpr float kStackShrink = std::is_same_v<T, __half> ? 0x1p-6f : 1;

// Sums of v[i] over the warp's lanes: lane l has that of i = l / 8.
__device__ inline float sum_each(float (&v)[4], int lane) {
#pragma unroll
  for (int step = 16, num = 2; num > 0; step /= 2, num /= 2) {
    const bool upper = lane & step;
#pragma unroll
    for (int i = 0; i < num; ++i) {
      const float give = upper ? v[i] : v[i + num];
      v[i] = (upper ? v[i + num] : v[i]) + __shfl_xor_sync(0xffffffffu, give, step);
    }
  }
#pragma unroll
  for (int step = 4; step > 0; step /= 2) v[0] += __shfl_xor_sync(0xffffffffu, v[0], step);
  return v[0];
}

// Inputs come out of the relay into shared memory, 16 bytes of it per thread at a time; of eight
// columns the pairs are in the order 0, 2, 1, 3 there (multiply_unit()). Normed:
// they are f32 there, and are multiplied by the norm's weights; sums of their squares are kept.
template <typename T>
__device__ inline void receive(
    const Block& b, const uint32_t* from, int stride, int cols, int product, int layer) {
  constexpr int kAtOnce = 4;
  const bool normed = product == kStackQkv || product == kStackGateUp;
  const int which = product / 2, of_row = normed ? cols / 4 : cols / 8;
  const int num = b.a.plan.n * (1 + (of_row - 1) / kComputeThreads), pitch = cols * 2 + 64;
  const uint32_t in = b.shared + static_cast<uint32_t>(b.a.plan.in_at);
  uint32_t norm_at = 0;
  int row = 0, c = b.thread;
#pragma unroll 1
  for (int first = 0; first < num; first += kAtOnce) {
    uint4 v[kAtOnce];
    int at[kAtOnce], column[kAtOnce];  // at < 0: nothing
    uint32_t out[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const bool there = first + i < num && c < of_row;
      at[i] = there ? row * stride + c * 4 : -1;
      column[i] = c;
      out[i] = in + static_cast<uint32_t>(row * pitch);
      v[i] = there ? look(from + at[i]) : uint4{};
      c += kComputeThreads;
      if (c - b.thread >= of_row) c = b.thread, ++row;
    }
    if (normed && first == 0) {
      const int unit = b.a.plan.norm_unit[which];
      barrier_wait(b.full(unit), layer);
      norm_at = b.shared + b.small.unit_at[unit];
    }
    // Words that were not there are looked for again, all at once.
    bool missing;
    do {
      missing = false;
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (misses(v[i])) v[i] = look(from + at[i]), missing = true;
      }
    } while (missing);
    float squares[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      squares[i] = 0;
      if (at[i] < 0) continue;
      if (normed) {
        constexpr float s = kStackShrink<T>;
        float4 by;
        asm volatile("ld.shared.v4.f32 {%0,%1,%2,%3}, [%4];"
                     : "=f"(by.x), "=f"(by.y), "=f"(by.z), "=f"(by.w)
                     : "r"(norm_at + static_cast<uint32_t>(column[i]) * 16));
        const float f[4] = {__uint_as_float(v[i].x), __uint_as_float(v[i].y),
                            __uint_as_float(v[i].z), __uint_as_float(v[i].w)};
        squares[i] = f[0] * f[0] + f[1] * f[1] + (f[2] * f[2] + f[3] * f[3]);
        const auto c = static_cast<uint32_t>(column[i]);
        asm volatile("st.shared.b32 [%0], %1; st.shared.b32 [%0 + 8], %2;" ::"r"(
                         out[i] + (c / 2) * 16 + (c & 1) * 4),
                     "r"(pack2<T>(f[0] * by.x * s, f[1] * by.y * s)),
                     "r"(pack2<T>(f[2] * by.z * s, f[3] * by.w * s))
                     : "memory");
      } else {
        asm volatile("st.shared.v4.b32 [%0], {%1,%2,%3,%4};" ::"r"(
                         out[i] + static_cast<uint32_t>(column[i]) * 16),
                     "r"(v[i].x), "r"(v[i].z), "r"(v[i].y), "r"(v[i].w)
                     : "memory");
      }
    }
    if (normed) {
      const float sum = sum_each(squares, b.lane);
      if (b.lane % 8 == 0) b.small.squares[which][b.warp][first + b.lane / 8] = sum;
    }
  }
  if (normed) release(b, b.empty(b.a.plan.norm_unit[which]));
  meet();
}

__device__ inline float inverse_rms(const Block& b, int which, int row) {
  const int parts = b.a.shape.hidden > 4 * kComputeThreads ? 2 : 1;
  float sum = 0;
#pragma unroll
  for (int w = 0; w < kStackWarps; ++w) {
    sum += b.small.squares[which][w][row * parts];
    if (parts == 2) sum += b.small.squares[which][w][row * 2 + 1];
  }
  return rsqrtf(sum * b.a.per_hidden + b.a.shape.eps);
}

// Tiles times the input, kTiles at a time; their sums go to `to`. A warp has the columns of every
// 8th part of 32, four of a unit, and a lane eight of them of each row: a product's sum over
// columns may take them in any order, the same for both sides.
//
// The matrix instruction's first operand is x twice: its rows g have the first four of a lane's
// eight columns, its rows g + 8 the last four. So sum[..][0] has its result in rows g, sum[..][1]
// in rows g + 8: rows g of x, rows 8 h + 2 t and the next of the tile. The rest of both is of no
// use.
template <typename T, int kTiles>
__device__ inline void multiply_tiles(
    const Block& b, const Job& j, bool tall, int unit, int layer, float* to) {
  static_assert(kStackUnitCols == 4 * kStackWarps * 32);
  const int n = b.a.plan.n, parts = j.cols / 32, high = 8 * j.pitch;
  const uint8_t* x = b.memory + b.a.plan.in_at + min(b.g, n - 1) * (j.cols * 2 + 64) + b.t * 16;
  const uint8_t* row = b.memory + b.g * j.pitch + b.t * 16;
  float sum[kTiles][2][2][4] = {};
#pragma unroll 1
  for (int chunk = 0; chunk < j.chunks; ++chunk) {
    const int last = parts - 1 - chunk * 32;  // within the unit
    uint4 in[4], w[kTiles][2][4];
    int at[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      at[i] = min(b.warp + kStackWarps * i, last) * 64;
      in[i] = *reinterpret_cast<const uint4*>(x + chunk * 2048 + at[i]);
      if (b.warp + kStackWarps * i > last) in[i] = {};
    }
#pragma unroll
    for (int k = 0; k < kTiles; ++k) barrier_wait(b.full(unit + k + chunk), layer);
#pragma unroll
    for (int k = 0; k < kTiles; ++k) {
      const uint8_t* p = row + b.small.unit_at[unit + k + chunk];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        w[k][0][i] = *reinterpret_cast<const uint4*>(p + at[i]);
        if (kTiles == 2 || tall) w[k][1][i] = *reinterpret_cast<const uint4*>(p + high + at[i]);
      }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t v[4] = {in[i].x, in[i].y, in[i].z, in[i].w};
#pragma unroll
      for (int k = 0; k < kTiles; ++k) {
        mma(sum[k][0][0], v, w[k][0][i].x, w[k][0][i].y, T{});
        mma(sum[k][0][1], v, w[k][0][i].z, w[k][0][i].w, T{});
        if (kTiles == 2 || tall) {
          mma(sum[k][1][0], v, w[k][1][i].x, w[k][1][i].y, T{});
          mma(sum[k][1][1], v, w[k][1][i].z, w[k][1][i].w, T{});
        }
      }
    }
#pragma unroll
    for (int k = 0; k < kTiles; ++k) release(b, b.empty(unit + k + chunk));
  }
  if (b.g >= n) return;
  to += (b.warp * n + b.g) * kStackSumPitch + 2 * b.t;
#pragma unroll
  for (int k = 0; k < kTiles; ++k) {
#pragma unroll
    for (int h = 0; h < 2; ++h)
      *reinterpret_cast<float2*>(to + k * kStackWarps * n * kStackSumPitch + 8 * h) = {
          sum[k][h][0][0] + sum[k][h][1][2], sum[k][h][0][1] + sum[k][h][1][3]};
  }
}

// The sum of all warps' parts of rows `at` and the next of a tile, for one row of x.
__device__ inline float2 sum_of(const float* tile, int n, int row, int at) {
  const float* s = tile + row * kStackSumPitch + at;
  float2 v{};
#pragma unroll
  for (int w = 0; w < kStackWarps; ++w) {
    const float2 part = *reinterpret_cast<const float2*>(s + w * n * kStackSumPitch);
    v.x += part.x, v.y += part.y;
  }
  return v;
}

// Puts out rows r and r + 1 of a tile of the block: q, k and v; the activation of gate times up; or
// the residual stream, to which sums are added.
template <typename T>
__device__ inline void put(const Block& b,
                           const Job& j,
                           int product,
                           int tile_rows,
                           int tile,
                           int row,
                           int r,
                           const float* sums,
                           int layer,
                           uint32_t* out,
                           int stride) {
  const int n = b.a.plan.n, at = tile * tile_rows + r;
  if (j.begin + at >= j.end) return;
  const bool both = j.begin + at + 1 < j.end;
  float2 s = sum_of(sums, n, row, r);
  uint32_t* to = out + row * stride + j.begin + at;
  if (product == kStackQkv || product == kStackGateUp) {
    const float by = inverse_rms(b, product / 2, row) * (1 / kStackShrink<T>);
    s.x *= by, s.y *= by;
    if (product == kStackGateUp) {
      const float2 up = sum_of(sums, n, row, r + 8);
      const Activation f = b.a.shape.activation;
      send(out + (row * stride + j.begin + at) / 2,
           pack2<T>(activated(s.x, f) * (up.x * by), activated(s.y, f) * (up.y * by)));
      return;
    }
    if (b.a.plan.bias_rows > 0) {
      const float* bias = b.bias + layer * b.a.plan.bias_rows + at;
      s.x += bias[0], s.y += bias[1];
    }
  } else {
    float* residual = &b.small.residual[row][at];
    s.x += residual[0], s.y += residual[1];
    residual[0] = s.x;
    if (both) residual[1] = s.y;
  }
  send(to, s.x);
  if (both) send(to + 1, s.y);
}

// All of the block's tiles of a product.
template <typename T>
__device__ inline void multiply_all(Block& b, int product, int layer, uint32_t* out, int stride) {
  const Job& j = b.small.job[product];
  const int n = b.a.plan.n, tile_rows = j.tile, pairs = tile_rows / 2;
  const bool tall = tile_rows == 16 || product == kStackGateUp;
#pragma unroll 1
  for (int first = 0; first < j.tiles; first += j.group) {
    float* buffer = b.sum_buffer();
    const int num = min(j.group, j.tiles - first);
    int i = 0;
    if (j.chunks == 1 && tall) {
#pragma unroll 1
      for (; i + 2 <= num; i += 2)
        multiply_tiles<T, 2>(b, j, true, j.first_unit + first + i, layer,
                             buffer + i * kStackWarps * n * kStackSumPitch);
    }
#pragma unroll 1
    for (; i < num; ++i)
      multiply_tiles<T, 1>(b, j, tall, j.first_unit + (first + i) * j.chunks, layer,
                           buffer + i * kStackWarps * n * kStackSumPitch);
    meet();
    // Half of the warps put out this group while the others go on.
    const int of_row = num * pairs;
    int e = b.thread ^ (b.sums & 1) * (kComputeThreads / 2);
#pragma unroll 1
    for (; e < n * of_row; e += kComputeThreads) {
      int row = 0, rest = e;
#pragma unroll 1
      while (rest >= of_row) rest -= of_row, ++row;
      const int tile = pairs == 4 ? rest >> 2 : rest >> 3, r = 2 * (rest & (pairs - 1));
      put<T>(b, j, product, tile_rows, first + tile, row, r,
             buffer + tile * kStackWarps * n * kStackSumPitch, layer, out, stride);
    }
    ++b.sums;
  }
}

}  // namespace sluice::cuda
