// A repository's files at one commit, and those that a model is made of. Pure: no network, no disk.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace sluice {

struct RepoFile {
  std::string path;  // safe to join to a folder
  uint64_t size = 0;
  std::string sha256;    // of files in LFS
  std::string git_sha1;  // of the others: of "blob SIZE\0" and the content
};

struct Repository {
  std::string id, commit;
  std::vector<RepoFile> files;
};

// The hub's answer to /api/models/ORG/REPO?blobs=true.
Result<Repository> parse_repository(std::string_view json, const std::string& id);

// The files of one model. A GGUF file with its parts, or a directory's files.
struct ModelFiles {
  std::string quant;  // Q4_K_M; a file name where it has no such label; empty for a directory
  std::string main;   // the GGUF file to open, its first part; empty: the directory
  std::vector<RepoFile> files;
  // Directories: not empty where this file, among `files`, names the shards, which are not.
  std::string index;
};

// "Q4_K_M" of "model-q4_k_m-00001-of-00002.gguf", in capitals; empty where there is none.
std::string quant_label(std::string_view path);

// The model that `quant` means among `files`; empty: safetensors if they are there, else the GGUF
// file of the first of kQuantOrder. An error lists what there is.
Result<ModelFiles> select_model(const std::vector<RepoFile>& files,
                                const std::string& quant,
                                const std::string& repo_id);

// Adds the shards that the text of model.index names.
Result<void> add_shards(std::string_view index_json,
                        const std::vector<RepoFile>& files,
                        ModelFiles& model);

}  // namespace sluice
