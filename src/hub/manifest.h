// The file beside a commit's files that says which of them are a model, and which were checked.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "hub/store.h"

namespace sluice {

inline constexpr const char* kManifestName = ".sluice.json";

// The models of one commit of a repository.
struct Manifest {
  std::string repo, commit;
  std::vector<StoredModel> models;  // repo, commit, quant, main, chosen, complete, files
};

// Nothing where there is none, or one that is damaged: then a pull writes it anew.
std::optional<Manifest> read_manifest(const std::filesystem::path& folder);
Result<void> store_manifest(const std::filesystem::path& folder, const Manifest& manifest);

}  // namespace sluice
