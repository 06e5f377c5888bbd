#include "runtime/disk_content.h"

#include <sys/stat.h>

#include <algorithm>
#include <system_error>
#include <vector>

#include "backend/cpu/features.h"
#include "base/cache_dir.h"
#include "base/sha.h"
#include "base/str.h"
#include "load/open.h"

namespace sluice {

namespace {

std::string file_stamp(const std::filesystem::path& path) {
  struct stat info {};
  if (stat(path.c_str(), &info) != 0) return "none\n";
  return strf("%lld %lld.%09ld\n", static_cast<long long>(info.st_size),
              static_cast<long long>(info.st_mtim.tv_sec), info.st_mtim.tv_nsec);
}

// Of a split GGUF, NAME-00001-of-00003.gguf: all its parts.
std::vector<std::filesystem::path> parts_of(const std::filesystem::path& path) {
  std::vector<std::filesystem::path> parts;
  const std::string name = path.filename().string();
  const size_t of = name.rfind("-of-"), digits = 5;
  if (of == name.npos || of < digits) return parts;
  const std::string front = name.substr(0, of - digits), back = name.substr(of);
  std::error_code failed;
  std::filesystem::path folder = path.parent_path();
  for (const auto& entry :
       std::filesystem::directory_iterator(folder.empty() ? "." : folder, failed)) {
    const std::string other = entry.path().filename().string();
    if (other.starts_with(front) && other.ends_with(back)) parts.push_back(entry.path());
  }
  return parts;
}

std::string model_stamp(const std::string& model) {
  std::filesystem::path path = model == "smollm2" ? default_model_path() : model;
  if (model.starts_with("random:")) path = model.substr(7);
  std::error_code failed;
  std::vector<std::filesystem::path> files = parts_of(path);
  for (const auto& entry : std::filesystem::directory_iterator(path, failed))
    files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  std::string stamp = file_stamp(path);
  if (!files.empty()) stamp.clear();  // a directory's own time changes with its lock files
  for (const std::filesystem::path& file : files)
    stamp += file.filename().string() + " " + file_stamp(file);
  return stamp;
}

}  // namespace

std::string disk_content(const EngineOptions& o, KvType kv, const std::string& gpu) {
  Sha256 sha;
  sha.update("sluice KV 1\n" + file_stamp("/proc/self/exe"));
  sha.update(o.model + "\n" + model_stamp(o.model));
  sha.update(
      strf("%s %llu\n", random_format(o).c_str(), static_cast<unsigned long long>(o.random_seed)));
  sha.update(strf("%s %s %d %s\n", o.device.name().c_str(), name_of(kQuantizes, o.quantize),
                  o.fuse ? 1 : 0, o.quantize_exclude.c_str()));
  if (!gpu.empty()) sha.update(strf("%s %d\n", gpu.c_str(), o.deterministic ? 1 : 0));
  // The context length: it chooses the rotation of LongRoPE.
  sha.update(strf("%d %d %d %d %llx\n", static_cast<int>(kv.type), kv.group, o.scheduler.block_size,
                  o.scheduler.max_len, static_cast<unsigned long long>(cpu_features().bits)));
  return sha.hex();
}

std::filesystem::path disk_dir(const EngineOptions& options) {
  if (!options.prefix_disk_dir.empty()) return options.prefix_disk_dir;
  std::filesystem::path cache = user_cache_dir();
  return cache.empty() ? cache : cache / "prefixes";
}

}  // namespace sluice
