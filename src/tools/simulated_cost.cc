#include "tools/simulated_cost.h"

#include "tools/plan/cost_file.h"
#include "tools/plan/target.h"

namespace sluice {

Result<StepCost> simulated_cost(const EngineOptions& engine, const std::string& what) {
  if (what.ends_with(".json")) {
    Result<CostFile> file = load_cost(what);
    if (!file) return file.error();
    return file->cost;
  }
  PlanDeviceOptions on;
  on.device = what;
  Result<PlanTarget> target = PlanTarget::open(engine, on);
  if (!target) return target.error();
  Result<PlanSetup> setup = target->setup({});
  if (!setup) return setup.error();
  return setup->sim.cost;
}

}  // namespace sluice
