// f32_lanes16 kernels for AVX-512 over rows of f32 and u8: one vector is the sixteen lanes of an
// output's chain. A tile is RT rows of W (read streams) by MT rows of x. Weights are widened in
// registers.
#include <immintrin.h>

#include "backend/cpu/matmul/matmul_float_inl.h"
#include "backend/cpu/matmul/matmul_kernels.h"

namespace sluice::cpu {
namespace {

struct F32 : PlainRows<4> {
  static constexpr int kMaxTile = 6;  // rows of x
  static constexpr int kStreams = 8;  // rows of W for one row of x
  static __m512 load(const uint8_t* p, Scale) { return _mm512_loadu_ps(p); }
  static __m512 load(const uint8_t* p, Scale, __mmask16 k) { return _mm512_maskz_loadu_ps(k, p); }
};
// Scales and minimums take registers too.
struct U8 : U8Rows {
  static constexpr int kMaxTile = 4;
  static constexpr int kStreams = 4;
  struct Scale {
    __m512 scale, min;
  };
  static Scale scale(const uint8_t* row) {
    const Head h = head(row);
    return {_mm512_set1_ps(h.scale), _mm512_set1_ps(h.min)};
  }
  static __m512 widen(__m128i v, const Scale& s) {
    return _mm512_fmadd_ps(_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(v)), s.scale, s.min);
  }
  static __m512 load(const uint8_t* p, const Scale& s) {
    return widen(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)), s);
  }
  static __m512 load(const uint8_t* p, const Scale& s, __mmask16 k) {
    return widen(_mm_maskz_loadu_epi8(k, p), s);
  }
};

[[gnu::always_inline]] inline float fold(__m512 v) {
  const __m256 s8 = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
  const __m128 s4 = _mm_add_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
  const __m128 s2 = _mm_add_ps(s4, _mm_movehl_ps(s4, s4));
  return _mm_cvtss_f32(_mm_add_ss(s2, _mm_movehdup_ps(s2)));
}

// Rows [row, row + RT) that exist, for rows [m0, m0 + MT) of x. kPrefetch: the next RT rows follow
// and come from memory; rows are too short for the hardware to see streams.
template <typename W, int RT, int MT, bool kPrefetch>
void tile(const MatmulArgs& a, int64_t row, int64_t m0) {
  const uint8_t* w[RT];
  typename W::Scale scale[RT];
  find_rows<W, RT>(a, row, w, scale);
  const uint8_t* next = static_cast<const uint8_t*>(a.w) + (row + RT) * W::pitch(a.cols);
  const float* x = a.x + m0 * a.x_stride;
  __m512 acc[RT][MT];
  SLUICE_UNROLL
  for (int r = 0; r < RT; ++r) {
    SLUICE_UNROLL
    for (int m = 0; m < MT; ++m) acc[r][m] = _mm512_setzero_ps();
  }
  int64_t k = 0;
  for (; k + 16 <= a.cols; k += 16) {
    __m512 wv[RT];
    SLUICE_UNROLL
    for (int r = 0; r < RT; ++r) wv[r] = W::load(w[r] + k * W::kBytes, scale[r]);
    if constexpr (kPrefetch) {
      SLUICE_UNROLL
      for (int i = 0; i < RT * W::kBytes * 16; i += 64) {
        _mm_prefetch(next + k * RT * W::kBytes + i, _MM_HINT_T0);
      }
    }
    SLUICE_UNROLL
    for (int m = 0; m < MT; ++m) {
      const __m512 xv = _mm512_loadu_ps(x + m * a.x_stride + k);
      SLUICE_UNROLL
      for (int r = 0; r < RT; ++r) acc[r][m] = _mm512_fmadd_ps(wv[r], xv, acc[r][m]);
    }
  }
  if (k < a.cols) {
    const auto mask = static_cast<__mmask16>((1u << (a.cols - k)) - 1);
    SLUICE_UNROLL
    for (int m = 0; m < MT; ++m) {
      const __m512 xv = _mm512_maskz_loadu_ps(mask, x + m * a.x_stride + k);
      SLUICE_UNROLL
      for (int r = 0; r < RT; ++r) {
        const __m512 wv = W::load(w[r] + k * W::kBytes, scale[r], mask);
        acc[r][m] = _mm512_mask3_fmadd_ps(wv, xv, acc[r][m], mask);
      }
    }
  }
  for (int r = 0; r < RT && row + r < a.rows; ++r) {
    const float bias = a.bias ? a.bias[row + r] : 0;
    for (int m = 0; m < MT; ++m) {
      a.out[(m0 + m) * a.out_stride + row + r] = fold(acc[r][m]) + bias;
    }
  }
}

template <typename W, bool kPrefetch>
void tile_of(const MatmulArgs& a, int64_t row, int64_t m0, int64_t m) {
  using TileFn = void (*)(const MatmulArgs&, int64_t, int64_t);
  static constexpr TileFn kTiles[] = {tile<W, 4, 1, kPrefetch>, tile<W, 4, 2, kPrefetch>,
                                      tile<W, 4, 3, kPrefetch>, tile<W, 4, 4, kPrefetch>,
                                      tile<W, 4, 5, kPrefetch>, tile<W, 4, 6, kPrefetch>};
  kTiles[m - 1](a, row, m0);
}

template <typename W>
void run(const MatmulArgs& a) {
  const int64_t end = a.group_end * kGroup < a.rows ? a.group_end * kGroup : a.rows;
  if (a.m == 1) {
    for (int64_t r = a.group_begin * kGroup; r < end; r += W::kStreams)
      tile<W, W::kStreams, 1, true>(a, r, 0);
    return;
  }
  const int64_t tiles = (a.m + W::kMaxTile - 1) / W::kMaxTile;
  const int64_t rows = rows_at_once<W>(a.cols, 4);
  for (int64_t r0 = a.group_begin * kGroup; r0 < end; r0 += rows) {
    const int64_t r1 = r0 + rows < end ? r0 + rows : end;
    for (int64_t i = 0, m0 = 0; i < tiles; ++i) {
      const int64_t m = a.m / tiles + (i < a.m % tiles ? 1 : 0);
      for (int64_t r = r0; r < r1; r += 4) {
        if (i == 0 && r + 4 < end) {
          tile_of<W, true>(a, r, m0, m);
        } else {
          tile_of<W, false>(a, r, m0, m);
        }
      }
      m0 += m;
    }
  }
}

}  // namespace

void matmul_avx512_u8(const MatmulArgs& a) { run<U8>(a); }
void matmul_avx512_f32(const MatmulArgs& a) { run<F32>(a); }

}  // namespace sluice::cpu
