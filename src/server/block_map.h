// The KV pool's blocks as text for the dashboard.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "core/scheduler.h"

namespace sluice {

// One letter per block by use (f free, c cached, o owned, s shared, p pending, r reserved), with a
// count where it repeats: "f120o3s" is 120 free, 3 owned, 1 shared block. With more blocks than
// cells, `scale` blocks make a cell; cells are separated by spaces and count their blocks by
// letter, "*N" repeats a cell: "f25*100 f20c4o" is 100 cells of 25 free blocks, then 20 free, 4
// cached, 1 owned.
std::string block_map(std::span<const BlockUse> blocks, size_t max_cells, size_t& scale);

}  // namespace sluice
