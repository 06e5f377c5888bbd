#include "tools/simulated_cost.h"

#include "base/str.h"
#include "runtime/placement.h"
#include "tools/plan/cost_file.h"
#include "tools/plan/target.h"

namespace sluice {

namespace {

Result<StepCost> cost_on(const EngineOptions& engine,
                         const std::string& device,
                         const std::string& file) {
  PlanDeviceOptions on;
  on.device = device;
  on.cost = file;
  Result<PlanTarget> target = PlanTarget::open(engine, on);
  if (!target) return target.error();
  Result<PlanSetup> setup = target->setup({});
  if (!setup) return setup.error();
  return setup->sim.cost;
}

}  // namespace

Result<StepCost> simulated_cost(const EngineOptions& engine, const std::string& what) {
  if (what.ends_with(".json")) {
    Result<CostFile> file = load_cost(what);
    if (!file) return file.error();
    return file->cost;
  }
  return cost_on(engine, what, "");
}

Result<StepCost> predicted_cost(const EngineOptions& engine, const std::string& what) {
  if (!what.ends_with(".json")) return cost_on(engine, what, "");
  const bool cpu = resolve_device(engine.device).is_cpu();
  const Result<CostFile> file = load_cost(what);
  if (!file) return file.error();
  if (!cpu && !file->is_gpu())
    return Error{400, strf("%s has costs of a CPU, and this server runs on a GPU",
                           quote(what, 400).c_str())};
  return cost_on(engine, cpu ? "cpu" : "", what);
}

}  // namespace sluice
