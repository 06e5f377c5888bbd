// Which GPUs this build has code for (SLUICE_CUDA_ARCHS), and what of it runs on the current one.
#pragma once

#include <string>

namespace sluice::cuda {

// Code for "90a" runs on 9.0 alone, code for "100" on 10.0 and later 10.x.
bool has_code_for(int major, int minor);
std::string archs();  // "90a, 100"
// Whether kernels with wgmma may run: the current device is a Hopper, and "90a" was compiled.
bool has_wgmma();

}  // namespace sluice::cuda
