// Policies by name, as flags and scenarios write them, and which of them go together.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "core/scheduler.h"

namespace sluice {

std::vector<std::string> preset_names();  // for apply_preset()
const char* order_name(Order order);
const char* admission_name(Admission admission);
std::vector<std::string> mix_names();
std::vector<std::string> order_names();
std::vector<std::string> admission_names();
// The names must be known.
Mix mix_of(std::string_view name);
Order order_of(std::string_view name);
Admission admission_of(std::string_view name);

// "oracle", "constant:TOKENS", "histogram", "histogram:Q", "quantile", "quantile:Q".
Result<PredictorConfig> parse_predictor(std::string_view text);

// Whether the policies go together (400: the message names the flags). `has_accounts`: requests
// come with API keys.
Result<void> check_policies(const SchedulerConfig& config, bool has_accounts);

}  // namespace sluice
