// int_super kernels of q4_k, q5_k and q6_k for AMX: bit for bit those of matmul_super_avx512.cc,
// which few rows of x go to. Codes are multiplied by their integer scales and laid out as two
// planes of bytes, once for all rows of x, so that a super-block is two exact sums over 256
// columns, S = low + (high << shift), and passes into f32 once:
//   q4_k  low = q (scale % 16) <= 225, high = q (scale / 16) <= 45
//   q5_k  low = q (scale % 8) <= 217, high = q (scale / 8) <= 217
//   q6_k  the two bytes of scale (q - 32), the high one signed
// Minimums times sums of x are a product of bf16 tiles: sums of 16 are split in two numbers that
// bf16 holds, and everything added up is an integer below 2^24, so exact in any order.
//
// Two tiles of x by one group by a super-block are 18 products and 20 tile loads, and the loads
// take longer: 27 cycles each from the first cache, 40 from the second, against 16. So the planes
// of two groups stay in the first while all rows of x come by. That leaves room for one
// super-block: sums go through memory after each. They lie in one piece, because the rows of the
// output are often a multiple of 2 KB apart and would meet in few sets of the first cache.
#include <immintrin.h>

#include "backend/cpu/matmul/fetch_output_avx512.h"
#include "backend/cpu/matmul/matmul_kernels.h"
#include "backend/cpu/matmul/matmul_panels_avx512.h"
#include "backend/cpu/matmul/tiles_amx.h"

