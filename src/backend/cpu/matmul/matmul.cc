#include "backend/cpu/matmul/matmul.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <new>

#include "backend/cpu/features.h"
#include "backend/cpu/matmul/matmul_kernels.h"
#include "base/check.h"
#include "tensor/formats/all.h"

namespace sluice {
namespace {

constexpr size_t kMaxSegments = 8;  // of a fused weight; matmul() plans them on the stack

size_t round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }

WeightQuant quant_of(const TensorInfo& t, const LoadQuant* quant) {
  return quant ? quant->of(t) : WeightQuant::none;
}

// Bytes of the kernel's form of a tensor; its own bytes, or bytes in the kernel's format, in place.
size_t kernel_bytes(const MatmulRow& kernel, const TensorInfo& t) {
  return kernel.in_place ? row_bytes(kernel.fmt, t.cols) * static_cast<size_t>(t.rows)
                         : kernel.packed_bytes(t.rows, t.cols);
}

// Rows of any format to the kernel's form, a group at a time: decoded to f32, encoded to the format
// that the kernel packs. `dst` is the group's own.
void recode_group(const WeightSegment& s, const MatmulRow& kernel, int64_t group, std::byte* dst) {
  const TensorInfo& t = *s.tensor;
  const int64_t first = group * kernel.group_rows;
  const int64_t rows = std::min<int64_t>(kernel.group_rows, t.rows - first);
  std::vector<float> values(static_cast<size_t>(rows * t.cols));
  const size_t from = row_bytes(t.format, t.cols) * static_cast<size_t>(first);
  format_info(t.format).decode(s.data.data() + from, values.data(), rows * t.cols);
  if (kernel.fmt == Format::f32) {
    kernel.pack({values.data(), rows, t.cols, dst, 0, 1});
    return;
  }
  if (kernel.in_place) {
    format_info(kernel.fmt).encode(values.data(), dst, rows * t.cols);
    return;
  }
  std::vector<std::byte> codes(row_bytes(kernel.fmt, t.cols) * static_cast<size_t>(rows));
  format_info(kernel.fmt).encode(values.data(), codes.data(), rows * t.cols);
  kernel.pack({codes.data(), rows, t.cols, dst, 0, 1});
}

}  // namespace

PackedWeight plan_weight(std::span<const WeightSegment> segments, const PackOptions& options) {
  CHECK(!segments.empty() && segments.size() <= kMaxSegments);
  PackedWeight w;
  w.cols = segments[0].tensor->cols;
  for (const WeightSegment& s : segments) {
    const TensorInfo& t = *s.tensor;
    CHECK(t.cols == w.cols && t.rows > 0);
    PackedSegment p;
    const WeightQuant quant = quant_of(t, options.quant);
    p.kernel = &choose_matmul(t, quant, options.table);
    p.row_begin = w.rows;
    p.rows = t.rows;
    p.bytes = kernel_bytes(*p.kernel, t);
    if (p.kernel->in_place) {
      p.group_bytes = row_bytes(p.kernel->fmt, t.cols) *
                      static_cast<size_t>(std::min<int64_t>(p.kernel->group_rows, t.rows));
    } else {
      p.group_bytes = p.bytes / static_cast<size_t>(num_groups(*p.kernel, t.rows));
    }
    p.recoded = quant != WeightQuant::none;
    p.in_source = p.kernel->in_place && !p.recoded;
    w.keeps_source |= p.in_source;
    w.bytes += p.bytes;
    w.act |= p.kernel->act_needs;
    w.rows += t.rows;
    w.segments.push_back(p);
  }
  return w;
}

namespace {

// Packs one segment into `to`, spread over the pool's threads.
void pack_segment(ThreadPool& pool, const WeightSegment& s, const PackedSegment& p, std::byte* to) {
  constexpr int64_t kStep = 8;  // groups
  const int64_t groups = num_groups(*p.kernel, p.rows);
  std::atomic<bool> out_of_memory = false;  // the pool's threads must not throw
  pool.for_each((groups + kStep - 1) / kStep, [&](int64_t step, int) {
    const int64_t begin = step * kStep, end = std::min(groups, begin + kStep);
    try {
      if (!p.recoded) {
        p.kernel->pack({s.data.data(), p.rows, s.tensor->cols, to, begin, end});
        return;
      }
      for (int64_t g = begin; g < end; ++g) {
        recode_group(s, *p.kernel, g, to + static_cast<size_t>(g) * p.group_bytes);
      }
    } catch (const std::bad_alloc&) {
      out_of_memory = true;
    }
  });
  if (out_of_memory) throw std::bad_alloc();
}

}  // namespace

