// Tiny models for the property tests, each on backends of one, two and three threads. Loaded when
// they are first asked for, and kept.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "backend/cuda_plugin.h"
#include "exec/split_executor.h"
#include "model/model.h"
#include "ref_device.h"
#include "tensor/checkpoint.h"

namespace sluice {

inline constexpr int kMaxThreads = 3;
inline constexpr size_t kSlotBytes = size_t{1} << 20;  // of a tiny layer's matrices on a device

// One model on backends of one, two and three threads.
struct Subject {
  std::string name;
  std::vector<std::unique_ptr<Checkpoint>> files;
  std::vector<std::unique_ptr<Backend>> backends;
  std::vector<std::unique_ptr<Model>> models;
  KvType kv;
  bool cuda = false;
  // In two parts: the first layers, on the CPU; `models` have the others.
  int host_layers = 0;
  std::vector<std::unique_ptr<Backend>> host_backends;
  std::vector<std::unique_ptr<Model>> host_models;
  // The same layers for prompts through the device; empty: all rows are the CPU's.
  std::vector<std::unique_ptr<RefDevice>> stream_devices;
  std::vector<std::unique_ptr<LayerStream>> streams;
};

// SLUICE_TEST_DEVICE=cuda
bool on_gpu();

using OpenFile = std::function<Result<std::unique_ptr<Checkpoint>>()>;
OpenFile golden_model(const std::string& name);  // of tests/golden/models
OpenFile tiny_q8();

// On the reference backend in f32, or on a GPU that chooses its products freely. With `host_layers`
// the first layers are the CPU's, and prompts run through the device in them.
Subject make_streamed(std::string name, const OpenFile& open, int host_layers, CudaOptions gpu);

std::vector<Subject>& subjects();

// Models in two parts, each with the whole.
struct SplitPair {
  Subject split, whole;
};
std::vector<SplitPair>& split_subjects();

}  // namespace sluice