namespace sluice::cpu {
namespace {

constexpr int R = kPanelRows;
constexpr int kTileRows = 16;     // of x
constexpr int kTilesOf = 4;       // tiles of 64 columns in a super-block
constexpr int64_t kMaxTiles = 8;  // of x that a call without MatmulArgs::tiles lays out at once
constexpr int64_t kPlanes = 4;    // super-blocks of W laid out at once, at most
constexpr int64_t kSecondCache = 1 << 20;  // bytes of x that stay in it beside the rest
constexpr int64_t kManyRows = 96;          // of x from which the first cache is kept for two groups
constexpr int64_t kSumRows = 8 * kTiledRows;  // rows of x times groups whose sums are in the making

template <Format F>
constexpr int kShift = F == Format::q4_k   ? 4
                       : F == Format::q5_k ? 3
                                           : 8;

// A super-block of 16 rows of x.
struct alignas(64) XSuper {
  int8_t q[kTilesOf][kTileRows][64];
  uint32_t sums[kTileRows][16];  // of 16 columns each: a multiple of 64 and the rest, as bf16
  float scale[kTileRows];
};
static_assert(sizeof(XSuper) == kXSuperBytes);

// A super-block of a group.
struct alignas(64) WSuper {
  uint8_t low[kTilesOf][16][R * 4];  // [unit][row][column of the unit]
  uint8_t high[kTilesOf][16][R * 4];
  uint32_t mins[16][R];  // of 16 columns each, twice, as bf16
  float d[R], dmin[R];
};

// Results of one or two tiles of x.
struct alignas(64) Dots {
  int32_t low[2 * kTileRows][R];
  int32_t high[2 * kTileRows][R];
  float mins[2][2 * kTileRows][R];  // by turns
};

struct Scratch {
  XSuper x[kMaxTiles * kPlanes];  // [tile][super-block]
  WSuper w[kPlanes];              // [group][super-block]
  Dots dots;
  alignas(64) float sums[kSumRows][R];  // [group][row of x]
};

alignas(64) constexpr float kZeros[R] = {};

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

// Planes of 64 products of codes with their rows' scale.
template <Format F>
struct Factors {
  __m512i first, second;  // q4_k, q5_k: of the low and of the high plane; q6_k: even, odd columns
  __m512i offset;         // q6_k: 32 times the scale
};

template <Format F>
[[gnu::always_inline]] inline Factors<F> factors(__m512i scale) {  // 32 bits
  if constexpr (F == Format::q6_k) {
    const __m512i bytes = _mm512_and_si512(scale, _mm512_set1_epi32(255));
    const __m512i even = _mm512_or_si512(bytes, _mm512_slli_epi32(bytes, 16));
    const __m512i words = _mm512_mask_blend_epi16(0xaaaaaaaau, scale, _mm512_slli_epi32(scale, 16));
    return {even, _mm512_slli_epi16(even, 8), _mm512_slli_epi16(words, 5)};
  } else {
    const __m512i twice = _mm512_or_si512(scale, _mm512_slli_epi32(scale, 16));
    const __m512i low = _mm512_set1_epi16((1 << kShift<F>)-1);
    return {_mm512_and_si512(twice, low), _mm512_srli_epi16(twice, kShift<F>), low};
  }
}

// q: unsigned codes. Products of two bytes of q4_k and q5_k with a factor do not carry.
template <Format F>
[[gnu::always_inline]] inline void put_products(__m512i q,
                                                const Factors<F>& f,
                                                uint8_t* low,
                                                uint8_t* high) {
  if constexpr (F == Format::q6_k) {
    const __m512i even = _mm512_sub_epi16(_mm512_maddubs_epi16(q, f.first), f.offset);
    const __m512i odd = _mm512_sub_epi16(_mm512_maddubs_epi16(q, f.second), f.offset);
    const __m512i bytes = _mm512_set1_epi16(255);
    _mm512_store_si512(low,
                       _mm512_ternarylogic_epi32(bytes, even, _mm512_slli_epi16(odd, 8), 0xca));
    _mm512_store_si512(high,
                       _mm512_ternarylogic_epi32(bytes, _mm512_srli_epi16(even, 8), odd, 0xca));
  } else {
    _mm512_store_si512(low, _mm512_mullo_epi16(q, f.first));
    _mm512_store_si512(high, _mm512_mullo_epi16(q, f.second));
  }
}

// Block b of 32 columns: units unit to unit + 7 of tile i.
template <Format F>
[[gnu::always_inline]] inline void lay_out_block(const uint8_t* panel,
                                                 const PanelPlan& plan,
                                                 int64_t b,
                                                 WSuper& w) {
  const int64_t i = b % 8 / 2, unit = b % 2 * 8;
  const uint8_t* codes = panel + b * kLowBytes<F> * R;
  if constexpr (F == Format::q6_k) {
    const uint8_t* tops = panel + plan.high + b * 8 * R;
    const uint8_t* scales = panel + plan.scale + b * 2 * R;
    __m512i q[4];
    q6_units<0>(codes, tops, q);
    Factors<F> f = factors<F>(_mm512_cvtepi8_epi32(load16(scales)));
    SLUICE_UNROLL
    for (int u = 0; u < 4; ++u) put_products(q[u], f, w.low[i][unit + u], w.high[i][unit + u]);
    q6_units<1>(codes, tops, q);
    f = factors<F>(_mm512_cvtepi8_epi32(load16(scales + R)));
    SLUICE_UNROLL
    for (int u = 0; u < 4; ++u) {
      put_products(q[u], f, w.low[i][unit + 4 + u], w.high[i][unit + 4 + u]);
    }
  } else {
    const uint8_t* tops = panel + plan.high + b * 4 * R;
    const SixBitPair six =
        six_bits(load16(panel + plan.scale + b * R), load16(panel + plan.tops + b / 2 * R), b);
    const Factors<F> f = factors<F>(_mm512_cvtepu8_epi32(six.first));
    SLUICE_UNROLL
    for (int u = 0; u < 4; ++u) {
      __m512i first, second;
      load_units<F>(codes, tops, u, first, second);
      put_products(first, f, w.low[i][unit + u], w.high[i][unit + u]);
      put_products(second, f, w.low[i][unit + 4 + u], w.high[i][unit + 4 + u]);
    }
    const __m512i min = _mm512_castps_si512(widen_u8(six.second));
    const __m512i twice = _mm512_or_si512(min, _mm512_srli_epi32(min, 16));
    _mm512_store_si512(w.mins[b % 8 * 2], twice);
    _mm512_store_si512(w.mins[b % 8 * 2 + 1], twice);
  }
}

template <Format F>
void lay_out_w(const uint8_t* panel, const PanelPlan& plan, int64_t s, WSuper& w) {
  for (int64_t b = s * 8; b < s * 8 + 8; ++b) lay_out_block<F>(panel, plan, b, w);
  const uint8_t* super = panel + plan.extra + s * (kSuperScales<F> ? 4 : 2) * R;
  _mm512_store_ps(w.d, load_f16(super));
  if constexpr (kSuperScales<F>) _mm512_store_ps(w.dmin, load_f16(super + 2 * R));
}

// Where the sums of a group go after its last super-block.
struct Output {
  __mmask16 mask;  // of the group's rows
  __m512 bias;
  bool past_cache;
};

// Two tiles of x, or one, against a super-block of a group.
struct Unit {
  int tiles;  // 0: nothing to do
  const XSuper* x[2];
  const WSuper* w;
  const float* from;  // sums so far, rows from_step apart
  int64_t from_step;
  float* to;  // rows to_step apart
  int64_t to_step, rows;
  const Output* output;  // null: more super-blocks follow
};

// Row `row` of a unit: the sum so far and what its super-block adds.
template <Format F>
[[gnu::always_inline]] inline __m512 sum_row(const Dots& dots,
                                             int turn,
                                             int64_t row,
                                             __m512 d,
                                             __m512 dmin,
                                             float scale,
                                             const float* from) {
  const __m512i high = _mm512_slli_epi32(_mm512_load_si512(dots.high[row]), kShift<F>);
  const __m512i dot = _mm512_add_epi32(_mm512_load_si512(dots.low[row]), high);
  __m512 v = _mm512_mul_ps(d, _mm512_cvtepi32_ps(dot));
  if constexpr (kSuperScales<F>) {
    v = _mm512_fnmadd_ps(dmin, _mm512_load_ps(dots.mins[turn][row]), v);
  }
  return _mm512_fmadd_ps(_mm512_set1_ps(scale), v, _mm512_load_ps(from));
}

// Rows [begin, begin + N), of one tile. Those past the unit's last are anything.
template <Format F, int N>
[[gnu::always_inline]] inline void add_rows(const Unit& u,
                                            const Dots& dots,
                                            int turn,
                                            int64_t begin) {
  const __m512 d = _mm512_load_ps(u.w->d), dmin = _mm512_load_ps(u.w->dmin);
  const float* scale = u.x[begin / kTileRows]->scale + begin % kTileRows;
  const int64_t step = u.from_step;
  const float* from = u.from + begin * step;
  float* to = u.to + begin * R;
  SLUICE_UNROLL
  for (int i = 0; i < N; ++i, from += step) {
    _mm512_store_ps(to + i * R, sum_row<F>(dots, turn, begin + i, d, dmin, scale[i], from));
  }
}

// The same of the last super-block.
template <Format F>
[[gnu::noinline]] void put_rows(
    const Unit& u, const Dots& dots, int turn, int64_t begin, int64_t end) {
  const __m512 d = _mm512_load_ps(u.w->d), dmin = _mm512_load_ps(u.w->dmin);
  const float* scale = u.x[begin / kTileRows]->scale + begin % kTileRows;
  const Output o = *u.output;
  const int64_t from_step = u.from_step, to_step = u.to_step;
  const float* from = u.from + begin * from_step;
  float* to = u.to + begin * to_step;
  if (end > u.rows) end = u.rows;
  for (int64_t row = begin; row < end; ++row, from += from_step, to += to_step) {
    const __m512 sum = sum_row<F>(dots, turn, row, d, dmin, scale[row - begin], from);
    const __m512 v = _mm512_add_ps(sum, o.bias);
    if (o.past_cache) {
      _mm512_stream_ps(to, v);
    } else {
      _mm512_mask_storeu_ps(to, o.mask, v);
    }
  }
}

// A quarter of a unit's rows.
template <Format F>
[[gnu::always_inline]] inline void add_quarter(const Unit& u, const Dots& dots, int turn, int i) {
  if (u.output) {
    put_rows<F>(u, dots, turn, i * 4 * u.tiles, (i + 1) * 4 * u.tiles);
  } else if (u.tiles == 2) {
    add_rows<F, 8>(u, dots, turn, i * 8);
  } else if (u.tiles == 1) {
    add_rows<F, 4>(u, dots, turn, i * 4);
  }
}

// Registers must be literals. Many rows of x pass by the first cache, which makes Q4_K a twentieth
// faster and Q6_K, without minimums, no faster.
#define SLUICE_LOAD_X(A, from)               \
  if constexpr (kSuperScales<F> && T == 2) { \
    _tile_stream_loadd(A, from, 64);         \
  } else {                                   \
    _tile_loadd(A, from, 64);                \
  }

#define SLUICE_HIGH(C, A)            \
  if constexpr (F == Format::q6_k) { \
    _tile_dpbssd(C, A, 7);           \
  } else {                           \
    _tile_dpbsud(C, A, 7);           \
  }

// Products of the minimums, into registers 2 and 3.
template <Format F, int T>
[[gnu::always_inline]] inline void multiply_mins(const Unit& u) {
  _tile_loadd(6, u.w->mins, 64);
  SLUICE_LOAD_X(4, u.x[0]->sums)
  _tile_zero(2);
  _tile_dpbf16ps(2, 4, 6);
  if constexpr (T == 2) {
    SLUICE_LOAD_X(5, u.x[1]->sums)
    _tile_zero(3);
    _tile_dpbf16ps(3, 5, 6);
  }
}

// 64 columns of T tiles of x. The first of them wait until registers 2 and 3 are free.
template <Format F, int T>
[[gnu::always_inline]] inline void multiply(const Unit& u, int i, Dots& dots, int turn) {
  _tile_loadd(6, u.w->low[i], 64);
  SLUICE_LOAD_X(4, u.x[0]->q[i])
  _tile_dpbsud(0, 4, 6);
  _tile_loadd(7, u.w->high[i], 64);
  SLUICE_HIGH(1, 4)
  if (kSuperScales<F> && i == 0) {
    _tile_stored(2, dots.mins[turn], 64);
    if constexpr (T == 2) {
      _tile_stored(3, dots.mins[turn][kTileRows], 64);
    }
  }
  if constexpr (T == 2) {
    if (i == 0) {
      _tile_zero(2);
      _tile_zero(3);
    }
    SLUICE_LOAD_X(5, u.x[1]->q[i])
    _tile_dpbsud(2, 5, 6);
    SLUICE_HIGH(3, 5)
  }
}
#undef SLUICE_LOAD_X
#undef SLUICE_HIGH

// The products of a unit of T tiles. Meanwhile the results of the unit before become sums: vectors
// beside tiles, instead of after them.
template <Format F, int T>
[[gnu::noinline]] void take_turn(const Unit& now, const Unit& before, Dots& dots, int turn) {
  if constexpr (kSuperScales<F>) multiply_mins<F, T>(now);
  _tile_zero(0);
  _tile_zero(1);
  SLUICE_UNROLL
  for (int i = 0; i < kTilesOf; ++i) {
    multiply<F, T>(now, i, dots, turn);
    add_quarter<F>(before, dots, turn ^ 1, i);
  }
  _tile_stored(0, dots.low, 64);
  _tile_stored(1, dots.high, 64);
  if constexpr (T == 2) {
    _tile_stored(2, dots.low[kTileRows], 64);
    _tile_stored(3, dots.high[kTileRows], 64);
  }
}

// Rows of x and groups whose sums fit Scratch::sums, over a range of K.
struct Part {
  const MatmulArgs* a;
  PanelPlan plan;
  int64_t row, rows;
  int64_t group, group_end;
  const XSuper* x;  // of the range
  int64_t x_stride;
  int64_t super, supers;
  int64_t width;    // groups laid out at once
  bool fetches_x;   // of the next range, from beyond the second cache
  bool past_cache;  // the output's lines do not go through the caches

