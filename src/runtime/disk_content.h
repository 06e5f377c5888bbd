// What tells KV blocks on disk from those of other models, formats and programs.
#pragma once

#include <filesystem>
#include <string>

#include "backend/backend.h"
#include "runtime/options.h"

namespace sluice {

// 64 hex digits, by all that the bits of K and V depend on: the model's files by their sizes and
// times, how weights and KV are held, this program and the CPU's instruction set. `gpu` is what a
// GPU says of itself; empty: none.
std::string disk_content(const EngineOptions& options, KvType kv, const std::string& gpu = {});

// The same for blocks that other machines made: the model's files by their sizes and samples of
// their content instead of times, this program by its build id.
std::string shared_content(const EngineOptions& options, KvType kv, const std::string& gpu = {});

// --prefix-disk-dir, or else a folder of the user's cache.
std::filesystem::path disk_dir(const EngineOptions& options);

}  // namespace sluice
