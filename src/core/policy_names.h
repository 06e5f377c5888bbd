// Names of the scheduling policies, as flags, the dashboard and test scripts write them.
#pragma once

#include "base/named.h"
#include "core/scheduler.h"

namespace sluice {

inline constexpr NamedValue<Batching> kBatchings[] = {{"static", Batching::static_},
                                                      {"continuous", Batching::continuous}};
inline constexpr NamedValue<Prefill> kPrefills[] = {{"whole", Prefill::whole},
                                                    {"chunked", Prefill::chunked}};
inline constexpr NamedValue<Mix> kMixes[] = {{"separate", Mix::separate}, {"mixed", Mix::mixed}};
inline constexpr NamedValue<Order> kOrders[] = {{"fcfs", Order::fcfs},
                                                {"priority", Order::priority}};
inline constexpr NamedValue<Admission> kAdmissions[] = {{"reserve-max", Admission::reserve_max},
                                                        {"watermark", Admission::watermark}};
inline constexpr NamedValue<Pipeline> kPipelines[] = {{"sync", Pipeline::sync},
                                                      {"overlap", Pipeline::overlap}};

}  // namespace sluice