  const uint8_t* panel(int64_t g) const {
    return static_cast<const uint8_t*>(a->w) + static_cast<size_t>(g) * plan.bytes;
  }
  bool ends() const { return (super + supers) * 256 == a->cols; }
};

constexpr int64_t round_to_tiles(int64_t rows) {
  return (rows + kTileRows - 1) / kTileRows * kTileRows;
}

// The codes of groups that are laid out next, some lines in every turn.
class CodeFetch {
 public:
  // num: groups from g on that are laid out now.
  template <Format F>
  static CodeFetch after(const Part& p, int64_t g, int64_t num) {
    constexpr int64_t kBytes = kLowBytes<F> * R * 8;  // of a super-block
    CodeFetch f;
    const bool more = g + num < p.group_end;
    if (!more && p.ends()) return f;
    const int64_t next = more ? g + num : p.group, super = more ? p.super : p.super + p.supers;
    const int64_t left = p.group_end - next;
    f.from_ = p.panel(next) + super * kBytes;
    f.group_bytes_ = p.plan.bytes;
    f.in_group_ = p.supers * kBytes / 64;
    f.groups_ = left < p.width ? left : p.width;
    const int64_t pairs = (p.rows + 2 * kTileRows - 1) / (2 * kTileRows);
    const int64_t turns = pairs * num * p.supers;
    f.per_turn_ = (f.groups_ * f.in_group_ + turns - 1) / turns;
    return f;
  }

