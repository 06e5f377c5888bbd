// Many rows of x, in tiles (MatmulArgs::tiles), for the int_super kernels for AMX.
//
// Two tiles of x by one group by a super-block are 18 products and 20 tile loads, and the loads
// take longer: 27 cycles each from the first cache, 40 from the second, against 16. So the planes
// of two groups stay in the first while all rows of x come by. That leaves room for one
// super-block: sums go through memory after each. They lie in one piece, because the rows of the
// output are often a multiple of 2 KB apart and would meet in few sets of the first cache.
#include <immintrin.h>

#include "backend/cpu/matmul/fetch_output.h"
#include "backend/cpu/matmul/matmul_kernels.h"
#include "backend/cpu/matmul/matmul_panels_avx512.h"
#include "backend/cpu/matmul/matmul_supers_amx.h"
#include "backend/cpu/matmul/tiles_amx.h"

namespace sluice::cpu {
namespace {

constexpr int64_t kGroups = 2;                // whose planes are in the first cache
constexpr int64_t kSecondCache = 1 << 20;     // bytes of x that stay in it beside the rest
constexpr int64_t kSumRows = 8 * kTiledRows;  // rows of x times groups whose sums are in the making

// Results of one or two tiles of x.
struct alignas(64) Dots {
  int32_t low[2 * kTileRows][R];
  int32_t high[2 * kTileRows][R];
  float mins[2][2 * kTileRows][R];  // by turns
};

struct Scratch {
  WSuper w[kGroups];
  Dots dots;
  alignas(64) float sums[kSumRows][R];  // [group][row of x]
};

alignas(64) constexpr float kZeros[R] = {};

// How a group's sums are put out after its last super-block.
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
#define SLUICE_LOAD_X(A, from)       \
  if constexpr (kSuperScales<F>) {   \
    _tile_stream_loadd(A, from, 64); \
  } else {                           \
    _tile_loadd(A, from, 64);        \
  }

#define SLUICE_HIGH(C, A)            \
  if constexpr (F == Format::q6_k) { \
    _tile_dpbssd(C, A, 7);           \
  } else {                           \
    _tile_dpbsud(C, A, 7);           \
  }

// The columns that a unit of two tiles multiplies first: the minimums', where the format has them,
// else its first 64. A load waits for earlier products that read its register, and later products
// wait for the load, so each register is loaded as soon as it is free, across units too.
template <Format F>
[[gnu::always_inline]] inline const void* first_of(const XSuper& x) {
  if constexpr (kSuperScales<F>) return x.sums;
  return x.q[0];
}
template <Format F>
[[gnu::always_inline]] inline const void* first_of(const WSuper& w) {
  if constexpr (kSuperScales<F>) return w.mins;
  return w.low[0];
}

template <Format F>
[[gnu::always_inline]] inline void load_first(const Unit& u) {
  SLUICE_LOAD_X(4, first_of<F>(*u.x[0]))
  _tile_loadd(6, first_of<F>(*u.w), 64);
  SLUICE_LOAD_X(5, first_of<F>(*u.x[1]))
  _tile_loadd(7, u.w->high[0], 64);
}

// 64 columns of two tiles of x: low planes into registers 0 and 2, high ones into 1 and 3. Loads
// are those of the next 64 columns, or of the unit after.
template <Format F>
[[gnu::always_inline]] inline void multiply_two(
    const Unit& u, const Unit& next, int i, Dots& dots, int turn) {
  const bool ends = i + 1 == kTilesOf;
  if (i == 0) _tile_zero(0);
  _tile_dpbsud(0, 4, 6);
  if (i == 0) _tile_zero(1);
  SLUICE_HIGH(1, 4)
  SLUICE_LOAD_X(4, ends ? first_of<F>(*next.x[0]) : u.x[0]->q[i + 1])
  if (kSuperScales<F> && i == 0) {
    _tile_stored(2, dots.mins[turn], 64);
    _tile_stored(3, dots.mins[turn][kTileRows], 64);
  }
  if (ends) _tile_stored(0, dots.low, 64);
  if (i == 0) _tile_zero(2);
  _tile_dpbsud(2, 5, 6);
  _tile_loadd(6, ends ? first_of<F>(*next.w) : u.w->low[i + 1], 64);
  if (ends) _tile_stored(1, dots.high, 64);
  if (i == 0) _tile_zero(3);
  SLUICE_HIGH(3, 5)
  SLUICE_LOAD_X(5, ends ? first_of<F>(*next.x[1]) : u.x[1]->q[i + 1])
  _tile_loadd(7, ends ? next.w->high[0] : u.w->high[i + 1], 64);
  if (ends) {
    _tile_stored(2, dots.low[kTileRows], 64);
    _tile_stored(3, dots.high[kTileRows], 64);
  }
}

// The products of a unit of two tiles, whose first factors are loaded. Beside them the results of
// the unit before become sums: vectors beside tiles, instead of after them.
template <Format F>
[[gnu::noinline]] void take_two(
    const Unit& now, const Unit& next, const Unit& before, Dots& dots, int turn) {
  if constexpr (kSuperScales<F>) {
    _tile_zero(2);
    _tile_dpbf16ps(2, 4, 6);
    SLUICE_LOAD_X(4, now.x[0]->q[0])
    _tile_zero(3);
    _tile_dpbf16ps(3, 5, 6);
    _tile_loadd(6, now.w->low[0], 64);
    SLUICE_LOAD_X(5, now.x[1]->q[0])
  }
  SLUICE_UNROLL
  for (int i = 0; i < kTilesOf; ++i) {
    add_quarter<F>(before, dots, turn ^ 1, i);
    multiply_two<F>(now, next, i, dots, turn);
  }
}
#undef SLUICE_LOAD_X

// The same of one tile: the last of an odd number.
template <Format F>
[[gnu::noinline]] void take_one(const Unit& now, const Unit& before, Dots& dots, int turn) {
  for (int i = 0; i < kTilesOf; ++i) add_quarter<F>(before, dots, turn ^ 1, i);
  if constexpr (kSuperScales<F>) {
    _tile_loadd(6, now.w->mins, 64);
    _tile_loadd(4, now.x[0]->sums, 64);
    _tile_zero(2);
    _tile_dpbf16ps(2, 4, 6);
    _tile_stored(2, dots.mins[turn], 64);
  }
  _tile_zero(0);
  _tile_zero(1);
  for (int i = 0; i < kTilesOf; ++i) {
    _tile_loadd(4, now.x[0]->q[i], 64);
    _tile_loadd(6, now.w->low[i], 64);
    _tile_dpbsud(0, 4, 6);
    _tile_loadd(7, now.w->high[i], 64);
    SLUICE_HIGH(1, 4)
  }
  _tile_stored(0, dots.low, 64);
  _tile_stored(1, dots.high, 64);
}
#undef SLUICE_HIGH

// Rows of x and groups whose sums fit Scratch::sums, and one super-block.
struct Part {
  const MatmulArgs* a;
  PanelPlan plan;
  int64_t row, rows;
  int64_t group, group_end;
  int64_t super, supers;  // the one, of how many
  const XSuper* x;        // its first tile; the next is `supers` further on
  bool fetches_x;         // of the next super-block, from beyond the second cache
  bool past_cache;        // the output's lines do not go through the caches

