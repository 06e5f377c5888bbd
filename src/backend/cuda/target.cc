#include "backend/cuda/target.cuh"

#include <cuda_runtime.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <sstream>
#include <string_view>

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
  static std::array<std::atomic<int>, 64> known{};  // by device: 0 unknown, 1 no, 2 yes
  int device = 0;
  check(cudaGetDevice(&device), "device");
  size_t at = std::min(static_cast<size_t>(device), known.size() - 1);
  if (known[at] == 0 || at + 1 == known.size()) {
    int major = 0, minor = 0;
    check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), "device");
    check(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device), "device");
    known[at] = major == 9 && minor == 0 ? 2 : 1;
  }
  return known[at] == 2;
}

}  // namespace sluice::cuda
