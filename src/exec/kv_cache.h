// The memory behind block ids: K and V of every layer. Owned by the executor. Mapped in pages, a
// slot's blocks have addresses from the start, and memory as plans say.
#pragma once

#include <span>
#include <vector>

#include "backend/backend.h"
#include "core/step_plan.h"
#include "exec/cache_groups.h"
#include "model/model.h"

namespace sluice {

struct KvCacheSize {
  KvType type;
  int num_blocks = 0, block_size = 16;  // usable blocks; one more, the null block, comes first
  int64_t table_len = 0;                // blocks of a table: a slot's tables lie behind each other
  int num_pages = 0;                    // > 0: mapped, in so many pages of every cache group
  int num_slots = 0;                    // then, with table_len blocks each in every group
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

  // Maps and unmaps pages until each slot has as many as its op says. Pages that go from one slot
  // to another go back first. No step on its way uses what is unmapped.
  void set_pages(std::span<const PageOp> ops);
  // The slot behind the last is padding's: one page, the same in every plane.
  void map_padding();
  // The first block of the first slot, where they are mapped.
  int64_t first_block() const { return pages_ ? table_len_ : 0; }
  bool mapped() const { return pages_ != nullptr; }

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
  std::byte* page(std::byte* side, size_t slot, int group, size_t index) const {
    size_t region = slot * static_cast<size_t>(num_groups_) + static_cast<size_t>(group) + 1;
    return side + region * group_bytes_ + index * page_bytes_;
  }
  void for_regions(auto&& f) const {
    for (std::byte* side : sides_) {
      for (int g = 0; g < num_groups_; ++g) f(side, g);
    }
  }
  // One per plane and side: each begins on its own page, and blocks are given out from the lowest
  // on, so a cache that is little used touches little memory.
  std::vector<Buffer> buffers_;
  size_t bytes_ = 0;
  std::unique_ptr<PageMemory> pages_;
  std::vector<std::byte*> sides_;  // of every plane, k then v, where they are mapped
  std::vector<uint32_t> mapped_;   // pages, by slot
  size_t page_bytes_ = 0, group_bytes_ = 0;
  int num_groups_ = 1;
  int64_t table_len_ = 0;
  std::vector<KvLayer> planes_, layers_;
};

}  // namespace sluice
