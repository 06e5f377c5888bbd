// Addresses that get memory page by page: a sequence's K and V lie in one piece, and take no more
// than their pages. Owned by a KV cache, on the thread that runs its steps.
#pragma once

#include <cstddef>
#include <memory>

namespace sluice {

class PageMemory {
 public:
  virtual ~PageMemory() = default;
  // Addresses for so many bytes, whole pages, with nothing behind them; they last as long as this.
  // Throws std::bad_alloc.
  virtual void* reserve(size_t bytes) = 0;
  // Memory behind `num` pages from `at` on, zeroed. Throws std::bad_alloc.
  virtual void map(void* at, size_t num) = 0;
  // Takes it away. Nothing on its way may use it.
  virtual void unmap(void* at, size_t num) = 0;
  // Puts the same page behind every address that this is called for: padding writes there.
  virtual void map_padding(void* at) = 0;
};

// Pages of the host's memory.
size_t host_page_bytes();
std::unique_ptr<PageMemory> host_page_memory();

// Size of a page on a GPU.
inline constexpr size_t kDevicePage = size_t{2} << 20;

}  // namespace sluice
