#include "exec/kv_cache.h"

#include "base/check.h"

namespace sluice {

size_t KvCache::bytes_per_block(const ModelShape& shape,
                                const CacheGroups& groups,
                                KvType type,
                                int block_size) {
  return static_cast<size_t>(groups.num_planes) * 2 * static_cast<size_t>(shape.num_kv_heads) *
         type.head_bytes(shape.head_dim, block_size);
}

KvCache::KvCache(Backend& backend,
                 const ModelShape& shape,
                 const CacheGroups& groups,
                 const KvCacheSize& size) {
  CHECK(static_cast<int>(groups.layers.size()) == shape.num_layers);
  size_t side = bytes(shape, groups, size) / (2 * static_cast<size_t>(groups.num_planes));
  auto add_side = [&] {
    buffers_.push_back(backend.allocate(side));
    bytes_ += side;
    return buffers_.back().data();
  };
  for (int p = 0; p < groups.num_planes; ++p) {
    void* k = add_side();
    void* v = add_side();
    planes_.push_back({k, v, size.type.type, size.block_size, shape.num_kv_heads, shape.head_dim, 0,
                       size.type.group});
  }
  for (const CacheGroups::Place& place : groups.layers) {
    layers_.push_back(planes_[static_cast<size_t>(place.plane)]);
    layers_.back().table_at = place.group * size.table_len;
  }
}

}  // namespace sluice
