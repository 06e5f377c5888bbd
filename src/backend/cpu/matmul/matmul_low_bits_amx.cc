// int_block32 kernels of q2_k and q3_k for AMX: bit for bit those of matmul_low_bits_avx512.cc,
// which few rows of x go to. The scales of sixteen columns are multiplied into the codes, so that a
// block is one tile product: q2_k's are at most 15 * 3. q3_k's would reach 32 * 4, one too many for
// a signed byte, so the weights are negated, and d_w with them.
#include <immintrin.h>

#include "backend/cpu/matmul/matmul_low_bits_avx512.h"
#include "backend/cpu/matmul/matmul_strips_amx.h"

namespace sluice::cpu {
namespace {

// 0, 1, 2 and 3 times each row's scale, in the row's four bytes; of q3_k negated. fours: four times
// the scale in each byte.
struct Multiples {
  __m512i of, fours;
};

template <Format F>
[[gnu::always_inline]] inline Multiples multiples(__m512i scale) {
  const __m512i steps = _mm512_set1_epi32(0x03020100);
  if constexpr (kThreeBits<F>) {
    const __m512i code = _mm512_add_epi16(scale, _mm512_set1_epi32(32));  // no byte carries
    return {_mm512_sub_epi8(_mm512_set1_epi32(0x60402000), _mm512_mullo_epi32(code, steps)),
            _mm512_xor_si512(_mm512_mullo_epi32(code, _mm512_set1_epi32(0x04040404)),
                             _mm512_set1_epi8(static_cast<char>(0x80)))};
  } else {
    return {_mm512_mullo_epi32(scale, steps), _mm512_setzero_si512()};
  }
}

// Sixteen columns of a group.
template <Format F, int kHalf>
[[gnu::always_inline]] inline void lay_out_half(const LowBitBlock& block,
                                                const Multiples& m,
                                                WBlock<F>& w) {
  const __m512i row = _mm512_set4_epi32(0x0c0c0c0c, 0x08080808, 0x04040404, 0);  // entries of
  const __m512i v = load64(block.codes + kHalf * 4 * R);
  __m512i code[4];
  low_bit_units<Format::q2_k, kHalf>(v, v, code);
  SLUICE_UNROLL
  for (int u = 0; u < 4; ++u) {
    __m512i q = _mm512_shuffle_epi8(m.of, _mm512_or_si512(code[u], row));
    if constexpr (kThreeBits<F>) {
      const __m512i bit = _mm512_set1_epi8(static_cast<char>(1 << low_bit_top<4>(kHalf * 4 + u)));
      q = _mm512_mask_add_epi8(q, _mm512_testn_epi8_mask(load64(block.top), bit), q, m.fours);
    }
    put64(w.q[kHalf * 4 + u], q);
  }
}

template <Format F>
struct LowBits {
  static constexpr Format kFormat = F;
  static constexpr int64_t kCodeBytes = 8 * R;
  static LowBitPlan plan(int64_t cols) { return low_bit_plan<F, R>(cols); }

  static void lay_out(const uint8_t* panel, const LowBitPlan& p, int64_t b, WBlock<F>& w) {
    const LowBitBlock block = low_bit_block(panel, p, b);
    LowBitBytes bytes;
    if constexpr (kThreeBits<F>) low_bit_unpack(panel, p, b / 8, bytes);
    const LowBitScales scales = low_bit_scales<F>(panel, p, b, bytes);
    lay_out_half<F, 0>(block, multiples<F>(scales.first), w);
    lay_out_half<F, 1>(block, multiples<F>(scales.second), w);
    const uint8_t* super = panel + p.extra + b / 8 * (kThreeBits<F> ? 2 : 4) * R;
    const __m512 dw = load_f16(super);
    if constexpr (kThreeBits<F>) {
      _mm512_store_ps(w.side[0], _mm512_xor_ps(dw, _mm512_set1_ps(-0.0f)));
    } else {
      const __m512i low = _mm512_set1_epi32(0xffff);
      _mm512_store_ps(w.side[0], dw);
      _mm512_store_ps(w.side[1], load_f16(super + 2 * R));
      _mm512_store_ps(w.side[2], _mm512_cvtepi32_ps(_mm512_and_si512(scales.mins, low)));
      _mm512_store_ps(w.side[3], _mm512_cvtepi32_ps(_mm512_srli_epi32(scales.mins, 16)));
    }
  }
};

}  // namespace

void matmul_amx_q2_k(const MatmulArgs& a) {
  run_strips<LowBits<Format::q2_k>>(a, matmul_avx512_q2_k);
}
void matmul_amx_q3_k(const MatmulArgs& a) {
  run_strips<LowBits<Format::q3_k>>(a, matmul_avx512_q3_k);
}

}  // namespace sluice::cpu
