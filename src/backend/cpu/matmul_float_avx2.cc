// f32_lanes16 kernels for AVX2: two vectors are the sixteen lanes of an output's chain. A tile is
// RT rows of W (read streams) by MT rows of x. Weights are widened in registers.
#include <immintrin.h>

#include "backend/cpu/matmul_kernels.h"

namespace sluice::cpu {
namespace {

constexpr int kGroup = 16;

// Rows that follow each other with nothing between.
template <int kSize>
struct Plain {
  static constexpr int kBytes = kSize;
  static constexpr int kHead = 0;  // bytes before a row's elements
  struct Scale {};
  static Scale scale(const uint8_t*) { return {}; }
  static int64_t pitch(int64_t cols) { return cols * kSize; }
};

struct F32 : Plain<4> {
  static __m256 load(const uint8_t* p, Scale) {
    return _mm256_loadu_ps(reinterpret_cast<const float*>(p));
  }
};
struct F16 : Plain<2> {
  static __m256 load(const uint8_t* p, Scale) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
};
struct BF16 : Plain<2> {
  static __m256 load(const uint8_t* p, Scale) {
    const __m256i wide =
        _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
  }
};
struct U8 {
  static constexpr int kBytes = 1;
  static constexpr int kHead = kU8Head;
  struct Scale {
    __m256 scale, min;
  };
  static Scale scale(const uint8_t* row) {
    float head[2];
    std::memcpy(head, row, sizeof(head));
    return {_mm256_set1_ps(head[0]), _mm256_set1_ps(head[1])};
  }
  static int64_t pitch(int64_t cols) { return u8_pitch(cols); }
  static __m256 load(const uint8_t* p, const Scale& s) {
    const __m256i wide = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
    return _mm256_fmadd_ps(_mm256_cvtepi32_ps(wide), s.scale, s.min);
  }
};

[[gnu::always_inline]] inline float fold(__m256 low, __m256 high) {
  const __m256 s8 = _mm256_add_ps(low, high);
  const __m128 s4 = _mm_add_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
  const __m128 s2 = _mm_add_ps(s4, _mm_movehl_ps(s4, s4));
  return _mm_cvtss_f32(_mm_add_ss(s2, _mm_movehdup_ps(s2)));
}

// acc += sixteen columns; w and x point at them, `x_stride` apart for the rows of x.
template <typename W, int RT, int MT>
[[gnu::always_inline]] inline void step(const uint8_t* const (&w)[RT],
                                        const typename W::Scale (&scale)[RT],
                                        int64_t offset,
                                        const float* x,
                                        int64_t x_stride,
                                        __m256 (&acc)[RT][MT][2]) {
  SLUICE_UNROLL
  for (int h = 0; h < 2; ++h) {
    SLUICE_UNROLL
    for (int r = 0; r < RT; ++r) {
      const __m256 wv = W::load(w[r] + offset + h * 8 * W::kBytes, scale[r]);
      SLUICE_UNROLL
      for (int m = 0; m < MT; ++m) {
        acc[r][m][h] = _mm256_fmadd_ps(wv, _mm256_loadu_ps(x + m * x_stride + h * 8), acc[r][m][h]);
      }
    }
  }
}

template <typename W, int RT, int MT>
void tile(const MatmulArgs& a, int64_t row, int64_t m0) {
  const uint8_t* w[RT];
  typename W::Scale scale[RT];
  SLUICE_UNROLL
  for (int r = 0; r < RT; ++r) {
    const int64_t at = row + r < a.rows ? row + r : a.rows - 1;
    w[r] = static_cast<const uint8_t*>(a.w) + at * W::pitch(a.cols);
    scale[r] = W::scale(w[r]);
    w[r] += W::kHead;
  }
  const float* x = a.x + m0 * a.x_stride;
  __m256 acc[RT][MT][2];
  SLUICE_UNROLL
  for (int r = 0; r < RT; ++r) {
    SLUICE_UNROLL
    for (int m = 0; m < MT; ++m) acc[r][m][0] = acc[r][m][1] = _mm256_setzero_ps();
  }
  int64_t k = 0;
  for (; k + 16 <= a.cols; k += 16) {
    step<W, RT, MT>(w, scale, k * W::kBytes, x + k, a.x_stride, acc);
  }
  if (k < a.cols) {  // the rest, padded with zeros
    const auto left = static_cast<size_t>(a.cols - k);
    uint8_t tail[RT][16 * W::kBytes] = {};
    float x_tail[MT][16] = {};
    const uint8_t* tails[RT];
    for (int r = 0; r < RT; ++r) {
      std::memcpy(tail[r], w[r] + k * W::kBytes, left * W::kBytes);
      tails[r] = tail[r];
    }
    for (int m = 0; m < MT; ++m) std::memcpy(x_tail[m], x + m * a.x_stride + k, left * 4);
    step<W, RT, MT>(tails, scale, 0, x_tail[0], 16, acc);
  }
  for (int r = 0; r < RT && row + r < a.rows; ++r) {
    const float bias = a.bias ? a.bias[row + r] : 0;
    for (int m = 0; m < MT; ++m) {
      a.out[(m0 + m) * a.out_stride + row + r] = fold(acc[r][m][0], acc[r][m][1]) + bias;
    }
  }
}

template <typename W>
void run(const MatmulArgs& a) {
  const int64_t end = a.group_end * kGroup < a.rows ? a.group_end * kGroup : a.rows;
  if (a.m == 1) {
    for (int64_t r = a.group_begin * kGroup; r < end; r += 4) tile<W, 4, 1>(a, r, 0);
    return;
  }
  // A tile of x stays in the first cache while a few rows of W, read once from memory, pass by from
  // the second.
  const int64_t fit = (int64_t{128} << 10) / (a.cols * W::kBytes) / 2 * 2;
  const int64_t rows = fit < 2 ? 2 : fit;
  for (int64_t r0 = a.group_begin * kGroup; r0 < end; r0 += rows) {
    const int64_t r1 = r0 + rows < end ? r0 + rows : end;
    for (int64_t m0 = 0; m0 < a.m;) {
      const bool three = m0 == 0 && a.m % 2 != 0;
      for (int64_t r = r0; r < r1; r += 2) {
        if (three) {
          tile<W, 2, 3>(a, r, m0);
        } else {
          tile<W, 2, 2>(a, r, m0);
        }
      }
      m0 += three ? 3 : 2;
    }
  }
}

}  // namespace

void matmul_avx2_u8(const MatmulArgs& a) { run<U8>(a); }
void matmul_avx2_f32(const MatmulArgs& a) { run<F32>(a); }
void matmul_avx2_f16(const MatmulArgs& a) { run<F16>(a); }
void matmul_avx2_bf16(const MatmulArgs& a) { run<BF16>(a); }

}  // namespace sluice::cpu
