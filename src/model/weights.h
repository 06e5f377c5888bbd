// Loads named tensors and checks their shapes. After the first failure every call returns an empty
// value, and error() says what was wrong.
#pragma once

#include <string>
#include <vector>

#include "backend/backend.h"
#include "model/model.h"
#include "tensor/checkpoint.h"

namespace sluice {

// One matmul's worth of output columns, in one weight (fused) or several.
struct Projection {
  std::vector<Weight> parts;
  uint8_t act() const {
    uint8_t needs = 0;
    for (const Weight& w : parts) needs |= w.act;
    return needs;
  }
};

// A norm's weights on the device; empty where the family has none.
struct DeviceVector {
  Buffer buffer;
  size_t size = 0;
  bool empty() const { return size == 0; }
  const float* data() const { return static_cast<const float*>(buffer.data()); }  // null if empty
};

struct TensorPart {
  std::string name;  // "blk.0.attn_q" + ".weight" or ".bias"
  int64_t rows;
};

class WeightLoader {
 public:
  // Of headers alone it loads weights without data: their sizes are those of a whole file.
  WeightLoader(const ModelSource& source, WeightStore& store, const LoadOptions& options);

  bool has(const std::string& name) const { return headers_.find(name) != nullptr; }
  DeviceVector vector(const std::string& name, int64_t size);
  Weight matrix(const std::string& name, int64_t rows, int64_t cols, bool bias = false);
  // Parts stacked by rows into one weight, or kept apart when options.fuse is off.
  Projection projection(const std::vector<TensorPart>& parts, int64_t cols, bool bias);

  bool ok() const { return error_.empty(); }
  Error error() const { return {400, error_}; }
  size_t weight_bytes() const { return weight_bytes_; }  // of all that was loaded

 private:
  std::vector<float> host_vector(const std::string& name, int64_t size);
  const TensorInfo* expect(const std::string& name, int64_t rows, int64_t cols);
  Weight load(const std::vector<TensorPart>& parts, int64_t cols, bool bias);
  void loaded(const TensorInfo& tensor, bool release);

  const Checkpoint& headers_;
  Checkpoint* data_;  // null: sizes only
  WeightStore& store_;
  const LoadOptions& options_;
  size_t total_bytes_ = 0, done_bytes_ = 0, weight_bytes_ = 0;
  std::string error_;
};

}  // namespace sluice