  const uint8_t* panel(int64_t g) const {
    return static_cast<const uint8_t*>(a->w) + static_cast<size_t>(g) * plan.bytes;
  }
  bool ends() const { return super + 1 == supers; }
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
    const int64_t next = more ? g + num : p.group, super = more ? p.super : p.super + 1;
    const int64_t left = p.group_end - next;
    f.from_ = p.panel(next) + super * kBytes;
    f.group_bytes_ = p.plan.bytes;
    f.in_group_ = kBytes / 64;
    f.groups_ = left < kGroups ? left : kGroups;
    const int64_t turns = (p.rows + 2 * kTileRows - 1) / (2 * kTileRows) * num;
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

// Rows m on of x against group g, whose planes are w.
[[gnu::always_inline]] inline Unit unit_at(
    const Part& p, int64_t m, int64_t g, const WSuper* w, const Output& output, Scratch& scratch) {
  const int64_t tile_rows = round_to_tiles(p.rows);
  float* sums = scratch.sums[(g - p.group) * tile_rows + m];
  const bool first = p.super == 0, last = p.ends();
  Unit u{};
  u.tiles = tile_rows - m > kTileRows ? 2 : 1;
  u.x[0] = p.x + m / kTileRows * p.supers;
  u.x[1] = u.x[0] + p.supers;
  u.w = w;
  u.rows = p.rows - m;
  u.from = first ? kZeros : sums;
  u.from_step = first ? 0 : R;
  u.to = last ? p.a->out + (p.row + m) * p.a->out_stride + g * R : sums;
  u.to_step = last ? p.a->out_stride : R;
  u.output = last ? &output : nullptr;
  return u;
}

Output output_of(const Part& p, int64_t g) {
  const int64_t left = p.a->rows - g * R;
  const auto mask = static_cast<__mmask16>(left >= R ? 0xffff : (1u << left) - 1);
  return {mask, p.a->bias ? _mm512_maskz_loadu_ps(mask, p.a->bias + g * R) : _mm512_setzero_ps(),
          p.past_cache && mask == 0xffff};
}

[[gnu::always_inline]] inline void fetch_rows(const Unit& u) {
  if (!u.output || u.output->past_cache) return;
  for (int64_t row = 0; row < u.rows && row < 2 * kTileRows; ++row) {
    fetch_output(u.to + row * u.to_step);
  }
}

// The share of group g in fetching the tiles of a unit for the next super-block.
[[gnu::always_inline]] inline void fetch_x(const Part& p, const Unit& u, int64_t g) {
  constexpr int64_t kLines = kXSuperBytes / 64;
  const int64_t groups = p.group_end - p.group;
  const int64_t begin = kLines * (g - p.group) / groups, end = kLines * (g - p.group + 1) / groups;
  for (int t = 0; t < u.tiles; ++t) {
    const auto* next = reinterpret_cast<const char*>(u.x[t] + 1);
    for (int64_t i = begin; i < end; ++i) _mm_prefetch(next + i * 64, _MM_HINT_T1);
  }
}

// `num` groups from g0 on, at most kGroups.
template <Format F>
void run_groups(const Part& p, int64_t g0, int64_t num, Scratch& scratch) {
  Output outputs[kGroups];
  for (int64_t g = 0; g < num; ++g) {
    lay_out_w<F>(p.panel(g0 + g), p.plan, p.super, scratch.w[g]);
    outputs[g] = output_of(p, g0 + g);
  }
  CodeFetch codes = CodeFetch::after<F>(p, g0, num);
  hold_loads();  // tile loads read what was laid out
  Unit before{}, now = unit_at(p, 0, g0, scratch.w, outputs[0], scratch);
  if (now.tiles == 2) load_first<F>(now);
  int turn = 0;
  for (int64_t m = 0, g = 0; m < p.rows; turn ^= 1) {
    fetch_rows(now);
    codes.some();
    if (p.fetches_x) fetch_x(p, now, g0 + g);
    if (++g == num) {
      g = 0;
      m += 2 * kTileRows;
    }
    const Unit next = m < p.rows ? unit_at(p, m, g0 + g, scratch.w + g, outputs[g], scratch) : now;
    if (now.tiles == 2) {
      take_two<F>(now, next.tiles == 2 ? next : now, before, scratch.dots, turn);
    } else {
      take_one<F>(now, before, scratch.dots, turn);
    }
    before = now;
    now = next;
  }
  for (int i = 0; i < kTilesOf; ++i) add_quarter<F>(before, scratch.dots, turn ^ 1, i);
}

// All of K for the part's rows and groups.
template <Format F>
void run_part(Part p, Scratch& scratch) {
  const auto* x = reinterpret_cast<const XSuper*>(p.a->tiles) + p.row / kTileRows * p.supers;
  for (p.super = 0; p.super < p.supers; ++p.super) {
    p.x = x + p.super;
    p.fetches_x = !p.ends() && round_to_tiles(p.rows) * p.a->cols > kSecondCache;
    for (int64_t g = p.group; g < p.group_end; g += kGroups) {
      const int64_t left = p.group_end - g;
      run_groups<F>(p, g, left < kGroups ? left : kGroups, scratch);
    }
  }
}

template <Format F>
void run(const MatmulArgs& a) {
  configure_tiles(kTileRows, 64, 16);
  Scratch scratch;
  Part p{};
  p.a = &a;
  p.plan = panel_plan<F, R>(a.cols);
  p.supers = a.cols / 256;
  p.past_cache = writes_past_cache(a);
  for (p.row = 0; p.row < a.m; p.row += kTiledRows) {
    p.rows = a.m - p.row < kTiledRows ? a.m - p.row : kTiledRows;
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

void matmul_amx_many_q4_k(const MatmulArgs& a) { run<Format::q4_k>(a); }
void matmul_amx_many_q5_k(const MatmulArgs& a) { run<Format::q5_k>(a); }
void matmul_amx_many_q6_k(const MatmulArgs& a) { run<Format::q6_k>(a); }

}  // namespace sluice::cpu
