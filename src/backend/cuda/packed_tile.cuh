// A lane's share of a tile of packed weights (cuda_packed.h) in registers.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <type_traits>

#include "backend/cuda/mma_sync.cuh"
#include "backend/cuda/packed.cuh"

namespace sluice::cuda {

// Kernels read rows of x, of a half type, `bytes` at a time.
inline void check_rows(const Tensor& x, uintptr_t bytes) {
  if (reinterpret_cast<uintptr_t>(x.data) % bytes != 0 ||
      static_cast<uintptr_t>(x.stride) * 2 % bytes != 0)
    throw std::logic_error("CUDA: rows of a product's input are not aligned");
}

// The planes of one row of tiles.
struct PlaneRow {
  const uint8_t *codes = nullptr, *high = nullptr, *scales = nullptr, *supers = nullptr;
};

struct Planes {
  const uint8_t *codes, *high, *scales, *supers;
  int rows, cols, row_tiles, tiles;

  explicit Planes(const PackedPart& w) {
    const PackedShape s(w.format, w.rows, w.cols);
    codes = w.data;
    high = w.data + s.high_at();
    scales = w.data + s.scales_at();
    supers = w.data + s.supers_at();
    rows = static_cast<int>(w.rows), cols = static_cast<int>(w.cols);
    row_tiles = static_cast<int>(s.row_tiles), tiles = static_cast<int>(s.tiles);
  }
  template <Format F>
  __device__ PlaneRow row(int row_tile) const {
    constexpr PackedFormat f = packed_format(F);
    const int64_t at = int64_t{row_tile} * tiles;
    return {codes + at * f.codes, high + at * f.high, scales + at * f.scales,
            supers + int64_t{row_tile} * ((tiles + 3) / 4) * f.supers};
  }
};

template <int kWords>
__device__ inline void load_words(uint32_t* to, const uint8_t* from) {
  if constexpr (kWords == 1) {
    to[0] = __ldg(reinterpret_cast<const uint32_t*>(from));
  } else if constexpr (kWords == 2) {
    const uint2 v = __ldg(reinterpret_cast<const uint2*>(from));
    to[0] = v.x, to[1] = v.y;
  } else if constexpr (kWords == 4) {
    const uint4 v = __ldg(reinterpret_cast<const uint4*>(from));
    to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
  }
}

// The same from any memory.
template <int kWords>
__device__ inline void read_words(uint32_t* to, const uint8_t* from) {
  if constexpr (kWords == 1) {
    to[0] = *reinterpret_cast<const uint32_t*>(from);
  } else if constexpr (kWords == 2) {
    const uint2 v = *reinterpret_cast<const uint2*>(from);
    to[0] = v.x, to[1] = v.y;
  } else if constexpr (kWords == 4) {
    const uint4 v = *reinterpret_cast<const uint4*>(from);
    to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
  }
}

// Integers in pairs of T, exactly.
template <typename T>
struct Pairs;
template <>
struct Pairs<__half> {
  static constexpr uint32_t kBase = 0x64006400;  // 1,024 and more: the last bits count by one
  static constexpr uint32_t kOnes = 0x3c003c00;
  static __device__ uint32_t subtract(uint32_t a, uint32_t b) {
    __half2 r = __hsub2(reinterpret_cast<__half2&>(a), reinterpret_cast<__half2&>(b));
    return reinterpret_cast<uint32_t&>(r);
  }
  // Bytes 0 and 2 less 128.
  static __device__ uint32_t less_128(uint32_t p) {
    return subtract((p & 0x00ff00ffu) | kBase, kBase | 0x00800080u);
  }
  static __device__ float2 floats(uint32_t p) {
    return __half22float2(reinterpret_cast<__half2&>(p));
  }
};
template <>
struct Pairs<__nv_bfloat16> {
  static constexpr uint32_t kBase = 0x43004300;  // 128 to 255
  static constexpr uint32_t kOnes = 0x3f803f80;
  static __device__ uint32_t subtract(uint32_t a, uint32_t b) {
    __nv_bfloat162 r =
        __hsub2(reinterpret_cast<__nv_bfloat162&>(a), reinterpret_cast<__nv_bfloat162&>(b));
    return reinterpret_cast<uint32_t&>(r);
  }
  // Seven bits fit behind 128; the eighth chooses what is subtracted, 128 or 256.
  static __device__ uint32_t less_128(uint32_t p) {
    return subtract((p & 0x007f007fu) | kBase, (p & 0x00800080u) ^ 0x43804380u);
  }
  static __device__ float2 floats(uint32_t p) {
    return {__uint_as_float(p << 16), __uint_as_float(p & 0xffff0000u)};
  }
};

__device__ inline uint32_t shifted_right(uint32_t v, int by) { return by < 0 ? v << -by : v >> by; }

// Byte k of a word as a float, plus 2^23.
__device__ inline float byte_over(uint32_t word, int k) {
  return __uint_as_float(__byte_perm(word, 0x4b000000u, 0x7440 | k));
}
inline constexpr float kOver = 0x1p23f;

__device__ inline float half_of(uint32_t word, int k) {
  const auto bits = static_cast<unsigned short>(word >> 16 * k);
  return __half2float(__ushort_as_half(bits));
}

// Bytes from 0 to 127 less `by`, as signed bytes.
__device__ inline uint32_t less_each(uint32_t four, uint32_t by) {
  return ((four | 0x80808080u) - by * 0x01010101u) ^ 0x80808080u;
}

struct ScaleAndMin {
  float scale, min;
};

template <Format F>
struct LaneTile {
  static constexpr PackedFormat f = packed_format(F);
  static constexpr int kGroups = kPackedCols / f.group;
  static constexpr int kHigh = f.high / 128, kScales = f.scales / 32, kSupers = f.supers / 32;

