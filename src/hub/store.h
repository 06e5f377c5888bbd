// The models in the user's cache folder, by name. Models of the hub are in hf/ORG/REPO/COMMIT, with
// a manifest that says which files belong together and which were checked; others are .gguf files
// and directories that somebody put there. Every call reads the folder anew; a pull holds the
// repository's lock (PullLock) while it writes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "hub/hub_name.h"
#include "hub/repository.h"

namespace sluice {

struct StoredModel {
  std::string name;    // smollm2, hf:ORG/REPO[:QUANT], or the file's name without .gguf
  std::string path;    // the file or directory to open
  uint64_t bytes = 0;  // on disk
  bool complete = true;
  bool read_only = false;  // in the hub's own cache folder, which sluice only reads
  // Of models of the hub; empty otherwise.
  std::string repo, commit, quant, main;
  bool chosen = false;  // by a name without a quantisation
  uint64_t total = 0;   // bytes of all files, as the hub lists them
  std::vector<RepoFile> files;
};

// $SLUICE_CACHE/models, or models in the user's cache folder. Empty where there is no home.
std::string models_folder();

std::vector<StoredModel> stored_models();
// The newest complete one that `name` means: by its quantisation, or without one what was chosen.
std::optional<StoredModel> find_stored(const HubName& name);
// By `name` or path; also a file's name with its .gguf.
std::optional<StoredModel> find_stored(std::string_view name);

// Where a repository's files at a commit go.
std::string commit_folder(const std::string& repo, const std::string& commit);
// Notes what a pull is about to fetch, or has fetched and checked.
Result<void> write_manifest(const std::string& repo,
                            const std::string& commit,
                            const ModelFiles& model,
                            bool chosen,
                            bool complete);

// Deletes a model's files, and folders that are empty then. Refuses what is not in models_folder().
Result<void> remove_stored(const StoredModel& model);

// When a model was last opened by name, in seconds since 1970; nothing: never.
std::optional<int64_t> last_used(const std::string& path);
void mark_used(const std::string& path);

}  // namespace sluice
