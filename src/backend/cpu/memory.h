// Memory for weights, caches and workspaces. Any thread.
#pragma once

#include <cstddef>

#include "backend/backend.h"

namespace sluice {

// Zeroed pages that start at a multiple of 2 MB, on huge pages where the system grants them (from
// 2 MB on). Throws std::bad_alloc.
Buffer allocate_pages(size_t bytes);

}  // namespace sluice
