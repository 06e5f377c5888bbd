#include "exec/kv_cache.h"

namespace sluice {

KvCache::KvCache(
    Backend& backend, const ModelShape& shape, DType type, int num_blocks, int block_size) {
  size_t plane = static_cast<size_t>(num_blocks + 1) * static_cast<size_t>(shape.num_kv_heads) *
                 static_cast<size_t>(block_size) * static_cast<size_t>(shape.head_dim) *
                 dtype_bytes(type);
  auto add_plane = [&] {
    planes_.push_back(backend.allocate(plane));
    bytes_ += plane;
    return planes_.back().data();
  };
  for (int l = 0; l < shape.num_layers; ++l) {
    void* k = add_plane();
    void* v = add_plane();
    layers_.push_back({k, v, type, block_size, shape.num_kv_heads, shape.head_dim});
  }
}

}  // namespace sluice
