// What /metrics says of batches. Pure.
#pragma once

#include <string>

#include "server/batch_store.h"

namespace sluice {

// In Prometheus' text format.
std::string expose_batches(const BatchStore::Counts& counts);

}  // namespace sluice
