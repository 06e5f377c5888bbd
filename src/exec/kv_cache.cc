#include "exec/kv_cache.h"

namespace sluice {

KvCache::KvCache(
    Backend& backend, const ModelShape& shape, DType type, int num_blocks, int block_size) {
  size_t plane = static_cast<size_t>(num_blocks + 1) * static_cast<size_t>(shape.num_kv_heads) *
                 static_cast<size_t>(block_size) * static_cast<size_t>(shape.head_dim) *
                 dtype_bytes(type);
  plane = (plane + 4095) & ~size_t{4095};
  buffer_ = backend.allocate(plane * 2 * static_cast<size_t>(shape.num_layers));
  auto* at = static_cast<std::byte*>(buffer_.data());
  for (int l = 0; l < shape.num_layers; ++l, at += 2 * plane) {
    layers_.push_back({at, at + plane, type, block_size, shape.num_kv_heads, shape.head_dim});
  }
}

}  // namespace sluice
