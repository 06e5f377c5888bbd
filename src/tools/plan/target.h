// The model and device of a plan, and the scheduler that would run there with given settings. One
// thread.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "core/simulation.h"
#include "runtime/ledger.h"
#include "tools/plan/derive.h"
#include "tools/plan/plan.h"

namespace sluice {

// Settings that a search varies; absent: as the options have them.
struct PlanSettings {
  std::optional<std::string> preset;
  std::optional<int> budget, max_seqs;
  std::optional<int> beside;  // prompt tokens beside decodes: --chunk, on a GPU --mixed-budget
  std::optional<KvType> kv;
  int replicas = 1;
  int prefill = 0;  // of the replicas, those that compute prompts for the others; 0: all do both
  int ways = 1;     // devices that share every product: an estimate
  bool operator==(const PlanSettings&) const = default;
};

// Options of `sluice serve` for the settings.
std::vector<GivenOption> setting_options(const PlanSettings& settings, bool gpu);

struct PlanSetup {
  SimSetup sim;
  Ledger ledger;
};

class PlanTarget {
 public:
  static Result<PlanTarget> open(const EngineOptions& engine, const PlanDeviceOptions& on);

  // The error says why such an engine would not start.
  Result<PlanSetup> setup(const PlanSettings& settings) const;

  const std::string& device() const { return device_; }
  const std::string& source() const { return source_; }  // of the cost, for people
  bool is_gpu() const { return gpu_; }
  bool measured() const { return measured_; }
  // Of step costs, as a share: by how much the fit misses half of the measured steps, or how near
  // derived ones are held to our own.
  double cost_error() const { return cost_error_; }
  double price() const { return price_; }  // dollars per hour; 0: nobody knows
  double link() const { return link_; }
  const ModelShape& shape() const { return shape_; }
  const std::string& model() const { return engine_.model; }

 private:
  // asked: for this device, so that costs of another kind are an error.
  Result<void> use_cost_file(const std::string& path, bool asked);
  Result<void> use_limits(bool quiet);
  Result<void> use_cpu_kernels(bool quiet);
  // Bytes of K and V in 16 bits that take as long to read as a position's `kv_token`.
  double kv_read_bytes(double kv_token) const;

  EngineOptions engine_;
  std::shared_ptr<const Checkpoint> file_;
  ModelShape shape_;
  std::string device_, source_;
  bool gpu_ = false, measured_ = false;
  double memory_ = 0, price_ = 0, link_ = 0, cost_error_ = 0;
  StepCost cost_;
  double kv_token_ = 0;  // that the cost was found with
};

}  // namespace sluice