PackedWeight pack_weight(ThreadPool& pool,
                         std::span<const WeightSegment> segments,
                         std::vector<float> bias,
                         const PackOptions& options) {
  PackedWeight w = plan_weight(segments, options);
  size_t memory = 0;
  for (size_t i = 0; i < segments.size(); ++i) {
    CHECK(segments[i].data.size() ==
          row_bytes(segments[i].tensor->format, w.cols) * static_cast<size_t>(w.segments[i].rows));
    if (!w.segments[i].in_source) memory += round_up(w.segments[i].bytes, 64);
  }
  CHECK(bias.empty() || static_cast<int64_t>(bias.size()) == w.rows);
  w.bias = std::move(bias);
  w.memory = options.arena ? options.arena->allocate(memory) : allocate_pages(memory);

  auto* at = static_cast<std::byte*>(w.memory.data());
  for (size_t i = 0; i < segments.size(); ++i) {
    PackedSegment& p = w.segments[i];
    if (p.in_source) {
      p.data = segments[i].data.data();
      continue;
    }
    pack_segment(pool, segments[i], p, at);
    p.data = at;
    at += round_up(p.bytes, 64);
  }
  return w;
}

namespace {

// How a segment is cut into pieces of work: `groups` groups by `rows` rows of x each.
struct Cut {
  int64_t groups = 0, rows = 0;
  int64_t num_groups = 0, num_rows = 0;  // pieces in each direction

  int64_t pieces() const { return num_groups * num_rows; }

  // About `num` pieces of the rows, each a multiple of `step`.
  void cut_rows(int64_t m, int64_t num, int64_t step) {
    rows = ((m + num - 1) / num + step - 1) / step * step;
    num_rows = (m + rows - 1) / rows;
  }
};

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
Cut cut_segment(const PackedSegment& s, int64_t cols, int64_t m, int threads, bool tiled) {
  constexpr double kShortest = 20e3, kLongest = 100e3;  // ns
  constexpr double kBytesPerNs = 12;
  constexpr int64_t kPerThread = 3;
  const int64_t total = num_groups(*s.kernel, s.rows);
  const Pace pace = s.kernel->pace(m, tiled && takes_tiles(*s.kernel, cols, m));
  Cut c;
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
  c.groups = std::max(wanted / at_once, int64_t{1}) * at_once;
  c.num_groups = (total + c.groups - 1) / c.groups;
  while (c.pieces() < threads * kPerThread && c.rows / 2 >= pace.least) {
    c.cut_rows(m, 2 * c.num_rows, pace.step);
  }
  return c;
}

// Bytes of one 16-row tile of x.
int64_t tile_bytes(XTiles kind, int64_t cols) {
  if (kind == XTiles::super) return cols / kActSuper * kXSuperBytes;
  if (kind == XTiles::blocks) return x_block_tile_bytes(cols);
  return x_tile_bytes(kind == XTiles::bf16 ? 2 * cols : cols);
}

// A product as pieces of work. Lives on the stack of matmul() and matmul_best().
class Pieces {
 public:
  Pieces(const Act& x, const PackedWeight& w, int64_t m, int threads, bool tiled)
      : x_(x), w_(w), m_(m) {
    if (w.act & kActF32)
      CHECK(x.f.data && x.f.type == DType::f32 && x.f.cols == w.cols && x.f.rows >= m);
    if (w.act & kActQ8) CHECK(x.q.q && x.q.cols == w.cols && x.q.rows >= m);
    if (w.act & kActSuper8) CHECK(x.s.q && x.s.cols == w.cols && x.s.rows >= m);
    if (w.act & kActRow8) CHECK(x.r.q && x.r.cols == w.cols && x.r.rows >= m);
    for (size_t i = 0; i < w.segments.size(); ++i) {
      cuts_[i] = cut_segment(w.segments[i], w.cols, m, threads, tiled);
      size_ += cuts_[i].pieces();
    }
  }

  // x once more for kernels that take these tiles, as lay_out_tiles left it.
  void use_tiles(const int8_t* tiles, XTiles kind) {
    tiles_ = tiles;
    tiles_kind_ = kind;
  }

  struct Piece {
    const PackedSegment* segment = nullptr;
    int64_t m0 = 0;   // first row of x
    MatmulArgs args;  // without out
  };

  int64_t size() const { return size_; }

