// What the laboratory's commands share: medians, where and when a run was made, result files.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"

namespace sluice {

// Of several runs. Empty: zeros.
struct Spread {
  double median = 0, least = 0, most = 0;
};
Spread spread_of(std::vector<double> values);

// "Neoverse-V1, 2 threads, load average 0.4": others who use the machine show in the last figure.
std::string machine_line(int threads);

// Writes DIR/NAME; the folders are made.
Result<void> write_result(const std::string& dir, const std::string& name, const std::string& text);

}  // namespace sluice
