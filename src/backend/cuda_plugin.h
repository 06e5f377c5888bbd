// Finds and opens the CUDA backend, a shared object beside the program, so that one binary runs
// with and without it. Any thread.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "backend/cuda_weights.h"
#include "backend/device.h"
#include "base/result.h"

namespace sluice {

struct CudaOptions {
  int index = 0;                    // which GPU
  DType activations = DType::bf16;  // of activations and weights: bf16, f16, f32
  bool deterministic = false;       // bits of a row do not depend on the batch
  bool by_default = false;          // that only where it costs little: on GPUs with wgmma
  bool fuse_layers = true;          // few decodes of a small model run in one kernel
  // Decode rows read a common prefix once where that saves them so many positions; 0: never; none:
  // where it pays.
  std::optional<int64_t> least_shared = {};
  bool tune = true;             // time matrix products for sizes not seen before
  bool fp8_weights = false;     // the layers' matrices in e4m3 with a scale per row
  bool stored_weights = false;  // quantised formats stay as they are
  LoadQuant int8 = {};          // w8a8: the layers' matrices in int8 with a scale per row

  CudaTypes types() const {
    return {activations, fp8_weights, stored_weights, deterministic, int8};
  }
};

// Sizes of weights on a GPU, known without one.
std::unique_ptr<WeightStore> cuda_weight_sizes(const CudaTypes& types);

// Why there is none: no shared object, no driver, no such GPU.
Result<std::unique_ptr<Device>> open_cuda(const CudaOptions& options);

// Facts about the machine's NVIDIA GPUs that need no open device.
struct GpuFacts {
  bool expected = false;       // one is on the PCI bus, or a driver is loaded
  bool driver = false;         // its kernel part is loaded
  std::string driver_version;  // "570.86.15"; empty: unknown
  bool has_plugin = false;     // the shared object is there
  std::string plugin_error;    // why it does not load
  int num = 0;                 // GPUs that CUDA shows; below 0: its error, negated
  bool usable = false;         // open_cuda() would open one
  std::string why_not;         // why it would not open the first
};
// Loads the shared object only where a driver is.
GpuFacts find_gpu();

// The GPU with the most free memory of those that open_cuda() would open. None: there is at most
// one.
std::optional<int> freest_gpu();

// What the shared object exports as sluice_cuda(): checked by its version before use.
struct CudaExports {
  int version;
  int (*num_gpus)();  // below 0: CUDA's error, negated
  // Whether open() has kernels for it; false with the reason in `why`.
  bool (*usable)(int index, char* why, size_t why_bytes);
  size_t (*free_memory)(int index);  // 0: it cannot be asked
  // Null with a message in `error`.
  Device* (*open)(const CudaOptions& options, char* error, size_t error_bytes);
};
std::optional<int> freest_gpu(const CudaExports& plugin);
// Changed with anything that both sides see; sizes catch what was forgotten.
inline constexpr int kCudaPluginVersion =
    13 << 16 ^ static_cast<int>(sizeof(Act) << 8 ^ sizeof(KvLayer) << 4 ^ sizeof(BatchView));

}  // namespace sluice
