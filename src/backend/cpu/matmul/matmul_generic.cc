// Portable kernels, and the definition of the arithmetic: every other row gives these bits.
// They read the source's own blocks, a block at a time, for up to kTile rows of x at once; w8a8
// reads panels of one row.
#include <algorithm>
#include <cmath>

#include "backend/cpu/matmul/matmul_kernels.h"
#include "backend/cpu/matmul/pack_rows.h"
#include "tensor/formats/all.h"
#include "tensor/formats/int4.h"
#include "tensor/formats/iq4_nl.h"
#include "tensor/formats/mxfp4.h"
#include "tensor/formats/q2_k.h"
#include "tensor/formats/q3_k.h"
#include "tensor/formats/q4_0.h"
#include "tensor/formats/q4_1.h"
#include "tensor/formats/q4_k.h"
#include "tensor/formats/q5_0.h"
#include "tensor/formats/q5_1.h"
#include "tensor/formats/q5_k.h"
#include "tensor/formats/q6_k.h"
#include "tensor/formats/q8_0.h"

namespace sluice::cpu {
namespace {

constexpr int kTile = 8;
constexpr int kGroup = 16;  // group_rows of the scalar rows

// A block of 32 columns as the integer kernels see it:
// value = d * (scale[k / 16] * q[k]) + m * min[k / 16].
struct IntBlock {
  int8_t q[32];
  int32_t scale[2];
  float d, m;
  int32_t min[2];
};

void load(const BlockQ8_0& b, int, IntBlock& out) {
  std::copy(b.qs, b.qs + 32, out.q);
  out.d = f16_to_f32(b.d);
}
void load(const BlockQ4_0& b, int, IntBlock& out) {
  for (int i = 0; i < 16; ++i) {
    out.q[i] = static_cast<int8_t>((b.qs[i] & 15) - 8);
    out.q[i + 16] = static_cast<int8_t>((b.qs[i] >> 4) - 8);
  }
  out.d = f16_to_f32(b.d);
}
template <typename Block>
void load_nibbles(const Block& b, IntBlock& out) {
  for (int i = 0; i < 16; ++i) {
    out.q[i] = static_cast<int8_t>(b.qs[i] & 15);
    out.q[i + 16] = static_cast<int8_t>(b.qs[i] >> 4);
  }
}
void load(const BlockQ4_1& b, int, IntBlock& out) {
  load_nibbles(b, out);
  out.d = f16_to_f32(b.d);
  out.m = f16_to_f32(b.m);
}
void load(const BlockInt4& b, int, IntBlock& out) {
  load_nibbles(b, out);
  out.d = f16_to_f32(b.d);
  out.m = out.d * f16_to_f32(b.m);
}
void load(const BlockQ5_0& b, int, IntBlock& out) {
  uint8_t q[32];
  unpack_5_bits(b.qs, b.qh, q);
  for (int i = 0; i < 32; ++i) out.q[i] = static_cast<int8_t>(q[i] - 16);
  out.d = f16_to_f32(b.d);
}
void load(const BlockQ5_1& b, int, IntBlock& out) {
  uint8_t q[32];
  unpack_5_bits(b.qs, b.qh, q);
  std::copy(q, q + 32, out.q);
  out.d = f16_to_f32(b.d);
  out.m = f16_to_f32(b.m);
}
void load(const BlockIQ4NL& b, int, IntBlock& out) {
  for (int i = 0; i < 16; ++i) {
    out.q[i] = kIq4Levels[b.qs[i] & 15];
    out.q[i + 16] = kIq4Levels[b.qs[i] >> 4];
  }
  out.d = f16_to_f32(b.d);
}
void load(const BlockMXFP4& b, int, IntBlock& out) {
  for (int i = 0; i < 16; ++i) {
    out.q[i] = kMxfp4Levels[b.qs[i] & 15];
    out.q[i + 16] = kMxfp4Levels[b.qs[i] >> 4];
  }
  out.d = bf16_to_f32(mxfp4_scale_bits(b.e));
}
// `part` is which 32 of the 256.
void load(const BlockQ2K& b, int part, IntBlock& out) {
  uint8_t q[32];
  unpack_part(b, part, q);
  std::copy(q, q + 32, out.q);
  for (int i = 0; i < 2; ++i) {
    out.scale[i] = b.scales[2 * part + i] & 15;
    out.min[i] = b.scales[2 * part + i] >> 4;
  }
  out.d = f16_to_f32(b.d);
  out.m = -f16_to_f32(b.dmin);
}
void load(const BlockQ3K& b, int part, IntBlock& out) {
  unpack_part(b, part, out.q);
  for (int i = 0; i < 2; ++i) out.scale[i] = group_scale(b, 2 * part + i);
  out.d = f16_to_f32(b.d);
}

int32_t dot16(const int8_t* w, const int8_t* x) {
  int32_t sum = 0;
  for (int i = 0; i < 16; ++i) sum += w[i] * x[i];
  return sum;
}

int32_t sum16(const int8_t* x) {
  int32_t sum = 0;
  for (int i = 0; i < 16; ++i) sum += x[i];
  return sum;
}

template <typename Block>
constexpr bool kAddsMin = requires(const Block& b) {
  b.m;
}
|| requires(const Block& b) { b.dmin; };

template <typename Block>
void int_rows(const MatmulArgs& a) {
  constexpr int kParts = Block::kElems / 32;
  const int64_t blocks = a.cols / Block::kElems;
  const int64_t num32 = a.cols / 32;
  const int64_t end = std::min(a.rows, a.group_end * kGroup);
  for (int64_t r = a.group_begin * kGroup; r < end; ++r) {
    const auto* row = static_cast<const std::byte*>(a.w) + r * blocks * int64_t{sizeof(Block)};
    const float bias = a.bias ? a.bias[r] : 0;
    for (int64_t m0 = 0; m0 < a.m; m0 += kTile) {
      const int tile = static_cast<int>(std::min<int64_t>(kTile, a.m - m0));
      float acc[kTile] = {};
      for (int64_t b = 0; b < num32; ++b) {
        Block block;
        std::memcpy(&block, row + b / kParts * int64_t{sizeof(Block)}, sizeof(Block));
        IntBlock w{.q = {}, .scale = {1, 1}, .d = 0, .m = 0, .min = {1, 1}};
        load(block, static_cast<int>(b % kParts), w);
        for (int t = 0; t < tile; ++t) {
          const int8_t* x = a.q + (m0 + t) * a.cols + b * 32;
          const float dx = a.scale[(m0 + t) * num32 + b];
          const int32_t dot = w.scale[0] * dot16(w.q, x) + w.scale[1] * dot16(w.q + 16, x + 16);
          if constexpr (std::is_same_v<Block, BlockQ2K>) {
            const int32_t sum = w.min[0] * sum16(x) + w.min[1] * sum16(x + 16);
            const float scaled = w.d * static_cast<float>(dot);
            acc[t] = std::fma(dx, std::fma(w.m, static_cast<float>(sum), scaled), acc[t]);
            continue;
          }
          acc[t] = std::fma(w.d * dx, static_cast<float>(dot), acc[t]);
          if constexpr (kAddsMin<Block>) {
            const auto sum = static_cast<float>(a.sum[(m0 + t) * num32 + b]);
            acc[t] = std::fma(w.m, dx * sum, acc[t]);
          }
        }
      }
      for (int t = 0; t < tile; ++t) a.out[(m0 + t) * a.out_stride + r] = acc[t] + bias;
    }
  }
}

// A super-block of 256 columns: value = d * (scale[k / 16] * q[k]) - dmin * min[k / 16].
struct SuperBlock {
  int8_t q[256];
  int32_t scale[16], min[16];
  float d, dmin;
};

template <typename Block>
void load_super(const Block& b, SuperBlock& out) {
  out.d = f16_to_f32(b.d);
  if constexpr (std::is_same_v<Block, BlockQ6K>) {
    unpack(b, out.q);
    std::copy(b.scales, b.scales + 16, out.scale);
  } else {
    out.dmin = f16_to_f32(b.dmin);
    for (int part = 0; part < 8; ++part) {
      uint8_t q[32];
      unpack_group(b, part, q);
      std::copy(q, q + 32, out.q + 32 * part);
      const ScaleMin s = get_scale_min(b.scales, part);
      for (int i = 2 * part; i < 2 * part + 2; ++i) {
        out.scale[i] = s.scale;
        out.min[i] = s.min;
      }
    }
  }
}

template <typename Block>
void super_rows(const MatmulArgs& a) {
  const int64_t supers = a.cols / 256;
  const int64_t end = std::min(a.rows, a.group_end * kGroup);
  for (int64_t r = a.group_begin * kGroup; r < end; ++r) {
    const auto* row = static_cast<const std::byte*>(a.w) + r * supers * int64_t{sizeof(Block)};
    const float bias = a.bias ? a.bias[r] : 0;
    for (int64_t m0 = 0; m0 < a.m; m0 += kTile) {
      const int tile = static_cast<int>(std::min<int64_t>(kTile, a.m - m0));
      float acc[kTile] = {};
      for (int64_t s = 0; s < supers; ++s) {
        Block block;
        std::memcpy(&block, row + s * int64_t{sizeof(Block)}, sizeof(Block));
        SuperBlock w{};
        load_super(block, w);
        for (int t = 0; t < tile; ++t) {
          const int8_t* x = a.q + (m0 + t) * a.cols + s * 256;
          const int16_t* sum = a.sum16 + ((m0 + t) * supers + s) * 16;
          int32_t dot = 0, mins = 0;
          for (int i = 0; i < 16; ++i) {
            dot += w.scale[i] * dot16(w.q + 16 * i, x + 16 * i);
            mins += w.min[i] * sum[i];
          }
          float v = w.d * static_cast<float>(dot);
          if constexpr (kAddsMin<Block>) v = std::fma(-w.dmin, static_cast<float>(mins), v);
          acc[t] = std::fma(a.scale[(m0 + t) * supers + s], v, acc[t]);
        }
      }
      for (int t = 0; t < tile; ++t) a.out[(m0 + t) * a.out_stride + r] = acc[t] + bias;
    }
  }
}

// Panels of one row.
void int_whole_rows(const MatmulArgs& a) {
  const RowPanelPlan plan = row_panel_plan<1>(a.cols);
  for (int64_t r = a.group_begin; r < a.group_end; ++r) {
    const uint8_t* w = static_cast<const uint8_t*>(a.w) + static_cast<size_t>(r) * plan.bytes;
    float dw;
    std::memcpy(&dw, w + plan.scale, 4);
    const float bias = a.bias ? a.bias[r] : 0;
    for (int64_t m = 0; m < a.m; ++m) {
      const int8_t* x = a.q + m * a.cols;
      int32_t dot = 0;
      for (int64_t k = 0; k < a.cols; ++k) dot += static_cast<int8_t>(w[k]) * x[k];
      a.out[m * a.out_stride + r] = static_cast<float>(dot) * (a.scale[m] * dw) + bias;
    }
  }
}

float fold(float* lane) {
  for (int half = 8; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) lane[i] += lane[i + half];
  }
  return lane[0];
}

// decode(r, k, num, out): columns [k, k + num) of row r.
template <typename Decode>
void float_rows(const MatmulArgs& a, Decode decode) {
  constexpr int64_t kPiece = 256;
  const int64_t end = std::min(a.rows, a.group_end * kGroup);
  for (int64_t r = a.group_begin * kGroup; r < end; ++r) {
    const float bias = a.bias ? a.bias[r] : 0;
    for (int64_t m0 = 0; m0 < a.m; m0 += kTile) {
      const int tile = static_cast<int>(std::min<int64_t>(kTile, a.m - m0));
      float lanes[kTile][16] = {};
      for (int64_t k0 = 0; k0 < a.cols; k0 += kPiece) {
        float w[kPiece];
        const int64_t num = std::min(kPiece, a.cols - k0);
        decode(r, k0, num, w);
        for (int t = 0; t < tile; ++t) {
          const float* x = a.x + (m0 + t) * a.x_stride + k0;
          for (int64_t k = 0; k < num; ++k) {
            lanes[t][k % 16] = std::fma(w[k], x[k], lanes[t][k % 16]);
          }
        }
      }
      for (int t = 0; t < tile; ++t) a.out[(m0 + t) * a.out_stride + r] = fold(lanes[t]) + bias;
    }
  }
}

void u8_rows(const MatmulArgs& a) {
  float_rows(a, [&](int64_t r, int64_t k, int64_t num, float* out) {
    U8Packing::decode(static_cast<const uint8_t*>(a.w) + r * u8_pitch(a.cols), k, num, out);
  });
}

}  // namespace