  uint4 codes[f.codes / 512];
  uint32_t high[kHigh > 0 ? kHigh : 1];
  uint32_t scales[kScales];
  uint32_t supers[kSupers > 0 ? kSupers : 1];

  __device__ void clear() {
    for (uint4& c : codes) c = {};
    for (uint32_t& h : high) h = 0;
    for (uint32_t& s : scales) s = 0;
    for (uint32_t& s : supers) s = 0;
  }
  __device__ void load(const PlaneRow& from, int tile, int lane) {
#pragma unroll
    for (int i = 0; i < f.codes / 512; ++i)
      codes[i] = stream_load(from.codes + int64_t{tile} * f.codes + i * 512 + lane * 16);
    if constexpr (kHigh > 0)
      load_words<kHigh>(high, from.high + int64_t{tile} * f.high + lane * (f.high / 32));
    load_words<kScales>(scales, from.scales + int64_t{tile} * f.scales + lane / 4 * (f.scales / 8));
    if constexpr (kSupers > 0)
      load_words<kSupers>(supers,
                          from.supers + int64_t{tile / 4} * f.supers + lane / 4 * (f.supers / 8));
  }
  // From planes of the tile in shared memory; without supers.
  __device__ void read(const uint8_t* tile_codes,
                       const uint8_t* tile_high,
                       const uint8_t* tile_scales,
                       int lane) {
#pragma unroll
    for (int i = 0; i < f.codes / 512; ++i)
      codes[i] = *reinterpret_cast<const uint4*>(tile_codes + i * 512 + lane * 16);
    if constexpr (kHigh > 0) read_words<kHigh>(high, tile_high + lane * (f.high / 32));
    read_words<kScales>(scales, tile_scales + lane / 4 * (f.scales / 8));
  }
  __device__ uint32_t code_word(int j) const {
    const uint4& c = codes[j / 4];
    return j % 4 == 0 ? c.x : j % 4 == 1 ? c.y : j % 4 == 2 ? c.z : c.w;
  }

