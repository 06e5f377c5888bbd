#include "runtime/disk_content.h"

#include <sys/stat.h>

#include <algorithm>
#include <fstream>
#include <system_error>
#include <vector>

#include "backend/cpu/features.h"
#include "base/build_id.h"
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

std::filesystem::path model_file(const std::string& model) {
  if (model.starts_with("random:")) return model.substr(7);
  return model == "smollm2" ? default_model_path() : model;
}

std::string model_stamp(const std::string& model) {
  std::filesystem::path path = model_file(model);
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

// 4 KiB of every 256 KiB, so that every tensor but the smallest is seen; the first 256 KiB whole.
void add_samples(const std::filesystem::path& path, Sha256& sha) {
  constexpr size_t kSample = 4096, kStride = size_t{1} << 18;
  std::ifstream in(path, std::ios::binary);
  std::string buffer(kStride, '\0');
  std::error_code failed;
  const uintmax_t size = std::filesystem::file_size(path, failed);
  if (failed || !in) return sha.update("none\n");
  sha.update(strf("%llu\n", static_cast<unsigned long long>(size)));
  for (uintmax_t at = 0; at < size; at += kStride) {
    in.seekg(static_cast<std::streamoff>(at));
    in.read(buffer.data(), static_cast<std::streamsize>(at == 0 ? kStride : kSample));
    sha.update(std::string_view(buffer).substr(0, static_cast<size_t>(in.gcount())));
    in.clear();
  }
}

void add_formats(const EngineOptions& o, KvType kv, const std::string& gpu, Sha256& sha) {
  sha.update(
      strf("%s %llu\n", random_format(o).c_str(), static_cast<unsigned long long>(o.random_seed)));
  sha.update(strf("%s %s %d %s\n", o.device.name().c_str(), name_of(kQuantizes, o.quantize),
                  o.fuse ? 1 : 0, o.quantize_exclude.c_str()));
  if (!gpu.empty()) sha.update(strf("%s %d\n", gpu.c_str(), o.deterministic ? 1 : 0));
  // The context length: it chooses the rotation of LongRoPE.
  sha.update(strf("%d %d %d %d %llx\n", static_cast<int>(kv.type), kv.group, o.scheduler.block_size,
                  o.scheduler.max_len, static_cast<unsigned long long>(cpu_features().bits)));
}

}  // namespace

std::string disk_content(const EngineOptions& o, KvType kv, const std::string& gpu) {
  Sha256 sha;
  sha.update("sluice KV 1\n" + file_stamp("/proc/self/exe"));
  sha.update(o.model + "\n" + model_stamp(o.model));
  add_formats(o, kv, gpu, sha);
  return sha.hex();
}

std::string shared_content(const EngineOptions& o, KvType kv, const std::string& gpu) {
  Sha256 sha;
  sha.update("sluice shared KV 1\n" + build_id() + "\n");
  if (o.model.starts_with("random:")) sha.update(o.model + "\n");
  const std::filesystem::path path = model_file(o.model);
  std::error_code failed;
  std::vector<std::filesystem::path> files = parts_of(path);
  for (const auto& entry : std::filesystem::directory_iterator(path, failed)) {
    const std::string name = entry.path().filename().string();
    if (name == "config.json" || name.ends_with(".safetensors")) files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  if (files.empty()) files.push_back(path);
  for (const std::filesystem::path& file : files) add_samples(file, sha);
  // Of a GPU its kind: which one of a machine it is changes no bit.
  EngineOptions any = o;
  any.device.index.reset();
  const size_t number = gpu.find(", ");
  add_formats(any, kv, number == gpu.npos ? gpu : gpu.substr(number), sha);
  for (int window : o.scheduler.group_windows) sha.update(strf("%d ", window));
  return sha.hex();
}

std::filesystem::path disk_dir(const EngineOptions& options) {
  if (!options.prefix_disk_dir.empty()) return options.prefix_disk_dir;
  std::filesystem::path cache = user_cache_dir();
  return cache.empty() ? cache : cache / "prefixes";
}

}  // namespace sluice
