// Downloads files of the hub: streamed to FILE.HASH.partial, which a later try resumes, checked
// against the hub's hash, then renamed. Several at once, each on a thread of its own.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/result.h"
#include "hub/hub_client.h"
#include "hub/repository.h"

namespace sluice {

struct Download {
  RepoFile file;
  HttpGetter::Request request;
  std::string path;  // where it goes; its folder exists
};

struct DownloadOptions {
  std::string what;  // the model's name, for messages
  HubSettings settings;
  Say say;
  std::function<void(uint64_t done, uint64_t total)> progress;  // by the caller's thread
  int connections = 4;
};

// What an earlier try has left of a file.
std::string partial_path(const RepoFile& file, const std::string& path);

// Until all are there, or one cannot be had; the others then stop. Partial files stay.
Result<void> download_all(const std::vector<Download>& files, const DownloadOptions& options);

}  // namespace sluice
