#include "backend/cpu/matmul/matmul_pieces.h"

#include <algorithm>
#include <cstring>

#include "backend/cpu/matmul/matmul_kernels.h"
#include "base/check.h"

namespace sluice {
namespace {

// Rows of x that a gated product computes together, where they are not in tiles: with 128 columns
// of gate and up their sums are 128 KB.
constexpr int64_t kGatedRows = 128;

// Whether a kernel takes m rows of x in tiles. It does not pay for few, or where two groups of W
// are more than the first cache: then both come from the second. The rows of x of a call, in bf16,
// are to stay in the second cache.
bool takes_tiles(const MatmulRow& kernel, int64_t cols, int64_t m) {
  constexpr int64_t kLeast = 4 * kXTileRows, kFirst = 48 << 10, kSecond = 1600 << 10;
  if (m < kLeast) return false;
  switch (kernel.x_tiles) {
    case XTiles::none:
      return false;
    case XTiles::int8:
      return 2 * kernel.group_rows * cols <= kFirst;
    case XTiles::bf16:
      return 2 * kTiledRows * cols <= kSecond;
    case XTiles::super:  // taken in ranges of columns that fit
    case XTiles::blocks:
      return true;
  }
  return false;
}

// Pieces of 20 to 100 µs, longer where there is much to do, but several per thread, and of as many
// groups as kernels take at once unless that would leave threads without work.
PieceCut cut_segment(const PackedSegment& s, int64_t cols, int64_t m, int threads, bool tiled) {
  constexpr double kShortest = 20e3, kLongest = 100e3;  // ns
  constexpr double kBytesPerNs = 12;
  constexpr int64_t kPerThread = 3;
  const int64_t total = num_groups(*s.kernel, s.rows);
  const Pace pace = s.kernel->pace(m, tiled && takes_tiles(*s.kernel, cols, m));
  PieceCut c;
  c.cut_rows(m, (m + pace.rows - 1) / pace.rows, pace.step);
  const double ops = 2.0 * static_cast<double>(s.kernel->group_rows * cols * c.rows);
  const double group_ns =
      std::max(static_cast<double>(s.group_bytes) / kBytesPerNs, ops / pace.ops_per_ns);
  const double piece_ns = std::clamp(
      group_ns * static_cast<double>(total * c.num_rows) / (16 * threads), kShortest, kLongest);
  int64_t at_once = pace.at_once;
  while (at_once > 1 && total * c.num_rows < threads * at_once) at_once /= 2;

  const int64_t by_threads = threads == 1 ? total : total * c.num_rows / (threads * kPerThread);
  const int64_t wanted = std::min(static_cast<int64_t>(piece_ns / group_ns), by_threads);
  c.cut_groups(total, std::max(wanted / at_once, int64_t{1}) * at_once);
  while (c.pieces() < threads * kPerThread && c.rows / 2 >= pace.least) {
    c.cut_rows(m, 2 * c.num_rows, pace.step);
  }
  return c;
}

// The same for either half of a gated product. Pieces are some 128 columns wide, since each writes
// its part of a row, but for what it takes to keep all threads busy to the end.
PieceCut cut_half(const PackedSegment& s, int64_t cols, int64_t m, int threads, int64_t step) {
  constexpr int64_t kColumns = 128, kPerThread = 16;
  const int64_t group = s.kernel->group_rows, total = num_groups(*s.kernel, s.rows);
  const Pace pace = s.kernel->pace(m, takes_tiles(*s.kernel, cols, m));
  const int64_t least_groups = std::max(step / group, pace.at_once);
  const int64_t least_rows = std::max(pace.least, kGatedRows);
  PieceCut c;
  c.cut_rows(m, (m + pace.rows - 1) / pace.rows, pace.step);
  c.cut_groups(total, std::max(least_groups, kColumns / group));
  while (c.pieces() < threads * kPerThread) {
    if (c.groups / 2 >= least_groups) {
      c.cut_groups(total, c.groups / 2);
    } else if (c.rows / 2 >= least_rows) {
      c.cut_rows(m, 2 * c.num_rows, pace.step);
    } else {
      break;
    }
  }
  return c;
}

// Bytes of one 16-row tile of x.
int64_t tile_bytes(XTiles kind, int64_t cols) {
  if (kind == XTiles::super) return cols / kActSuper * kXSuperBytes;
  if (kind == XTiles::blocks) return x_block_tile_bytes(cols);
  return x_tile_bytes(kind == XTiles::bf16 ? 2 * cols : cols);
}

// The tile of rows [first, first + kXTileRows) of x, as far as there are.
void lay_out_tile(const RowQuantView& x, int64_t first, int64_t m, int8_t* tile) {
  const int64_t rows = std::min(kXTileRows, m - first);
  for (int64_t r = 0; r < rows; ++r) {
    const int8_t* from = x.q + (first + r) * x.cols;
    int8_t* to = tile + r * kXTileCols;
    int64_t k = 0;
    for (; k + kXTileCols <= x.cols; k += kXTileCols, to += kXTileRows * kXTileCols) {
      std::memcpy(to, from + k, kXTileCols);
    }
    if (k == x.cols) continue;
    const auto left = static_cast<size_t>(x.cols - k);
    std::memcpy(to, from + k, left);
    std::memset(to + left, 0, kXTileCols - left);
  }
}

// All of x in tiles, in `scratch`.
const int8_t* x_in_tiles(
    ThreadPool& pool, const Act& x, int64_t cols, int64_t m, XTiles kind, MatmulScratch& scratch) {
  const int64_t tiles = (m + kXTileRows - 1) / kXTileRows, bytes = tile_bytes(kind, cols);
  constexpr size_t kHugePage = size_t{2} << 20;
  const size_t size = (static_cast<size_t>(tiles * bytes) + kHugePage - 1) / kHugePage * kHugePage;
  if (scratch.tiles.bytes() < size) scratch.tiles = allocate_pages(size);
  auto* to = static_cast<int8_t*>(scratch.tiles.data());
  pool.for_each(tiles, [&](int64_t i, int) {
    const int64_t first = i * kXTileRows;
#if defined(__x86_64__)
    const int64_t rows = std::min(kXTileRows, m - first);
    if (kind == XTiles::bf16) {
      cpu::lay_out_tile_amx_bf16(x.f.row(first), x.f.stride, rows, cols, to + i * bytes);
      return;
    }
    if (kind == XTiles::super) {
      const int64_t at = first * cols;
      cpu::lay_out_tile_amx_super(x.s.q + at, x.s.scale + at / kActSuper, x.s.sum + at / kActSum,
                                  cols, rows, to + i * bytes);
      return;
    }
    if (kind == XTiles::blocks) {
      const int64_t at = first * cols;
      cpu::lay_out_tile_amx_blocks(x.q.q + at, x.q.scale + at / kActBlock, x.q.sum + at / kActBlock,
                                   cols, rows, to + i * bytes);
      return;
    }
#endif
    lay_out_tile(x.r, first, m, to + i * bytes);
  });
  return to;
}

}  // namespace

void ProductPiece::put_out_at(float* out) {
  const int64_t first = first_row();
  args.w = static_cast<const std::byte*>(args.w) +
           static_cast<size_t>(args.group_begin) * segment->group_bytes;
  args.group_end -= args.group_begin;
  args.group_begin = 0;
  args.rows = std::min(args.rows - first, args.group_end * segment->kernel->group_rows);
  if (args.bias) args.bias += first;
  args.out = out;
  args.out_stride = args.rows;
  args.all_rows = args.m;
}

ProductPieces::ProductPieces(const Act& x, const PackedWeight& w, int64_t m) : x_(x), w_(w), m_(m) {
  if (w.act & kActF32)
    CHECK(x.f.data && x.f.type == DType::f32 && x.f.cols == w.cols && x.f.rows >= m);
  if (w.act & kActQ8) CHECK(x.q.q && x.q.cols == w.cols && x.q.rows >= m);
  if (w.act & kActSuper8) CHECK(x.s.q && x.s.cols == w.cols && x.s.rows >= m);
  if (w.act & kActRow8) CHECK(x.r.q && x.r.cols == w.cols && x.r.rows >= m);
}

void ProductPieces::cut(int threads, bool tiled) {
  for (size_t i = 0; i < w_.segments.size(); ++i) {
    cuts_[i] = cut_segment(w_.segments[i], w_.cols, m_, threads, tiled);
    size_ += cuts_[i].pieces();
  }
}

bool ProductPieces::cut_gated(int threads, int64_t step) {
  constexpr int64_t kLeastPerThread = 3;
  if (w_.segments.size() != 2) return false;
  const PackedSegment &gate = w_.segments[0], &up = w_.segments[1];
  if (gate.kernel != up.kernel || gate.rows != up.rows) return false;
  const PieceCut c = cut_half(gate, w_.cols, m_, threads, step);
  if (c.groups * gate.kernel->group_rows % step != 0) return false;
  if (c.pieces() < kLeastPerThread * threads) return false;
  cuts_[0] = cuts_[1] = c;
  rows_at_once_ = takes_tiles(*gate.kernel, w_.cols, m_) ? kAnyRows : kGatedRows;
  size_ = 2 * c.pieces();
  return true;
}

void ProductPieces::lay_out_tiles(ThreadPool& pool, MatmulScratch& scratch) {
  for (const PackedSegment& s : w_.segments) {
    if (!takes_tiles(*s.kernel, w_.cols, m_)) continue;
    tiles_kind_ = s.kernel->x_tiles;
    tiles_ = x_in_tiles(pool, x_, w_.cols, m_, tiles_kind_, scratch);
    return;
  }
}

ProductPiece ProductPieces::operator[](int64_t piece) const {
  size_t i = 0;
  while (piece >= cuts_[i].pieces()) piece -= cuts_[i++].pieces();
  const PieceCut& cut = cuts_[i];
  const PackedSegment& s = w_.segments[i];
  ProductPiece p{&s, piece / cut.num_groups * cut.rows, {}};
  MatmulArgs& a = p.args;
  a.w = s.data;
  a.rows = s.rows;
  a.cols = w_.cols;
  a.group_begin = piece % cut.num_groups * cut.groups;
  a.group_end = std::min(a.group_begin + cut.groups, num_groups(*s.kernel, s.rows));
  a.m = std::min(cut.rows, m_ - p.m0);
  a.all_rows = m_;
  a.bias = w_.bias.empty() ? nullptr : w_.bias.data() + s.row_begin;
  give_rows(p);
  return p;
}

ProductPiece ProductPieces::rows_of(ProductPiece piece, int64_t first, int64_t m) const {
  piece.m0 += first;
  piece.args.m = m;
  give_rows(piece);
  return piece;
}

size_t ProductPieces::most_outputs() const {
  int64_t most = 0;
  for (size_t i = 0; i < w_.segments.size(); ++i)
    most = std::max(most, std::min(cuts_[i].rows, rows_at_once_) * cuts_[i].groups *
                              w_.segments[i].kernel->group_rows);
  return static_cast<size_t>(most);
}

void ProductPieces::give_rows(ProductPiece& p) const {
  const int64_t num32 = w_.cols / kActBlock;
  MatmulArgs& a = p.args;
  if (p.segment->kernel->act_needs & kActF32) {
    a.x = x_.f.row(p.m0);
    a.x_stride = x_.f.stride;
  }
  if (p.segment->kernel->act_needs & kActQ8) {
    a.q = x_.q.q + p.m0 * w_.cols;
    a.scale = x_.q.scale + p.m0 * num32;
    a.sum = x_.q.sum + p.m0 * num32;
  }
  if (p.segment->kernel->act_needs & kActSuper8) {
    a.q = x_.s.q + p.m0 * w_.cols;
    a.scale = x_.s.scale + p.m0 * (w_.cols / kActSuper);
    a.sum16 = x_.s.sum + p.m0 * (w_.cols / kActSum);
  }
  if (p.segment->kernel->act_needs & kActRow8) {
    a.q = x_.r.q + p.m0 * w_.cols;
    a.scale = x_.r.scale + p.m0;
    a.sum = x_.r.sum + p.m0;
  }
  if (tiles_ && tiles_kind_ == p.segment->kernel->x_tiles && p.m0 % kXTileRows == 0) {
    a.tiles = tiles_ + p.m0 / kXTileRows * tile_bytes(tiles_kind_, w_.cols);
  }
}

}  // namespace sluice
