#include "backend/cuda/target.cuh"

#include <cuda_runtime.h>

#include <charconv>
#include <cstdlib>
#include <mutex>
#include <string_view>

#include "backend/cuda/arch.cuh"
#include "backend/cuda/check.cuh"
#include "backend/cuda_archs.h"

namespace sluice::cuda {

namespace {

// Its attributes tell which of the build's codes the driver took.
__global__ void probe_kernel() {}

// For tests: SLUICE_CUDA_SHARED=99 lets blocks have no more KB than that.
size_t shared_limit(size_t device_has) {
  const char* text = std::getenv("SLUICE_CUDA_SHARED");
  if (!text || !*text) return device_has;
  const std::string_view view(text);
  size_t kb = 0;
  auto [end, failed] = std::from_chars(view.data(), view.data() + view.size(), kb);
  if (failed != std::errc() || end != view.data() + view.size() || kb < kLeastShared / 1024)
    throw std::runtime_error("SLUICE_CUDA_SHARED=" + std::string(view) +
                             ": must be a number of KB, 99 or more");
  return kb < device_has / 1024 ? kb * 1024 : device_has;
}

Target find_target(int device) {
  constexpr size_t kWgmmaShared = 225 * 1024;  // what kernels with wgmma take
  auto attribute = [&](cudaDeviceAttr what) {
    int value = 0;
    check(cudaDeviceGetAttribute(&value, what, device), "device");
    return value;
  };
  const int capability = attribute(cudaDevAttrComputeCapabilityMajor) * 10 +
                         attribute(cudaDevAttrComputeCapabilityMinor);
  cudaFuncAttributes code{};
  check(cudaFuncGetAttributes(&code, probe_kernel), "code for this GPU");
  Target t;
  t.code = code.ptxVersion;
  t.shared = shared_limit(static_cast<size_t>(attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin)));
  t.num_sms = attribute(cudaDevAttrMultiProcessorCount);
  t.clusters = t.overlap = t.code >= 90;
  t.wgmma = capability == 90 && t.code == 90 && t.shared >= kWgmmaShared &&
            has_arch(SLUICE_CUDA_ARCHS, "90a");
  return t;
}

}  // namespace

bool has_code_for(int major, int minor) { return arch_runs_on(SLUICE_CUDA_ARCHS, major, minor); }

std::string archs() {
  std::string list;
  for (const char* p = SLUICE_CUDA_ARCHS; *p; ++p) list += *p == ' ' ? ", " : std::string(1, *p);
  return list;
}

const Target& target() {
  constexpr int kDevices = 64;
  static Target found[kDevices];
  static std::once_flag once[kDevices];
  int device = 0;
  check(cudaGetDevice(&device), "device");
  if (device >= kDevices) throw std::runtime_error("CUDA: a process sees up to 64 GPUs");
  std::call_once(once[device], [&] { found[device] = find_target(device); });
  return found[device];
}

}  // namespace sluice::cuda
