// A plan as one HTML page that needs nothing else: tables and plots, light and dark.
#pragma once

#include <span>
#include <string>

#include "tools/plan/search.h"

namespace sluice {

struct PlanPage {
  std::string model, device, cost, workload, slo, command;
  std::vector<std::string> notes;
};

std::string plan_html(const PlanPage& page, std::span<const Trial> trials, size_t best);

}  // namespace sluice
