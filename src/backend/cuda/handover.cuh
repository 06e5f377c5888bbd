// What blocks of wide.cu and wide_persistent.cu leave for each other in global memory.
#pragma once

#include <cstddef>
#include <cstdint>

namespace sluice::cuda {

// Memory by which a block hands over the sums of a tile that it began and another ends, or of some
// of its columns. Of one stream: kernels of two at a time would take each other's flags.
struct Handover {
  static constexpr int kFlags = 1024;
  static constexpr size_t kFlagBytes = kFlags * sizeof(uint32_t);

  void* sums = nullptr;
  int64_t bytes = 0;          // of them
  uint32_t* flags = nullptr;  // kFlagBytes, zero; zero again when a kernel has ended
};

}  // namespace sluice::cuda
