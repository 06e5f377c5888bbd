#include "operator_new.h"

#include <malloc.h>

#include <algorithm>
#include <cstdlib>
#include <new>

namespace sluice::alloc {

std::atomic<bool> counting{false};
std::atomic<uint64_t> num_counted{0}, bytes_counted{0};
std::atomic<int64_t> fail_in{-1};
std::atomic<int64_t> num_failed{0};
thread_local bool may_fail = false;
thread_local size_t live_bytes = 0, peak_bytes = 0;

namespace {

// Neither is inlined: a compiler that sees malloc() in one operator and free() in another takes
// them for a mismatch.
[[gnu::noinline]] void* try_allocate(size_t size, size_t alignment) noexcept {
  if (may_fail && fail_in.load() >= 0 && fail_in.fetch_sub(1) == 0) {
    ++num_failed;
    return nullptr;
  }
  if (counting.load(std::memory_order_relaxed)) {
    num_counted.fetch_add(1, std::memory_order_relaxed);
    bytes_counted.fetch_add(size, std::memory_order_relaxed);
  }
  void* p = alignment == 0
                ? std::malloc(size == 0 ? 1 : size)
                : std::aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
  if (!p) return nullptr;
  live_bytes += malloc_usable_size(p);
  peak_bytes = std::max(peak_bytes, live_bytes);
  return p;
}

[[gnu::noinline]] void release(void* p) noexcept {
  if (p) live_bytes -= malloc_usable_size(p);
  std::free(p);
}

void* allocate(size_t size, size_t alignment) {
  if (void* p = try_allocate(size, alignment)) return p;
  throw std::bad_alloc();
}

}  // namespace
}  // namespace sluice::alloc

using sluice::alloc::allocate;
using sluice::alloc::release;
using sluice::alloc::try_allocate;

void* operator new(size_t n) { return allocate(n, 0); }
void* operator new[](size_t n) { return allocate(n, 0); }
void* operator new(size_t n, const std::nothrow_t&) noexcept { return try_allocate(n, 0); }
void* operator new[](size_t n, const std::nothrow_t&) noexcept { return try_allocate(n, 0); }
void* operator new(size_t n, std::align_val_t a) { return allocate(n, static_cast<size_t>(a)); }
void* operator new[](size_t n, std::align_val_t a) { return allocate(n, static_cast<size_t>(a)); }
void operator delete(void* p) noexcept { release(p); }
void operator delete[](void* p) noexcept { release(p); }
void operator delete(void* p, size_t) noexcept { release(p); }
void operator delete[](void* p, size_t) noexcept { release(p); }
void operator delete(void* p, std::align_val_t) noexcept { release(p); }
void operator delete[](void* p, std::align_val_t) noexcept { release(p); }
void operator delete(void* p, size_t, std::align_val_t) noexcept { release(p); }
void operator delete[](void* p, size_t, std::align_val_t) noexcept { release(p); }
