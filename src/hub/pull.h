// Fetches a model of the hub into the cache folder: its files at the newest commit, all or none.
#pragma once

#include <cstdint>
#include <functional>

#include "base/result.h"
#include "hub/hub_client.h"
#include "hub/store.h"

namespace sluice {

struct PullOptions {
  Say say;                                                      // notes on the way
  std::function<void(uint64_t done, uint64_t total)> progress;  // by the caller's thread
};

struct Pulled {
  StoredModel model;
  bool was_there = false;  // nothing had to be fetched
};
// Holds the repository's lock while it writes; partial files stay after an error.
Result<Pulled> pull_model(const HubName& name, const PullOptions& options);

}  // namespace sluice
