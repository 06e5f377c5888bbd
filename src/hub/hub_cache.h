// Models in the cache folder of the hub's own tools: models--ORG--REPO/snapshots/COMMIT/FILE, links
// into blobs/. Only ever read.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "hub/store.h"

namespace sluice {

// The complete model that `name` means at `commit`; empty: at the commit that `main` was last seen
// at, else at any.
std::optional<StoredModel> find_in_hub_cache(const HubName& name, const std::string& commit = "");

// Every complete model: each GGUF file, each directory with its weights.
std::vector<StoredModel> hub_cache_models();

}  // namespace sluice
