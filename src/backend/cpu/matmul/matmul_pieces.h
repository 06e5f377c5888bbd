// A product cut into pieces of work for the pool's threads, with x in the tiles that its kernels
// take. Lives on the stack of a function that computes the product, on the device thread.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/cpu/matmul/matmul.h"

namespace sluice {

inline constexpr size_t kMaxSegments = 8;  // of a fused weight; its pieces are on the stack

// How a segment is cut into pieces of work: `groups` groups by `rows` rows of x each.
struct PieceCut {
  int64_t groups = 0, rows = 0;
  int64_t num_groups = 0, num_rows = 0;  // pieces in each direction

  int64_t pieces() const { return num_groups * num_rows; }

  // About `num` pieces of the rows, each a multiple of `step`.
  void cut_rows(int64_t m, int64_t num, int64_t step) {
    rows = ((m + num - 1) / num + step - 1) / step * step;
    num_rows = (m + rows - 1) / rows;
  }
  // Pieces of `num` groups of a segment that has `total`.
  void cut_groups(int64_t total, int64_t num) {
    groups = num;
    num_groups = (total + num - 1) / num;
  }
};

struct ProductPiece {
  const PackedSegment* segment = nullptr;
  int64_t m0 = 0;   // first row of x
  MatmulArgs args;  // without out

  // Its first row of the segment.
  int64_t first_row() const { return args.group_begin * segment->kernel->group_rows; }
  // Makes the piece's groups a weight of their own with its output [m, args.rows] at `out`, which
  // stays in the caches.
  void put_out_at(float* out);
};

class ProductPieces {
 public:
  // The product of m rows of x, which must outlive this as w must. cut() or cut_gated() comes next.
  ProductPieces(const Act& x, const PackedWeight& w, int64_t m);

  // All segments. `tiled`: x may be laid out in tiles.
  void cut(int threads, bool tiled);
  // Gate and up, the halves of a gated product, into the same pieces: piece i of gate has the rows
  // and columns of piece size() / 2 + i of up, whole multiples of `step` columns. False: the halves
  // differ, or this gives the threads too little to do; nothing was done.
  bool cut_gated(int threads, int64_t step);

  // Lays x out once for all calls, for kernels that take it in tiles.
  void lay_out_tiles(ThreadPool& pool, MatmulScratch& scratch);

  int64_t size() const { return size_; }
  ProductPiece operator[](int64_t piece) const;
  // Rows [first, first + m) of a piece's rows of x.
  ProductPiece rows_of(ProductPiece piece, int64_t first, int64_t m) const;

  // Rows of x of a piece that are computed together, at most.
  int64_t rows_at_once() const { return rows_at_once_; }
  // Floats of their largest output.
  size_t most_outputs() const;

 private:
  void give_rows(ProductPiece& piece) const;

  const Act& x_;
  const PackedWeight& w_;
  int64_t m_, size_ = 0, rows_at_once_ = kAnyRows;
  const int8_t* tiles_ = nullptr;  // x once more
  XTiles tiles_kind_ = XTiles::none;
  PieceCut cuts_[kMaxSegments];
};

}  // namespace sluice
