#include "backend/cpu/matmul/matmul.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <new>

#include "backend/cpu/features.h"
#include "backend/cpu/matmul/matmul_pieces.h"
#include "base/check.h"
#include "tensor/formats/all.h"

namespace sluice {
namespace {

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

void matmul(
    ThreadPool& pool, Tensor out, const Act& x, const PackedWeight& w, MatmulScratch& scratch) {
  CHECK(out.type == DType::f32 && out.cols == w.rows && out.stride >= w.rows);
  if (out.rows == 0) return;
  ProductPieces pieces(x, w, out.rows);
  pieces.cut(pool.size(), true);
  pieces.lay_out_tiles(pool, scratch);
  pool.for_each(pieces.size(), [&](int64_t i, int) {
    ProductPiece p = pieces[i];
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
  ProductPieces pieces(x, w, static_cast<int64_t>(m));
  pieces.cut(pool.size(), false);
  scratch.best.assign(threads * m, Best());
  const size_t per_thread = round_up(pieces.most_outputs(), 16);
  if (scratch.out.size() < threads * per_thread) scratch.out.resize(threads * per_thread);
  pool.for_each(pieces.size(), [&](int64_t i, int worker) {
    ProductPiece p = pieces[i];
    const int64_t first = p.first_row();
    p.put_out_at(scratch.out.data() + static_cast<size_t>(worker) * per_thread);
    const MatmulArgs& a = p.args;
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
