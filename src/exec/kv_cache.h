// The memory behind block ids: K and V of every layer. Owned by the executor.
#pragma once

#include <span>
#include <vector>

#include "backend/backend.h"
#include "exec/cache_groups.h"
#include "model/model.h"

namespace sluice {

struct KvCacheSize {
  KvType type;
  int num_blocks = 0, block_size = 16;  // usable blocks; one more, the null block, comes first
  int64_t table_len = 0;                // blocks of a table: a slot's tables lie behind each other
};

class KvCache {
 public:
  KvCache(Backend& backend,
          const ModelShape& shape,
          const CacheGroups& groups,
          const KvCacheSize& size);
  // Every layer keeps everything, in the one table of a slot.
  KvCache(Backend& backend, const ModelShape& shape, KvType type, int num_blocks, int block_size)
      : KvCache(
            backend, shape, one_cache_group(shape.num_layers), {type, num_blocks, block_size, 0}) {}

  std::span<const KvLayer> layers() const { return layers_; }
  // What a block consists of, each piece once: layers of different groups share planes.
  std::span<const KvLayer> planes() const { return planes_; }
  size_t bytes() const { return bytes_; }
  // What a cache of that size allocates: the null block is one more.
  static size_t bytes(const ModelShape& shape, const CacheGroups& groups, const KvCacheSize& size) {
    return bytes_per_block(shape, groups, size.type, size.block_size) *
           (static_cast<size_t>(size.num_blocks) + 1);
  }
  static size_t bytes_per_block(const ModelShape& shape,
                                const CacheGroups& groups,
                                KvType type,
                                int block_size);

 private:
  // One per plane and side: each begins on its own page, and blocks are given out from the lowest
  // on, so a cache that is little used touches little memory.
  std::vector<Buffer> buffers_;
  size_t bytes_ = 0;
  std::vector<KvLayer> planes_, layers_;
};

}  // namespace sluice
