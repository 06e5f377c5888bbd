#include "backend/cpu/matmul/matmul_gated.h"

#include <algorithm>

#include "backend/cpu/matmul/matmul_pieces.h"
#include "backend/cpu/quantize.h"
#include "base/check.h"

namespace sluice {

namespace {

constexpr int64_t kLeastRows = 64;

// Columns in the blocks that `out` is quantised by. 0: it is wanted in f32 or by whole rows.
int64_t block_columns(const Act& out) {
  if (out.f.data || out.r.q) return 0;
  return out.s.q ? kActSuper : out.q.q ? kActBlock : 0;
}

// Computes a piece of gate and the same of up into `sums`, activates and quantises it.
void run_piece(const GatedProduct& p,
               const VectorKernels& kernels,
               ProductPiece gate,
               ProductPiece up,
               float* sums) {
  const int64_t first_col = gate.first_row();
  gate.put_out_at(sums);
  const int64_t rows = gate.args.m, cols = gate.args.rows;
  up.put_out_at(sums + rows * cols);
  gate.segment->kernel->run(gate.args);
  up.segment->kernel->run(up.args);
  for (int64_t r = 0; r < rows; ++r) {
    float* y = gate.args.out + r * cols;
    kernels.activate(p.activation, y, up.args.out + r * cols, cols, y);
    quantize_blocks(p.out, gate.m0 + r, first_col, y, cols);
  }
}

}  // namespace

bool matmul_gated(ThreadPool& pool,
                  const GatedProduct& p,
                  const VectorKernels& kernels,
                  MatmulScratch& scratch,
                  GatedScratch& own) {
  const int64_t m = p.out.rows(), step = block_columns(p.out);
  if (m < kLeastRows || step == 0) return false;
  ProductPieces pieces(p.x, p.w, m);
  if (!pieces.cut_gated(pool.size(), step)) return false;
  CHECK(!p.out.q.q || 2 * p.out.q.cols == p.w.rows);
  CHECK(!p.out.s.q || 2 * p.out.s.cols == p.w.rows);
  pieces.lay_out_tiles(pool, scratch);
  const size_t per_thread = 2 * pieces.most_outputs();
  const size_t bytes = static_cast<size_t>(pool.size()) * per_thread * sizeof(float);
  if (own.sums.bytes() < bytes) own.sums = allocate_pages(bytes);
  const int64_t num = pieces.size() / 2, at_once = pieces.rows_at_once();
  pool.for_each(num, [&](int64_t i, int worker) {
    float* sums = static_cast<float*>(own.sums.data()) + static_cast<size_t>(worker) * per_thread;
    const ProductPiece gate = pieces[i], up = pieces[num + i];
    for (int64_t first = 0; first < gate.args.m; first += at_once) {
      const int64_t rows = std::min(at_once, gate.args.m - first);
      run_piece(p, kernels, pieces.rows_of(gate, first, rows), pieces.rows_of(up, first, rows),
                sums);
    }
  });
  return true;
}

}  // namespace sluice
