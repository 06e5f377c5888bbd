// The memory behind block ids: K and V of every layer. Owned by the executor.
#pragma once

#include <span>
#include <vector>

#include "backend/backend.h"
#include "model/model.h"

namespace sluice {

class KvCache {
 public:
  // num_blocks usable blocks; one more, the null block, comes first.
  KvCache(Backend& backend, const ModelShape& shape, DType type, int num_blocks, int block_size);

  std::span<const KvLayer> layers() const { return layers_; }
  size_t bytes() const { return bytes_; }
  static size_t bytes_per_block(const ModelShape& shape, DType type, int block_size) {
    return shape.kv_bytes_per_token(type) * static_cast<size_t>(block_size);
  }

 private:
  // One per layer and side: each begins on its own page, and blocks are given out from the lowest
  // on, so a cache that is little used touches little memory.
  std::vector<Buffer> planes_;
  size_t bytes_ = 0;
  std::vector<KvLayer> layers_;
};

}  // namespace sluice
