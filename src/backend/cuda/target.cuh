// Which GPUs this build has code for (SLUICE_CUDA_ARCHS), and what of it runs on the current one.
#pragma once

#include <cstddef>
#include <string>

namespace sluice::cuda {

bool has_code_for(int major, int minor);  // cuda_archs.h
std::string archs();                      // "90a, 80-virtual"

// A GPU, and the code that runs there: PTX for 8.0 on a later GPU has what 8.0 has.
struct Target {
  int code = 0;           // architecture the kernels were compiled for: 80
  size_t shared = 0;      // bytes of shared memory that a block may have
  int num_sms = 0;        // multiprocessors
  bool clusters = false;  // of blocks
  bool overlap = false;   // kernels that start before the one before them ends
  bool wgmma = false;     // matrix instructions of a warpgroup
};
// The current device's; found once.
const Target& target();
inline bool has_wgmma() { return target().wgmma; }

}  // namespace sluice::cuda
