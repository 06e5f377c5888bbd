#include "backend/cpu/memory.h"

#include <sys/mman.h>

#include <cstdint>
#include <limits>
#include <new>

#include "backend/cpu/numa.h"

namespace sluice {

namespace {

constexpr size_t kHuge = size_t{2} << 20;
constexpr size_t kPage = 4096;
constexpr size_t kLarge = size_t{8} << 20;  // buffers from here on begin on small pages
// Of an arena. Only what is used becomes resident, the last huge page whole: chunks of 64 MB wasted
// 24 MB of Qwen2.5-1.5B's 869. What is larger than kOwn and finds no room has a mapping of its own.
constexpr size_t kChunk = size_t{256} << 20, kOwn = size_t{32} << 20;

size_t mapped_bytes(size_t bytes) {
  return bytes == 0 ? kPage : (bytes + kPage - 1) / kPage * kPage;
}

// `small` bytes at the start are left on small pages.
Buffer map_pages(size_t bytes, size_t small) {
  if (bytes > std::numeric_limits<size_t>::max() / 2) throw std::bad_alloc();
  size_t size = mapped_bytes(bytes);
  // Map enough for an aligned start, then give back what lies around it.
  void* map =
      mmap(nullptr, size + kHuge, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (map == MAP_FAILED) throw std::bad_alloc();
  auto begin = reinterpret_cast<uintptr_t>(map);
  uintptr_t aligned = (begin + kHuge - 1) / kHuge * kHuge;
  size_t before = aligned - begin, after = kHuge - before;
  if (before > 0) munmap(map, before);
  if (after > 0) munmap(reinterpret_cast<void*>(aligned + size), after);
  void* data = reinterpret_cast<void*>(aligned);
  // A last part that is smaller stays on small pages: sixty KV planes would waste a megabyte each.
  size_t huge = size / kHuge * kHuge;
  if (bytes >= kLarge && !memory_nodes().empty()) spread_over(memory_nodes(), data, size);
  if (huge > small) madvise(reinterpret_cast<void*>(aligned + small), huge - small, MADV_HUGEPAGE);
  return {data, bytes, [](void* p, size_t n) { munmap(p, mapped_bytes(n)); }};
}

}  // namespace

Buffer allocate_pages(size_t bytes) { return map_pages(bytes, bytes >= kLarge ? kHuge : 0); }

Buffer WeightArena::allocate(size_t bytes) {
  if (bytes == 0) return {};
  if (bytes > std::numeric_limits<size_t>::max() / 2) throw std::bad_alloc();
  size_t size = (bytes + kPage - 1) / kPage * kPage;
  auto no_free = [](void*, size_t) {};
  if (size > left_) {
    chunks_.push_back(map_pages(size > kOwn ? size : kChunk, 0));
    auto* data = static_cast<std::byte*>(chunks_.back().data());
    if (size > kOwn) return {data, bytes, no_free};
    at_ = data;
    left_ = kChunk;
  }
  Buffer b(at_, bytes, no_free);
  at_ += size;
  left_ -= size;
  return b;
}

}  // namespace sluice
