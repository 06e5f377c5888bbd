#include "backend/cuda/target.cuh"

#include <cuda_runtime.h>

#include <cstdlib>
#include <sstream>

#include "backend/cuda/check.cuh"

namespace sluice::cuda {

namespace {

// f(number, whether it is of one device only) for each, until one says true.
template <typename F>
bool any_arch(F&& f) {
  std::istringstream list(SLUICE_CUDA_ARCHS);
  for (std::string arch; list >> arch;) {
    if (f(std::atoi(arch.c_str()), arch.back() == 'a')) return true;
  }
  return false;
}

}  // namespace

bool has_code_for(int major, int minor) {
  return any_arch([&](int arch, bool exact) {
    return arch / 10 == major && (exact ? arch % 10 == minor : arch % 10 <= minor);
  });
}

std::string archs() {
  std::string list;
  std::istringstream in(SLUICE_CUDA_ARCHS);
  for (std::string arch; in >> arch;) list += (list.empty() ? "" : ", ") + arch;
  return list;
}

bool has_wgmma() {
  static const bool compiled = any_arch([](int arch, bool exact) { return arch == 90 && exact; });
  if (!compiled) return false;
  int device = 0, major = 0, minor = 0;
  check(cudaGetDevice(&device), "device");
  check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), "device");
  check(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device), "device");
  return major == 9 && minor == 0;
}

}  // namespace sluice::cuda
