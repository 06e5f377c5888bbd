#include "backend/cpu/memory.h"

#include <sys/mman.h>

#include <cstdint>
#include <limits>
#include <new>

namespace sluice {

namespace {

constexpr size_t kHuge = size_t{2} << 20;
constexpr size_t kPage = 4096;

size_t mapped_bytes(size_t bytes) {
  size_t unit = bytes >= kHuge ? kHuge : kPage;
  return bytes == 0 ? kPage : (bytes + unit - 1) / unit * unit;
}

}  // namespace

Buffer allocate_pages(size_t bytes) {
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
  if (size >= kHuge) madvise(data, size, MADV_HUGEPAGE);
  return {data, bytes, [](void* p, size_t n) { munmap(p, mapped_bytes(n)); }};
}

}  // namespace sluice
