// Policies by name, as flags, the dashboard and test scripts write them, and which go together.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/named.h"
#include "base/result.h"
#include "core/scheduler.h"

namespace sluice {

inline constexpr NamedValue<Batching> kBatchings[] = {{"static", Batching::static_},
                                                      {"continuous", Batching::continuous}};
inline constexpr NamedValue<Prefill> kPrefills[] = {{"whole", Prefill::whole},
                                                    {"chunked", Prefill::chunked}};
inline constexpr NamedValue<Mix> kMixes[] = {
    {"separate", Mix::separate}, {"decode-first", Mix::decode_first}, {"mixed", Mix::mixed}};
inline constexpr NamedValue<Order> kOrders[] = {{"fcfs", Order::fcfs},
                                                {"priority", Order::priority},
                                                {"longest-output", Order::longest_output},
                                                {"shortest-output", Order::shortest_output},
                                                {"fair", Order::fair}};
inline constexpr NamedValue<Admission> kAdmissions[] = {
    {"reserve-max", Admission::reserve_max},
    {"watermark", Admission::watermark},
    {"predicted-peak", Admission::predicted_peak}};
inline constexpr NamedValue<KvAllocator> kAllocators[] = {{"reserve", KvAllocator::reserve},
                                                          {"range", KvAllocator::range},
                                                          {"paged", KvAllocator::paged},
                                                          {"virtual", KvAllocator::virtual_}};
inline constexpr NamedValue<Preempt> kPreempts[] = {{"recompute", Preempt::recompute},
                                                    {"swap", Preempt::swap}};
inline constexpr NamedValue<Pipeline> kPipelines[] = {{"sync", Pipeline::sync},
                                                      {"simple-async", Pipeline::simple_async},
                                                      {"interleave", Pipeline::interleave},
                                                      {"double-buffer", Pipeline::double_buffer},
                                                      {"overlap", Pipeline::overlap}};

std::vector<std::string> preset_names();  // for apply_preset()

// "oracle", "constant:TOKENS", "survival", "histogram", "histogram:Q", "quantile", "quantile:Q".
Result<PredictorConfig> parse_predictor(std::string_view text);
std::string predictor_name(const PredictorConfig& predictor);

// Whether the allocator can do what the other policies ask of it (400: the message names the
// flags).
Result<void> check_allocator(const SchedulerConfig& config);

// Whether the policies go together (400: the message names the flags). `has_accounts`: requests
// come with API keys.
Result<void> check_policies(const SchedulerConfig& config, bool has_accounts);

}  // namespace sluice
