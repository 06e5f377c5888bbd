// Memory for weights, caches and workspaces. Any thread.
#pragma once

#include <cstddef>
#include <vector>

#include "backend/backend.h"

namespace sluice {

// Zeroed pages that start at a multiple of 2 MB, on huge pages where the system grants them (from
// 2 MB on). The first 2 MB of a large buffer stay on small pages: a KV plane of which little is
// used then costs little to touch. Large buffers are spread over the memory of several nodes
// (numa.h). Throws std::bad_alloc.
Buffer allocate_pages(size_t bytes);

// Many weights in few mappings, so that a small matrix takes no huge page of its own (SmolLM2: 97
// MB of weights instead of 240). Memory goes back with the arena; buffers do not outlive it. One
// thread.
class WeightArena {
 public:
  // Zeroed, on a page boundary. Throws std::bad_alloc.
  Buffer allocate(size_t bytes);

 private:
  std::vector<Buffer> chunks_;
  std::byte* at_ = nullptr;
  size_t left_ = 0;
};

}  // namespace sluice
