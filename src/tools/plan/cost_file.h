// A cost of steps as a file: whose it is, how it was found, how far it is off. JSON with a version.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"
#include "core/step_cost.h"
#include "model/model.h"
#include "runtime/options.h"

namespace sluice {

inline constexpr int kCostVersion = 2;

// Options that change what weights are at run time, by their names on the command line. On the CPU
// dtype and gpu_weights change nothing, on a GPU quantize_exclude.
struct WeightTypes {
  std::string quantize = "none", quantize_exclude;
  std::string gpu_weights = "auto", dtype = "auto";
  bool operator==(const WeightTypes&) const = default;
};
WeightTypes weight_types(const EngineOptions& options);

struct CostFile {
  std::string model, format;  // as the command line had them
  WeightTypes types;
  std::string arch;  // the model's shape: a cost is of no use for another
  int layers = 0, hidden = 0, vocab = 0;
  std::string device;  // "cpu" or a GPU's --device name
  std::string machine, measured;
  int threads = 0;
  double kv_token = 0;  // bytes of K and V of a position
  double memory = 0;    // bytes that were free for the engine before it loaded
  int num_steps = 0;
  double error_p50 = 0, error_p90 = 0;  // of the fit, relative
  StepCost cost;

  bool is_gpu() const { return device != "cpu"; }
  bool fits(const ModelShape& shape) const {
    return arch == shape.arch && layers == shape.num_layers && hidden == shape.hidden &&
           vocab == shape.vocab;
  }
  bool operator==(const CostFile&) const = default;
};

// What a cost is to be used for.
struct CostUse {
  std::string model, format;  // format: as calibrate() names it
  bool gpu = false;
  std::string gpu_name;  // of the device table; empty: any
  int threads = 0;       // on the CPU
  WeightTypes types = {};
};
// The format of an engine's weights as cost files name it.
std::string cost_format(const std::string& model, const std::string& random_format);
// An error names the file and says what is different: the shape, or the weights or the machine.
Result<void> check_cost_shape(const CostFile& file,
                              const std::string& path,
                              const std::string& model,
                              const ModelShape& shape);
Result<void> check_cost_use(const CostFile& file, const std::string& path, const CostUse& use);

std::string cost_to_json(const CostFile& file);
// Whatever is not as cost_to_json writes it is an error.
Result<CostFile> parse_cost(std::string_view text);
Result<CostFile> load_cost(const std::string& path);

}  // namespace sluice