  [[gnu::always_inline]] void some() {
    for (int64_t i = 0; i < per_turn_ && groups_ > 0; ++i) {
      _mm_prefetch(reinterpret_cast<const char*>(from_ + line_ * 64), _MM_HINT_T1);
      if (++line_ == in_group_) {
        line_ = 0;
        --groups_;
        from_ += group_bytes_;
      }
    }
  }

 private:
  const uint8_t* from_ = nullptr;
  size_t group_bytes_ = 0;
  int64_t groups_ = 0;  // still to fetch
  int64_t in_group_ = 0, line_ = 0, per_turn_ = 0;
};

// Rows m on of x against super-block s of the g-th group from g0 on; s and g count what is laid
// out.
[[gnu::always_inline]] inline Unit unit_at(
    const Part& p, int64_t m, int64_t g0, int64_t g, int64_t s, Scratch& scratch) {
  const int64_t tile_rows = round_to_tiles(p.rows);
  float* sums = scratch.sums[(g0 + g - p.group) * tile_rows + m];
  const bool first = p.super + s == 0, last = p.ends() && s + 1 == p.supers;
  Unit u{};
  u.tiles = tile_rows - m > kTileRows ? 2 : 1;
  u.x[0] = p.x + m / kTileRows * p.x_stride + s;
  u.x[1] = u.x[0] + p.x_stride;
  u.w = scratch.w + g * p.supers + s;
  u.rows = p.rows - m;
  u.from = first ? kZeros : sums;
  u.from_step = first ? 0 : R;
  u.to = last ? p.a->out + (p.row + m) * p.a->out_stride + (g0 + g) * R : sums;
  u.to_step = last ? p.a->out_stride : R;
  return u;
}

Output output_of(const Part& p, int64_t g) {
  const int64_t left = p.a->rows - g * R;
  const auto mask = static_cast<__mmask16>(left >= R ? 0xffff : (1u << left) - 1);
  return {mask, p.a->bias ? _mm512_maskz_loadu_ps(mask, p.a->bias + g * R) : _mm512_setzero_ps(),
          p.past_cache && mask == 0xffff};
}

// The share of group g in fetching the tiles of a unit for the next range of K.
[[gnu::always_inline]] inline void fetch_x(const Part& p, const Unit& u, int64_t g) {
  const int64_t lines = p.supers * kXSuperBytes / 64, groups = p.group_end - p.group;
  const int64_t begin = lines * (g - p.group) / groups, end = lines * (g - p.group + 1) / groups;
  for (int t = 0; t < u.tiles; ++t) {
    const auto* next = reinterpret_cast<const char*>(u.x[t] + p.supers);
    for (int64_t i = begin; i < end; ++i) _mm_prefetch(next + i * 64, _MM_HINT_T1);
  }
}

// `num` groups from g0 on.
template <Format F>
void run_groups(const Part& p, int64_t g0, int64_t num, Scratch& scratch) {
  Output outputs[kPlanes];
  for (int64_t g = 0; g < num; ++g) {
    for (int64_t s = 0; s < p.supers; ++s) {
      lay_out_w<F>(p.panel(g0 + g), p.plan, p.super + s, scratch.w[g * p.supers + s]);
    }
    outputs[g] = output_of(p, g0 + g);
  }
  CodeFetch codes = CodeFetch::after<F>(p, g0, num);
  hold_loads();  // tile loads read what was laid out
  Unit units[2] = {};
  int turn = 0;
  for (int64_t m = 0; m < p.rows; m += 2 * kTileRows) {
    for (int64_t i = 0; i < num * p.supers; ++i, turn ^= 1) {
      const int64_t g = i / p.supers, s = i % p.supers;
      Unit& now = units[turn];
      now = unit_at(p, m, g0, g, s, scratch);
      if (p.ends() && s + 1 == p.supers) {
        now.output = &outputs[g];
        for (int64_t row = 0; !outputs[g].past_cache && row < now.rows && row < 2 * kTileRows;
             ++row) {
          fetch_output(now.to + row * now.to_step);
        }
      }
      codes.some();
      if (p.fetches_x && s == 0) fetch_x(p, now, g0 + g);
      if (now.tiles == 2) {
        take_turn<F, 2>(now, units[turn ^ 1], scratch.dots, turn);
      } else {
        take_turn<F, 1>(now, units[turn ^ 1], scratch.dots, turn);
      }
    }
  }
  for (int i = 0; i < kTilesOf; ++i) add_quarter<F>(units[turn ^ 1], scratch.dots, turn ^ 1, i);
}

// All of K for the part's rows and groups.
template <Format F>
void run_part(Part p, Scratch& scratch) {
  const MatmulArgs& a = *p.a;
  const int64_t supers = a.cols / 256, most = p.width == 2 ? 1 : kPlanes;
  const int64_t ranges = (supers + most - 1) / most;
  for (int64_t i = 0; i < ranges; ++i) {
    p.super = supers * i / ranges;
    p.supers = supers * (i + 1) / ranges - p.super;
    if (a.tiles) {
      p.x = reinterpret_cast<const XSuper*>(a.tiles) + p.row / kTileRows * supers + p.super;
      p.x_stride = supers;
    } else {
      p.x = scratch.x;
      p.x_stride = p.supers;
      for (int64_t t = 0; t * kTileRows < p.rows; ++t) {
        const int64_t m = p.row + t * kTileRows, left = p.rows - t * kTileRows;
        lay_out_x(a.q + m * a.cols + p.super * 256, a.scale + m * supers + p.super,
                  a.sum16 + m * (a.cols / 16) + p.super * 16, a.cols,
                  left < kTileRows ? left : kTileRows, p.supers, scratch.x + t * p.supers);
      }
    }
    p.fetches_x = a.tiles && !p.ends() && round_to_tiles(p.rows) * a.cols > kSecondCache;
    for (int64_t g = p.group; g < p.group_end; g += p.width) {
      const int64_t left = p.group_end - g;
      run_groups<F>(p, g, left < p.width ? left : p.width, scratch);
    }
  }
}

// All rows of x, or few_rows where they are few.
template <Format F>
void run(const MatmulArgs& a, void (*few_rows)(const MatmulArgs&)) {
  if (a.m < amx_rows_from(F)) return few_rows(a);
  configure_tiles(kTileRows, 64, 16);
  Scratch scratch;
  Part p{};
  p.a = &a;
  p.plan = panel_plan<F, R>(a.cols);
  p.past_cache = writes_past_cache(a);
  const int64_t most = a.tiles ? kTiledRows : kMaxTiles * kTileRows;
  for (p.row = 0; p.row < a.m; p.row += most) {
    p.rows = a.m - p.row < most ? a.m - p.row : most;
    p.width = p.rows >= kManyRows ? 2 : 1;
    const int64_t groups = kSumRows / round_to_tiles(p.rows);
    for (p.group = a.group_begin; p.group < a.group_end; p.group += groups) {
      const int64_t left = a.group_end - p.group;
      p.group_end = p.group + (left < groups ? left : groups);
      run_part<F>(p, scratch);
    }
  }
  if (p.past_cache) _mm_sfence();  // done before anybody is told that this call is
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

void matmul_amx_q4_k(const MatmulArgs& a) { run<Format::q4_k>(a, matmul_avx512_q4_k); }
void matmul_amx_q5_k(const MatmulArgs& a) { run<Format::q5_k>(a, matmul_avx512_q5_k); }
void matmul_amx_q6_k(const MatmulArgs& a) { run<Format::q6_k>(a, matmul_avx512_q6_k); }

}  // namespace sluice::cpu
