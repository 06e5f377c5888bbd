#include "backend/cpu/matmul.h"

#include <algorithm>

#include "base/check.h"
#include "tensor/formats/all.h"

namespace sluice {
namespace {

constexpr size_t kMaxSegments = 8;  // of a fused weight; matmul() plans them on the stack

size_t round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }

}  // namespace

PackedWeight pack_weight(ThreadPool& pool,
                         std::span<const WeightSegment> segments,
                         std::vector<float> bias,
                         std::span<const MatmulRow> table,
                         WeightArena* arena) {
  CHECK(!segments.empty() && segments.size() <= kMaxSegments);
  PackedWeight w;
  w.cols = segments[0].tensor->cols;
  size_t memory = 0;
  for (const WeightSegment& s : segments) {
    const TensorInfo& t = *s.tensor;
    CHECK(t.cols == w.cols && t.rows > 0);
    CHECK(s.data.size() == row_bytes(t.format, t.cols) * static_cast<size_t>(t.rows));
    PackedSegment p;
    p.kernel = &choose_matmul(t.format, t.rows, t.cols, table);
    p.row_begin = w.rows;
    p.rows = t.rows;
    if (p.kernel->in_place) {
      p.data = s.data.data();
      w.keeps_source = true;
      p.group_bytes = row_bytes(t.format, t.cols) *
                      static_cast<size_t>(std::min<int64_t>(p.kernel->group_rows, t.rows));
      w.bytes += s.data.size();
    } else {
      const size_t size = p.kernel->packed_bytes(t.rows, t.cols);
      p.group_bytes = size / static_cast<size_t>(num_groups(*p.kernel, t.rows));
      memory += round_up(size, 64);
      w.bytes += size;
    }
    w.act |= p.kernel->act_needs;
    w.rows += t.rows;
    w.segments.push_back(p);
  }
  CHECK(bias.empty() || static_cast<int64_t>(bias.size()) == w.rows);
  w.bias = std::move(bias);
  w.memory = arena ? arena->allocate(memory) : allocate_pages(memory);

  auto* at = static_cast<std::byte*>(w.memory.data());
  for (size_t i = 0; i < segments.size(); ++i) {
    PackedSegment& p = w.segments[i];
    if (p.kernel->in_place) continue;
    constexpr int64_t kStep = 8;  // groups
    const int64_t groups = num_groups(*p.kernel, p.rows);
    pool.for_each((groups + kStep - 1) / kStep, [&](int64_t step, int) {
      p.kernel->pack(segments[i].data.data(), p.rows, w.cols, at, step * kStep,
                     std::min(groups, (step + 1) * kStep));
    });
    p.data = at;
    at += round_up(p.group_bytes * static_cast<size_t>(groups), 64);
  }
  return w;
}

namespace {

// How a segment is cut into pieces of work: `groups` groups by `rows` rows of x each.
struct Cut {
  int64_t groups = 0, rows = 0;
  int64_t num_groups = 0, num_rows = 0;  // pieces in each direction

  int64_t pieces() const { return num_groups * num_rows; }
};

// Pieces of 20 to 100 µs, longer where there is much to do, but several per thread, and of as many
// groups as kernels take at once unless that would leave threads without work.
Cut cut_segment(const PackedSegment& s, int64_t cols, int64_t m, int threads) {
  constexpr double kShortest = 20e3, kLongest = 100e3;  // ns
  constexpr double kBytesPerNs = 12, kIntOpsPerNs = 250, kFloatOpsPerNs = 60;
  constexpr int64_t kPerThread = 3, kMinRows = 24;
  const int64_t total = num_groups(*s.kernel, s.rows);
  const double ops = 2.0 * static_cast<double>(s.kernel->group_rows * cols * m);
  const double rate = s.kernel->arith == Arith::int_block32 ? kIntOpsPerNs : kFloatOpsPerNs;
  const double group_ns = std::max(static_cast<double>(s.group_bytes) / kBytesPerNs, ops / rate);
  const double piece_ns =
      std::clamp(group_ns * static_cast<double>(total) / (16 * threads), kShortest, kLongest);
  int64_t at_once = m <= 2 ? 4 : 2;
  while (at_once > 1 && total < threads * at_once) at_once /= 2;

  Cut c;
  const int64_t by_threads = threads == 1 ? total : total / (threads * kPerThread);
  const int64_t wanted = std::min(static_cast<int64_t>(piece_ns / group_ns), by_threads);
  c.groups = std::max(wanted / at_once, int64_t{1}) * at_once;
  c.num_groups = (total + c.groups - 1) / c.groups;
  c.num_rows = 1;
  while (c.pieces() < threads * kPerThread && m / (c.num_rows * 2) >= kMinRows) c.num_rows *= 2;
  c.rows = (m + c.num_rows - 1) / c.num_rows;
  return c;
}

}  // namespace

void matmul(ThreadPool& pool, Tensor out, const Act& x, const PackedWeight& w) {
  const int64_t m = out.rows;
  CHECK(out.type == DType::f32 && out.cols == w.rows && out.stride >= w.rows);
  if (w.act & kActF32)
    CHECK(x.f.data && x.f.type == DType::f32 && x.f.cols == w.cols && x.f.rows >= m);
  if (w.act & kActQ8) CHECK(x.q.q && x.q.cols == w.cols && x.q.rows >= m);
  if (m == 0) return;

  Cut cuts[kMaxSegments];
  int64_t pieces = 0;
  for (size_t i = 0; i < w.segments.size(); ++i) {
    cuts[i] = cut_segment(w.segments[i], w.cols, m, pool.size());
    pieces += cuts[i].pieces();
  }
  const int64_t num32 = w.cols / kActBlock;
  pool.for_each(pieces, [&](int64_t piece, int) {
    size_t i = 0;
    while (piece >= cuts[i].pieces()) piece -= cuts[i++].pieces();
    const PackedSegment& s = w.segments[i];
    const Cut& cut = cuts[i];
    const int64_t m0 = piece / cut.num_groups * cut.rows;
    MatmulArgs a;
    a.w = s.data;
    a.rows = s.rows;
    a.cols = w.cols;
    a.group_begin = piece % cut.num_groups * cut.groups;
    a.group_end = std::min(a.group_begin + cut.groups, num_groups(*s.kernel, s.rows));
    a.m = std::min(cut.rows, m - m0);
    if (a.m <= 0) return;
    if (s.kernel->act_needs & kActF32) {
      a.x = x.f.row(m0);
      a.x_stride = x.f.stride;
    }
    if (s.kernel->act_needs & kActQ8) {
      a.q = x.q.q + m0 * w.cols;
      a.scale = x.q.scale + m0 * num32;
      a.sum = x.q.sum + m0 * num32;
    }
    a.out = out.row(m0) + s.row_begin;
    a.out_stride = out.stride;
    a.bias = w.bias.empty() ? nullptr : w.bias.data() + s.row_begin;
    s.kernel->run(a);
  });
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
