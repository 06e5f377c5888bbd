// Weights and matmul on the CPU, for the CPU backend. Driven by the device thread; work is spread
// over its ThreadPool. Results do not depend on the number of threads, on M, or on the rest of the
// batch (matmul_table.h defines the arithmetic).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "backend/cpu/matmul/load_quant.h"
#include "backend/cpu/matmul/matmul_table.h"
#include "backend/cpu/memory.h"
#include "base/thread_pool.h"

namespace sluice {

// Rows [row_begin, row_begin + rows) of a weight: one tensor, one kernel.
struct PackedSegment {
  const MatmulRow* kernel = nullptr;
  const void* data = nullptr;  // in PackedWeight::memory, or the source's own bytes
  bool in_source = false;
  bool recoded = false;  // decoded and quantised at load (LoadQuant)
  size_t bytes = 0;      // read per pass
  int64_t row_begin = 0, rows = 0;
  size_t group_bytes = 0;  // read per group of kernel->group_rows rows
};

// A matrix [rows, cols] as the kernels want it. Immutable once packed; readable by any thread.
struct PackedWeight {
  int64_t rows = 0, cols = 0;
  uint8_t act = 0;            // ActNeeds of all segments
  size_t bytes = 0;           // read per pass
  bool keeps_source = false;  // some segment still points to the source's bytes
  std::vector<float> bias;    // empty, or [rows]
  std::vector<PackedSegment> segments;
  Buffer memory;  // of the segments that were repacked
};

struct PackOptions {
  std::span<const MatmulRow> table = matmul_rows();  // the kernels to choose from
  WeightArena* arena = nullptr;                      // where memory comes from, if there is one
  const LoadQuant* quant = nullptr;                  // null: every segment in its own format
};

// Kernels and sizes of the weight that pack_weight() would return. Allocates nothing and reads no
// segment's data.
PackedWeight plan_weight(std::span<const WeightSegment> segments, const PackOptions& options = {});

// Stacks the segments by rows, each in its own format or quantised. All have the same cols; data
// holds exactly the tensor's bytes, and is decoded a few rows at a time. Throws std::bad_alloc.
PackedWeight pack_weight(ThreadPool& pool,
                         std::span<const WeightSegment> segments,
                         std::vector<float> bias,
                         const PackOptions& options = {});

// Memory between calls of one thread: x as a kernel wants it. Grows to what was needed most.
struct MatmulScratch {
  Buffer tiles;
};

// out [m, w.rows] f32 = x [m, w.cols] · wᵀ + bias. out.stride may exceed w.rows; x must hold the
// forms that w.act asks for. Allocates nothing but `scratch`.
void matmul(
    ThreadPool& pool, Tensor out, const Act& x, const PackedWeight& w, MatmulScratch& scratch);

// What matmul_best works in; grows with the rows, then stays.
struct BestScratch {
  std::vector<Best> best;  // [threads, m]
  std::vector<float> out;  // a piece's output for each thread: it never leaves the core's caches
};

// best[i] = the largest of row i of that product, of which nothing else is kept.
void matmul_best(ThreadPool& pool,
                 const Act& x,
                 const PackedWeight& w,
                 std::span<Best> best,
                 BestScratch& scratch);

// Row `row` of the matrix, w.cols values, exactly as its format, or what quantising left, decodes.
void embed_row(const PackedWeight& w, int64_t row, float* out);

}  // namespace sluice
