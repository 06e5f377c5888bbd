// int_super kernels of q4_k, q5_k and q6_k for AMX: bit for bit those of matmul_super_avx512.cc,
// which few rows of x go to. Many go to matmul_super_many_amx.cc.
#include <immintrin.h>

#include "backend/cpu/matmul/fetch_output.h"
#include "backend/cpu/matmul/matmul_kernels.h"
#include "backend/cpu/matmul/matmul_panels_avx512.h"
#include "backend/cpu/matmul/matmul_supers_amx.h"
#include "backend/cpu/matmul/tiles_amx.h"

namespace sluice::cpu {
namespace {

constexpr int64_t kMaxTiles = 8;   // of x that a call without MatmulArgs::tiles lays out at once
constexpr int64_t kMaxSupers = 4;  // of K at once: their planes stay in the first cache

struct Dots {
  alignas(64) int32_t low[kTileRows][R];
  alignas(64) int32_t high[kTileRows][R];
  alignas(64) float mins[kTileRows][R];
};

struct Scratch {
  XSuper x[kMaxTiles * kMaxSupers];  // [tile][super-block]
  WSuper w[kMaxSupers];
  Dots dots[2][2];  // [turn][tile]
};

// Some tiles of x against one group over a range of K.
struct Strip {
  const XSuper* x;
  int64_t x_stride;  // from one tile of x to the next
  const WSuper* w;
  Dots (*dots)[2];
  int64_t supers;
  int64_t rows;  // of x
  float* out;
  int64_t out_stride;
  __mmask16 mask;       // of the group's rows
  const float* bias;    // null: none
  bool first, last;     // range of K
  const uint8_t* next;  // memory that the next group reads: num_next lines in each turn
  int64_t num_next;
};

void lay_out_x(const int8_t* q,
               const float* scale,
               const int16_t* sum16,
               int64_t cols,
               int64_t rows,
               int64_t supers,
               XSuper* x) {
  for (int64_t s = 0; s < supers; ++s) {
    for (int64_t r = 0; r < rows; ++r) {
      const int8_t* from = q + r * cols + s * 256;
      SLUICE_UNROLL
      for (int i = 0; i < kTilesOf; ++i) {
        _mm512_store_si512(x[s].q[i][r], _mm512_loadu_si512(from + i * 64));
      }
      const __m512i sum = _mm512_cvtepi16_epi32(
          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(sum16 + r * (cols / 16) + s * 16)));
      const __m512i most =
          _mm512_andnot_si512(_mm512_set1_epi32(63), _mm512_add_epi32(sum, _mm512_set1_epi32(32)));
      const __m512i rest = _mm512_sub_epi32(sum, most);
      const __m512i first = _mm512_castps_si512(_mm512_cvtepi32_ps(most));
      const __m512i second = _mm512_castps_si512(_mm512_cvtepi32_ps(rest));
      _mm512_store_si512(x[s].sums[r], _mm512_or_si512(_mm512_srli_epi32(first, 16), second));
      x[s].scale[r] = scale[r * (cols / 256) + s];
    }
  }
}

// acc += rows [begin, end) of a tile's super-block.
template <Format F>
[[gnu::always_inline]] inline void add_rows(const XSuper& x,
                                            const WSuper& w,
                                            const Dots& dots,
                                            int64_t begin,
                                            int64_t end,
                                            float (*acc)[R]) {
  const __m512 d = _mm512_load_ps(w.d), dmin = _mm512_load_ps(w.dmin);
  for (int64_t m = begin; m < end; ++m) {
    const __m512i high = _mm512_slli_epi32(_mm512_load_si512(dots.high[m]), kShift<F>);
    const __m512i dot = _mm512_add_epi32(_mm512_load_si512(dots.low[m]), high);
    __m512 v = _mm512_mul_ps(d, _mm512_cvtepi32_ps(dot));
    if constexpr (kSuperScales<F>) v = _mm512_fnmadd_ps(dmin, _mm512_load_ps(dots.mins[m]), v);
    _mm512_store_ps(acc[m], _mm512_fmadd_ps(_mm512_set1_ps(x.scale[m]), v, _mm512_load_ps(acc[m])));
  }
}

// Registers must be literals.
#define SLUICE_HIGH(C, A)            \
  if constexpr (F == Format::q6_k) { \
    _tile_dpbssd(C, A, 7);           \
  } else {                           \
    _tile_dpbsud(C, A, 7);           \
  }

// 64 columns of T tiles of x.
template <Format F, int T>
[[gnu::always_inline]] inline void multiply(const XSuper* x,
                                            int64_t x_stride,
                                            const WSuper& w,
                                            int i) {
  _tile_loadd(6, w.low[i], 64);
  _tile_loadd(4, x->q[i], 64);
  _tile_dpbsud(0, 4, 6);
  _tile_loadd(7, w.high[i], 64);
  SLUICE_HIGH(1, 4)
  if constexpr (T == 2) {
    _tile_loadd(5, x[x_stride].q[i], 64);
    _tile_dpbsud(2, 5, 6);
    SLUICE_HIGH(3, 5)
  }
}
#undef SLUICE_HIGH

// The sums of a super-block go to memory, then those of its minimums.
template <Format F, int T>
[[gnu::always_inline]] inline void finish(const XSuper* x,
                                          int64_t x_stride,
                                          const WSuper& w,
                                          Dots* dots) {
  _tile_stored(0, dots[0].low, 64);
  _tile_stored(1, dots[0].high, 64);
  if constexpr (kSuperScales<F>) {
    _tile_loadd(6, w.mins, 64);
    _tile_loadd(4, x->sums, 64);
    _tile_zero(0);
    _tile_dpbf16ps(0, 4, 6);
    if constexpr (T == 2) {
      _tile_loadd(5, x[x_stride].sums, 64);
      _tile_zero(1);
      _tile_dpbf16ps(1, 5, 6);
    }
  }
  if constexpr (T == 2) {
    _tile_stored(2, dots[1].low, 64);
    _tile_stored(3, dots[1].high, 64);
  }
  if constexpr (kSuperScales<F>) {
    _tile_stored(0, dots[0].mins, 64);
    if constexpr (T == 2) _tile_stored(1, dots[1].mins, 64);
  }
}

// T tiles of x. A super-block's sums become f32 while the tiles multiply the next one.
template <Format F, int T>
void strip(const Strip& s) {
  constexpr int64_t kShare = T * kTileRows / kTilesOf;  // rows to finish beside 64 columns
  alignas(64) float acc[T * kTileRows][R];
  for (int64_t m = 0; m < s.rows; ++m) {
    const float* out = s.out + m * s.out_stride;
    fetch_output(out);
    _mm512_store_ps(acc[m], s.first ? _mm512_setzero_ps() : _mm512_maskz_loadu_ps(s.mask, out));
  }
  const uint8_t* next = s.next;
  for (int64_t k = 0; k <= s.supers; ++k) {
    if (k < s.supers) {
      _tile_zero(0);
      _tile_zero(1);
      if constexpr (T == 2) {
        _tile_zero(2);
        _tile_zero(3);
      }
    }
    for (int64_t j = 0; j < s.num_next; ++j, next += 64) _mm_prefetch(next, _MM_HINT_T1);
    for (int i = 0; i < kTilesOf; ++i) {
      if (k < s.supers) multiply<F, T>(s.x + k, s.x_stride, s.w[k], i);
      if (k == 0) continue;
      const int64_t tile = i * kShare / kTileRows, first = tile * kTileRows;
      const int64_t begin = i * kShare - first, left = s.rows - first;
      const int64_t end = begin + kShare < left ? begin + kShare : left;
      add_rows<F>(s.x[tile * s.x_stride + k - 1], s.w[k - 1], s.dots[(k - 1) % 2][tile], begin, end,
                  acc + first);
    }
    if (k < s.supers) finish<F, T>(s.x + k, s.x_stride, s.w[k], s.dots[k % 2]);
  }
  const __m512 bias =
      s.last && s.bias ? _mm512_maskz_loadu_ps(s.mask, s.bias) : _mm512_setzero_ps();
  for (int64_t m = 0; m < s.rows; ++m) {
    __m512 v = _mm512_load_ps(acc[m]);
    if (s.last) v = _mm512_add_ps(v, bias);
    _mm512_mask_storeu_ps(s.out + m * s.out_stride, s.mask, v);
  }
}

// Rows of x and a range of K, for all groups of the call.
struct Range {
  const XSuper* x;
  int64_t x_stride;
  int64_t row, rows;
  int64_t super, supers;
};

template <Format F>
void run_range(const MatmulArgs& a, const PanelPlan& plan, const Range& r, Scratch& scratch) {
  Strip s{};
  s.x_stride = r.x_stride;
  s.w = scratch.w;
  s.dots = scratch.dots;
  s.supers = r.supers;
  s.out_stride = a.out_stride;
  s.first = r.super == 0;
  s.last = r.super + r.supers == a.cols / 256;
  const int64_t pairs = (r.rows + 2 * kTileRows - 1) / (2 * kTileRows);
  const int64_t turns = pairs * (r.supers + 1), code_bytes = kLowBytes<F> * R * 8;
  const int64_t lines = r.supers * code_bytes / 64;
  for (int64_t g = a.group_begin; g < a.group_end; ++g) {
    const uint8_t* panel = static_cast<const uint8_t*>(a.w) + static_cast<size_t>(g) * plan.bytes;
    for (int64_t i = 0; i < r.supers; ++i) {
      lay_out_w<F>(panel, plan, r.super + i, scratch.w[i]);
    }
    const int64_t left = a.rows - g * R;
    s.mask = static_cast<__mmask16>(left >= R ? 0xffff : (1u << left) - 1);
    s.bias = a.bias ? a.bias + g * R : nullptr;
    s.next = panel + plan.bytes + r.super * code_bytes;
    s.num_next = g + 1 < a.group_end ? (lines + turns - 1) / turns : 0;
    hold_loads();  // tile loads read what was laid out
    for (int64_t p = 0; p < pairs; ++p) {
      const int64_t m = p * 2 * kTileRows, some = r.rows - m;
      s.x = r.x + m / kTileRows * r.x_stride;
      s.rows = some < 2 * kTileRows ? some : 2 * kTileRows;
      s.out = a.out + (r.row + m) * a.out_stride + g * R;
      if (s.rows > kTileRows) {
        strip<F, 2>(s);
      } else {
        strip<F, 1>(s);
      }
      s.next += s.num_next * (r.supers + 1) * 64;
    }
  }
}

// From where on it pays to keep the first cache for the planes of two groups.
bool many_rows(const MatmulArgs& a) { return a.tiles && a.m >= 96; }

// All rows of x, or few_rows where they are few.
template <Format F>
void run(const MatmulArgs& a, void (*few_rows)(const MatmulArgs&)) {
  if (a.m < amx_rows_from(F)) return few_rows(a);
  const PanelPlan plan = panel_plan<F, R>(a.cols);
  const int64_t supers = a.cols / 256, ranges = (supers + kMaxSupers - 1) / kMaxSupers;
  const int64_t most = a.tiles ? a.m : kMaxTiles * kTileRows;
  configure_tiles(kTileRows, 64, 16);
  Scratch scratch;
  for (int64_t m0 = 0; m0 < a.m; m0 += most) {
    const int64_t rows = a.m - m0 < most ? a.m - m0 : most;
    for (int64_t i = 0; i < ranges; ++i) {
      const int64_t super = supers * i / ranges, num = supers * (i + 1) / ranges - super;
      Range r{scratch.x, num, m0, rows, super, num};
      if (a.tiles) {
        r.x = reinterpret_cast<const XSuper*>(a.tiles) + super;
        r.x_stride = supers;
      } else {
        for (int64_t t = 0; t * kTileRows < rows; ++t) {
          const int64_t m = m0 + t * kTileRows, left = rows - t * kTileRows;
          lay_out_x(a.q + m * a.cols + super * 256, a.scale + m * supers + super,
                    a.sum16 + m * (a.cols / 16) + super * 16, a.cols,
                    left < kTileRows ? left : kTileRows, num, scratch.x + t * num);
        }
      }
      run_range<F>(a, plan, r, scratch);
    }
  }
  _tile_release();
}

}  // namespace

void lay_out_tile_amx_super(const int8_t* q,
                            const float* scale,
                            const int16_t* sum16,
                            int64_t cols,
                            int64_t rows,
                            void* tile) {
  lay_out_x(q, scale, sum16, cols, rows, cols / 256, static_cast<XSuper*>(tile));
}

void matmul_amx_q4_k(const MatmulArgs& a) {
  if (many_rows(a)) return matmul_amx_many_q4_k(a);
  run<Format::q4_k>(a, matmul_avx512_q4_k);
}
void matmul_amx_q5_k(const MatmulArgs& a) {
  if (many_rows(a)) return matmul_amx_many_q5_k(a);
  run<Format::q5_k>(a, matmul_avx512_q5_k);
}
void matmul_amx_q6_k(const MatmulArgs& a) {
  if (many_rows(a)) return matmul_amx_many_q6_k(a);
  run<Format::q6_k>(a, matmul_avx512_q6_k);
}

}  // namespace sluice::cpu
