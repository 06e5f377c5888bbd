// The kernels of `bench kernels` with operands in memory, called one at a time. Used by the thread
// that runs the pool.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "backend/cpu/matmul/matmul.h"
#include "backend/cpu/memory.h"
#include "backend/cpu/peak.h"
#include "exec/kv_cache.h"
#include "model/model.h"

namespace sluice {

// One kernel on one shape. Each call works on memory that was last used a whole rotation ago.
class KernelCase {
 public:
  virtual ~KernelCase() = default;
  virtual void run(int m) = 0;
  // What a call must read and compute at least: weights or K and V once; two per multiply-add.
  virtual double bytes(int m) const = 0;
  virtual double ops(int m) const = 0;
};

// Memory that cases fill with copies of their weights, one case at a time.
class Rotation {
 public:
  explicit Rotation(size_t bytes) : bytes_(bytes) {}
  size_t bytes() const { return bytes_; }
  // As many places of `size` bytes as the rotation holds, at least one. What was there is lost.
  std::vector<std::byte*> places(size_t size);

 private:
  size_t bytes_;
  Buffer memory_;
};

struct MatmulCaseSpec {
  const MatmulRow* row;
  int64_t rows, cols;  // of the weight; cols are rounded up to whole blocks
  int max_m;
};
std::unique_ptr<KernelCase> make_matmul_case(ThreadPool& pool,
                                             Rotation& rotation,
                                             const MatmulCaseSpec& spec);

// Paged attention over one layer's cache. decode > 0: m sequences of one query each behind
// that many positions; 0: one prompt of m queries.
struct AttentionCaseSpec {
  ModelShape shape;
  KvType kv;
  int decode = 0;
  int max_m;
};
std::unique_ptr<KernelCase> make_attention_case(Backend& backend,
                                                size_t rotation_bytes,
                                                const AttentionCaseSpec& spec);

// A layer's operations on rows, for m sequences of one token each: two norms with their sums, the
// rotation and storing of K and V, the activation. They write the forms of activations (ActNeeds)
// that products read.
struct RowOpsCaseSpec {
  ModelShape shape;
  uint8_t acts;
  int max_m;
};
std::unique_ptr<KernelCase> make_row_ops_case(Backend& backend, const RowOpsCaseSpec& spec);

// The shape of one layer that keeps all positions.
ModelShape one_layer(ModelShape shape);

// What a row's arithmetic is made of, and the peaks that limit it: of the instructions it may use,
// and of all that this CPU has. Null where there is none.
PeakType row_type(const MatmulRow& row);
const PeakRow* own_peak(const MatmulRow& row);
// All of this CPU for that type, the fastest first as a rule.
std::vector<const PeakRow*> usable_peaks(PeakType type);

}  // namespace sluice
