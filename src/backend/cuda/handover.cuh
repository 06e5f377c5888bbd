// How blocks of wide.cu and wide_persistent.cu pass sums to each other through global memory.
#pragma once

#include <cstddef>
#include <cstdint>

namespace sluice::cuda {

// A block that has part of a tile's columns passes its sums to the block that completes the tile.
// Each stream has its own: kernels that run at once would take each other's flags.
struct Handover {
  static constexpr int kFlags = 1024;
  static constexpr size_t kFlagBytes = kFlags * sizeof(uint32_t);

  void* sums = nullptr;
  int64_t bytes = 0;          // of them
  uint32_t* flags = nullptr;  // kFlagBytes; zero before and after each kernel
};

}  // namespace sluice::cuda