  Piece operator[](int64_t piece) const {
    size_t i = 0;
    while (piece >= cuts_[i].pieces()) piece -= cuts_[i++].pieces();
    const Cut& cut = cuts_[i];
    const PackedSegment& s = w_.segments[i];
    Piece p{&s, piece / cut.num_groups * cut.rows, {}};
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

  // Floats of the largest piece's output.
  size_t most_outputs() const {
    int64_t most = 0;
    for (size_t i = 0; i < w_.segments.size(); ++i)
      most = std::max(most, cuts_[i].rows * cuts_[i].groups * w_.segments[i].kernel->group_rows);
    return static_cast<size_t>(most);
  }

 private:
  void give_rows(Piece& p) const {
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

  const Act& x_;
  const PackedWeight& w_;
  int64_t m_, size_ = 0;
  const int8_t* tiles_ = nullptr;
  XTiles tiles_kind_ = XTiles::none;
  Cut cuts_[kMaxSegments];
};

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

const int8_t* lay_out_tiles(
    ThreadPool& pool, const Act& x, int64_t cols, int64_t m, XTiles kind, MatmulScratch& scratch) {
  const int64_t tiles = (m + kXTileRows - 1) / kXTileRows, bytes = tile_bytes(kind, cols);
  const auto size = round_up(static_cast<size_t>(tiles * bytes), size_t{2} << 20);  // huge pages
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

void matmul(
    ThreadPool& pool, Tensor out, const Act& x, const PackedWeight& w, MatmulScratch& scratch) {
  CHECK(out.type == DType::f32 && out.cols == w.rows && out.stride >= w.rows);
  if (out.rows == 0) return;
  Pieces pieces(x, w, out.rows, pool.size(), true);
  for (const PackedSegment& s : w.segments) {
    if (!takes_tiles(*s.kernel, w.cols, out.rows)) continue;
    const XTiles kind = s.kernel->x_tiles;
    pieces.use_tiles(lay_out_tiles(pool, x, w.cols, out.rows, kind, scratch), kind);
    break;
  }
  pool.for_each(pieces.size(), [&](int64_t i, int) {
    Pieces::Piece p = pieces[i];
    p.args.out = out.row(p.m0) + p.segment->row_begin;
    p.args.out_stride = out.stride;
    p.segment->kernel->run(p.args);
  });
}

void matmul_best(ThreadPool& pool,
                 const Act& x,
                 const PackedWeight& w,
                 std::span<Best> best,
                 BestScratch& scratch) {
  const size_t m = best.size(), threads = static_cast<size_t>(pool.size());
  if (m == 0) return;
  const Pieces pieces(x, w, static_cast<int64_t>(m), pool.size(), false);
  scratch.best.assign(threads * m, Best());
  const size_t per_thread = round_up(pieces.most_outputs(), 16);
  if (scratch.out.size() < threads * per_thread) scratch.out.resize(threads * per_thread);
  pool.for_each(pieces.size(), [&](int64_t i, int worker) {
    Pieces::Piece p = pieces[i];
    MatmulArgs& a = p.args;
    // The piece's groups as a weight of their own, so that its output begins at 0.
    const int64_t first = a.group_begin * p.segment->kernel->group_rows;
    a.w = static_cast<const std::byte*>(a.w) +
          static_cast<size_t>(a.group_begin) * p.segment->group_bytes;
    a.group_end -= a.group_begin;
    a.group_begin = 0;
    a.rows = std::min(a.rows - first, a.group_end * p.segment->kernel->group_rows);
    if (a.bias) a.bias += first;
    a.out = scratch.out.data() + static_cast<size_t>(worker) * per_thread;
    a.out_stride = a.rows;
    p.segment->kernel->run(a);
    for (int64_t r = 0; r < a.m; ++r) {
      Best& b = scratch.best[static_cast<size_t>(worker) * m + static_cast<size_t>(p.m0 + r)];
      b = better(b, a.out + r * a.out_stride, a.rows, p.segment->row_begin + first);
    }
  });
  for (size_t i = 0; i < m; ++i) {
    best[i] = scratch.best[i];
    for (size_t t = 1; t < threads; ++t) {
      const Best& b = scratch.best[t * m + i];
      if (b.beats(best[i])) best[i] = b;
    }
  }
}

void embed_row(const PackedWeight& w, int64_t row, float* out) {
  CHECK(row >= 0 && row < w.rows);
  for (const PackedSegment& s : w.segments) {
    if (row < s.row_begin + s.rows) {
      s.kernel->decode_row(s.data, s.rows, w.cols, row - s.row_begin, out);
      return;
    }
  }
}

}  // namespace sluice