  // Codes less their zero of columns 16 j to 16 j + 15, as the matrix instruction takes them.
  template <typename T>
  __device__ void integers(int j, uint32_t (&a)[4]) const {
    using P = Pairs<T>;
    if constexpr (F == Format::q8_0) {
#pragma unroll
      for (int i = 0; i < 4; ++i)
        a[i] = P::less_128(__byte_perm(code_word(2 * j + i / 2), 0, i % 2 ? 0x4342 : 0x4140));
    } else if constexpr (F == Format::iq4_nl) {
      // Levels plus 128, four bytes to a word; a code's low three bits choose from eight of them,
      // its fourth bit between the eights.
      const uint32_t low = levels(code_word(j)), up = levels(code_word(j) >> 16);
#pragma unroll
      for (int i = 0; i < 4; ++i)
        a[i] = P::less_128(__byte_perm(low, up, i | i << 4 | (4 + i) << 8 | (4 + i) << 12));
    } else {
      const uint32_t word = code_word(j);
      constexpr uint32_t kSubtract = P::kBase | static_cast<uint32_t>(f.zero) * 0x10001u;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        uint32_t t = (word >> 4 * i & 0x000f000fu) | P::kBase;
        if constexpr (f.high == 256)
          t |= shifted_right(high[j / 2], j % 2 * 8 + 2 * i - 4) & 0x00300030u;
        if constexpr (f.high == 128) t |= shifted_right(high[0], 4 * j + i - 4) & 0x00100010u;
        a[i] = P::subtract(t, kSubtract);
      }
    }
  }

  // Codes less their zero of columns 16 j to 16 j + 15, a signed byte each: of row lane / 4 and of
  // the one eight further, the lane's columns 0, 2, 1 and 3.
  __device__ void bytes(int j, uint32_t& low, uint32_t& up) const {
    if constexpr (F == Format::q8_0) {
      const uint32_t first = code_word(2 * j), second = code_word(2 * j + 1);
      low = __byte_perm(first, second, 0x5140) ^ 0x80808080u;
      up = __byte_perm(first, second, 0x7362) ^ 0x80808080u;
    } else if constexpr (F == Format::iq4_nl) {
      const uint32_t first = levels(code_word(j)), second = levels(code_word(j) >> 16);
      low = __byte_perm(first, second, 0x6420) ^ 0x80808080u;
      up = __byte_perm(first, second, 0x7531) ^ 0x80808080u;
    } else {
      const uint32_t word = code_word(j);
      low = word & 0x0f0f0f0fu, up = word >> 4 & 0x0f0f0f0fu;
      if constexpr (f.high == 256) {
        const uint32_t h = high[j / 2] >> j % 2 * 8;
        low |= (h << 4 & 0x00300030u) | (h << 8 & 0x30003000u);
        up |= (h << 2 & 0x00300030u) | (h << 6 & 0x30003000u);
      }
      if constexpr (f.high == 128) {
        const uint32_t h = high[0] >> 4 * j;
        low |= (h << 4 & 0x00100010u) | (h << 10 & 0x10001000u);
        up |= (h << 3 & 0x00100010u) | (h << 9 & 0x10001000u);
      }
      if constexpr (f.zero > 0) low = less_each(low, f.zero), up = less_each(up, f.zero);
    }
  }

  // Of row lane / 4, or eight further (upper), and a group of columns.
  __device__ ScaleAndMin scale(int upper, int group) const {
    if constexpr (F == Format::q6_k) {
      const float d = half_of(supers[0], upper);
      return {d * (byte_over(scales[upper] ^ 0x80808080u, group) - (kOver + 128)), 0};
    } else if constexpr (f.supers > 0) {
      // fma(d, 2^23 + s, -2^23 d) is d s without rounding.
      const float d = half_of(supers[upper], 0), dmin = half_of(supers[upper], 1);
      return {fmaf(d, byte_over(scales[upper], 2 * group), -kOver * d),
              fmaf(dmin, byte_over(scales[upper], 2 * group + 1), -kOver * dmin)};
    } else if constexpr (F == Format::q4_1) {
      return {half_of(scales[upper], group), -half_of(scales[2 + upper], group)};
    } else {
      return {half_of(scales[upper], group), 0};
    }
  }

 private:
  static constexpr uint32_t level_word(int first) {
    uint32_t w = 0;
    for (int i = 0; i < 4; ++i)
      w |= static_cast<uint32_t>(std::to_array(kIq4Levels)[static_cast<size_t>(first + i)] + 128)
           << 8 * i;
    return w;
  }
  // Of the four codes in the low 16 bits.
  static __device__ uint32_t levels(uint32_t four) {
    constexpr uint32_t k0 = level_word(0), k4 = level_word(4), k8 = level_word(8),
                       k12 = level_word(12);
    const uint32_t which = four & 0x7777u;
    return __byte_perm(__byte_perm(k0, k4, which), __byte_perm(k8, k12, which),
                       (four >> 1 & 0x4444u) | 0x3210u);
  }
};

}  // namespace sluice::cuda
