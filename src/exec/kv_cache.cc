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
  if (size.num_pages > 0) {
    page_bytes_ = backend.page_bytes();
    group_bytes_ = static_cast<size_t>(size.table_len) *
                   (bytes_per_block(shape, groups, size.type, size.block_size) /
                    (2 * static_cast<size_t>(groups.num_planes)));
    CHECK(group_bytes_ % page_bytes_ == 0);
    auto num = static_cast<size_t>(size.num_pages) * 2 * static_cast<size_t>(groups.num_planes) *
               static_cast<size_t>(groups.num_groups());
    pages_ = backend.page_memory(num);
    bytes_ = num * page_bytes_;
    mapped_.resize(static_cast<size_t>(size.num_slots));
  }
  size_t side = bytes(shape, groups, size) / (2 * static_cast<size_t>(groups.num_planes));
  num_groups_ = groups.num_groups();
  table_len_ = size.table_len;
  auto add_side = [&]() -> void* {
    if (pages_) {
      // The block ids of the first region are nobody's, the null block is among them; behind the
      // last slot comes padding's.
      auto regions = static_cast<size_t>((size.num_slots + 1) * num_groups_ + 1);
      sides_.push_back(static_cast<std::byte*>(pages_->reserve(regions * group_bytes_)));
      return sides_.back();
    }
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

void KvCache::set_pages(std::span<const PageOp> ops) {
  for (const PageOp& op : ops) {
    uint32_t& has = mapped_.at(op.slot);
    if (op.num_pages >= has) continue;
    for_regions([&](std::byte* side, int g) {
      pages_->unmap(page(side, op.slot, g, op.num_pages), has - op.num_pages);
    });
    has = op.num_pages;
  }
  for (const PageOp& op : ops) {
    uint32_t& has = mapped_.at(op.slot);
    if (op.num_pages <= has) continue;
    CHECK(op.num_pages * page_bytes_ <= group_bytes_);
    for_regions([&](std::byte* side, int g) {
      pages_->map(page(side, op.slot, g, has), op.num_pages - has);
    });
    has = op.num_pages;
  }
}

void KvCache::map_padding() {
  for_regions(
      [&](std::byte* side, int g) { pages_->map_padding(page(side, mapped_.size(), g, 0)); });
}

}  // namespace sluice
