// f32_lanes16 kernels for AVX2: two vectors are the sixteen lanes of an output's chain. A tile is
// RT rows of W (read streams) by MT rows of x. Weights are widened in registers.
#include <immintrin.h>

#include "backend/cpu/matmul/matmul_float_inl.h"
#include "backend/cpu/matmul/matmul_kernels.h"

namespace sluice::cpu {
namespace {

struct Avx2Lanes {
  using Chain = __m256[2];

  static void clear(Chain& v) { v[0] = v[1] = _mm256_setzero_ps(); }

  [[gnu::always_inline]] static float fold(const Chain& v) {
    const __m256 s8 = _mm256_add_ps(v[0], v[1]);
    const __m128 s4 = _mm_add_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
    const __m128 s2 = _mm_add_ps(s4, _mm_movehl_ps(s4, s4));
    return _mm_cvtss_f32(_mm_add_ss(s2, _mm_movehdup_ps(s2)));
  }

  // acc += sixteen columns; w and x point at them, `x_stride` apart for the rows of x.
  template <typename W, int RT, int MT>
  [[gnu::always_inline]] static void step(const uint8_t* const (&w)[RT],
                                          const typename W::Scale (&scale)[RT],
                                          int64_t offset,
                                          const float* x,
                                          int64_t x_stride,
                                          Chain (&acc)[RT][MT]) {
    SLUICE_UNROLL
    for (int h = 0; h < 2; ++h) {
      SLUICE_UNROLL
      for (int r = 0; r < RT; ++r) {
        const __m256 wv = W::load(w[r] + offset + h * 8 * W::kBytes, scale[r]);
        SLUICE_UNROLL
        for (int m = 0; m < MT; ++m) {
          acc[r][m][h] =
              _mm256_fmadd_ps(wv, _mm256_loadu_ps(x + m * x_stride + h * 8), acc[r][m][h]);
        }
      }
    }
  }
};

struct F32 : PlainRows<4> {
  using Lanes = Avx2Lanes;
  static __m256 load(const uint8_t* p, Scale) {
    return _mm256_loadu_ps(reinterpret_cast<const float*>(p));
  }
};
struct F16 : PlainRows<2> {
  using Lanes = Avx2Lanes;
  static __m256 load(const uint8_t* p, Scale) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
};
struct BF16 : PlainRows<2> {
  using Lanes = Avx2Lanes;
  static __m256 load(const uint8_t* p, Scale) {
    const __m256i wide =
        _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
  }
};
struct U8 : U8Rows {
  using Lanes = Avx2Lanes;
  struct Scale {
    __m256 scale, min;
  };
  static Scale scale(const uint8_t* row) {
    const Head h = head(row);
    return {_mm256_set1_ps(h.scale), _mm256_set1_ps(h.min)};
  }
  static __m256 load(const uint8_t* p, const Scale& s) {
    const __m256i wide = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
    return _mm256_fmadd_ps(_mm256_cvtepi32_ps(wide), s.scale, s.min);
  }
};

}  // namespace

void matmul_avx2_u8(const MatmulArgs& a) { run_chains<U8>(a); }
void matmul_avx2_f32(const MatmulArgs& a) { run_chains<F32>(a); }
void matmul_avx2_f16(const MatmulArgs& a) { run_chains<F16>(a); }
void matmul_avx2_bf16(const MatmulArgs& a) { run_chains<BF16>(a); }

}  // namespace sluice::cpu