void matmul_decoding(const MatmulArgs& a, Format format) {
  const FormatInfo& info = format_info(format);
  float_rows(a, [&](int64_t r, int64_t k, int64_t num, float* out) {
    const auto* row = static_cast<const std::byte*>(a.w);
    info.decode(row + (r * a.cols + k) * info.block_bytes / info.block_elems, out, num);
  });
}

void matmul_generic_w8a8(const MatmulArgs& a) { int_whole_rows(a); }
void matmul_generic_q8_0(const MatmulArgs& a) { int_rows<BlockQ8_0>(a); }
void matmul_generic_q4_0(const MatmulArgs& a) { int_rows<BlockQ4_0>(a); }
void matmul_generic_q4_1(const MatmulArgs& a) { int_rows<BlockQ4_1>(a); }
void matmul_generic_q5_0(const MatmulArgs& a) { int_rows<BlockQ5_0>(a); }
void matmul_generic_q5_1(const MatmulArgs& a) { int_rows<BlockQ5_1>(a); }
void matmul_generic_q2_k(const MatmulArgs& a) { int_rows<BlockQ2K>(a); }
void matmul_generic_q3_k(const MatmulArgs& a) { int_rows<BlockQ3K>(a); }
void matmul_generic_q4_k(const MatmulArgs& a) { super_rows<BlockQ4K>(a); }
void matmul_generic_q5_k(const MatmulArgs& a) { super_rows<BlockQ5K>(a); }
void matmul_generic_q6_k(const MatmulArgs& a) { super_rows<BlockQ6K>(a); }
void matmul_generic_iq4_nl(const MatmulArgs& a) { int_rows<BlockIQ4NL>(a); }
void matmul_generic_mxfp4(const MatmulArgs& a) { int_rows<BlockMXFP4>(a); }
void matmul_generic_int4(const MatmulArgs& a) { int_rows<BlockInt4>(a); }
void matmul_generic_u8(const MatmulArgs& a) { u8_rows(a); }
void matmul_generic_f32(const MatmulArgs& a) { matmul_decoding(a, Format::f32); }
void matmul_generic_f16(const MatmulArgs& a) { matmul_decoding(a, Format::f16); }
void matmul_generic_bf16(const MatmulArgs& a) { matmul_decoding(a, Format::bf16); }

}  // namespace sluice::cpu
