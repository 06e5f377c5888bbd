// From what a user calls a model to the file or directory that open_model() takes: names of the
// cache folder, hf:ORG/REPO[:QUANT], fetched where it is not here yet, and paths. Suggests what a
// mistyped name may have meant.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "base/result.h"
#include "hub/hub_client.h"
#include "hub/store.h"

namespace sluice {

struct PullOptions {
  Say say;                                                      // notes on the way
  std::function<void(uint64_t done, uint64_t total)> progress;  // by the caller's thread
};

// A path, or `name` itself where that is smollm2 or random:SHAPE.
Result<std::string> find_model(const std::string& name, const PullOptions& options);

struct Pulled {
  StoredModel model;
  bool was_there = false;  // nothing had to be fetched
};
// The newest revision of a model of the hub, into the cache folder.
Result<Pulled> pull_model(const HubName& name, const PullOptions& options);

// "; did you mean X?" for a name or path that is not there, or nothing.
std::string did_you_mean(const std::string& name);

}  // namespace sluice
