// Reads a whole small file.
#pragma once

#include <cstddef>
#include <string>

#include "base/result.h"

namespace sluice {

// Errors name the path: absent (404), empty, larger than `max` bytes, or a Git LFS pointer.
Result<std::string> read_whole_file(const std::string& path, size_t max);

}  // namespace sluice
