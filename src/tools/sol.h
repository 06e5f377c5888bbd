// The speed of light: how fast a model could be at best on a device with so much memory, bandwidth
// and arithmetic, from the model's headers. Pure functions, and the command.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "core/step_load.h"
#include "model/model.h"
#include "tensor/checkpoint.h"

namespace sluice {

// Nominal figures, not checked against data sheets: dense, bf16 or f16 with sums in f32.
struct SolDevice {
  const char* name;
  double memory;     // bytes
  double bandwidth;  // bytes per second
  double peak;       // operations per second
  double peak8 = 0;  // of 8-bit factors, fp8 or int8; 0: no faster
  double link = 0;   // bytes per second to another device, one way
  double price = 0;  // US dollars per hour: an assumption, prices vary by a factor of three
};
std::span<const SolDevice> sol_devices();

std::string sol_device_names();  // "T4, L4, ..."

// By its name, whatever the case, spaces and dashes; or null.
const SolDevice* find_sol_device(std::string_view name);

// What a step of a model reads.
struct SolModel {
  ModelShape shape;
  double weights = 0;   // bytes of all of them
  double step = 0;      // of those, bytes that a step reads: no untied embedding table
  double kv_token = 0;  // bytes of K and V of one position
  double memory(double sequences, double context) const {
    return weights + sequences * context * kv_token;
  }
};

// Seconds of a step at least: weights, then K and V, each by the larger of its bytes over the
// bandwidth and its operations over the peak.
double sol_step(const SolModel& model, const StepLoad& load, const SolDevice& device);
StepLoad sol_decode(int sequences, int context);
StepLoad sol_prompt(int tokens);
// The most sequences with so many positions that fit; 0: not one.
int sol_fits(const SolModel& model, int context, const SolDevice& device);

// Of a file's headers. bits: per weight; 0: as in the file.
SolModel sol_model(const Checkpoint& file, const ModelShape& shape, double bits);

struct SolOptions {
  std::string model, format = "bf16";
  double bits = 0;  // per weight; 0: as in the file
  int context = 1024, batch = 32, prompt = 512;
  bool table = false, json = false;
  double memory = 0, bandwidth = 0, peak = 0;  // of a device of one's own: GB, GB/s, TFLOP/s
};
int cmd_sol(const SolOptions& options);

}  // namespace sluice
