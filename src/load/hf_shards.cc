#include "load/hf_shards.h"

#include <filesystem>
#include <set>
#include <system_error>
#include <utility>

#include "base/json.h"
#include "base/str.h"
#include "load/hf_tensors.h"
#include "load/read_file.h"

namespace sluice {
namespace {

constexpr size_t kMaxIndex = 256 << 20;
constexpr size_t kMaxShards = 4096;

Error at_path(const std::string& path, const Error& e) {
  return Error{e.code, quote(path, 400) + ": " + e.message};
}

bool exists(const std::string& path) {
  std::error_code ec;
  return std::filesystem::exists(path, ec);
}

// A plain file name: nothing that leads out of the directory.
bool is_plain_name(std::string_view name) {
  return name.ends_with(".safetensors") && name.find('/') == name.npos &&
         name.find('\\') == name.npos && name.find('\0') == name.npos;
}

// Of a directory without the usual names: its only safetensors file, or why there is none.
Result<std::string> only_file(const std::string& directory) {
  std::string found;
  bool several = false;
  bool pickled = false;
  std::error_code ec;
  for (std::filesystem::directory_iterator it(directory, ec), end; !ec && it != end;
       it.increment(ec)) {
    const std::string name = it->path().filename().string();
    if (name.ends_with(".safetensors") && !name.starts_with("adapter_")) {
      several = several || !found.empty();
      found = name;
    }
    pickled = pickled || name.ends_with(".bin") || name.ends_with(".pt") || name.ends_with(".pth");
  }
  if (ec) return Error{400, strf("cannot list the directory: %s", ec.message().c_str())};
  if (!found.empty() && !several) return found;
  if (several) {
    return Error{400,
                 "has several safetensors files and no model.safetensors.index.json that says "
                 "which are the model; fetch it too"};
  }
  if (pickled) {
    return Error{400,
                 "has only pickled weights (.bin, .pt), which can run code when opened; convert "
                 "them to safetensors"};
  }
  return Error{404, "has no weights: neither model.safetensors nor model.safetensors.index.json"};
}

}  // namespace

Result<void> HfShards::add(const std::string& path) {
  auto file = MappedFile::open(path);
  if (!file) return file.error();
  auto entries = parse_safetensors_header(file->bytes());
  if (!entries) return at_path(path, entries.error());
  const size_t index = files_.size();
  files_.push_back(std::move(*file));
  paths_.push_back(path);
  for (SafetensorsEntry& e : *entries) {
    std::string plain(strip_prefix(e.name));
    const std::string name = e.name;
    auto [at, added] = tensors_.try_emplace(std::move(plain), HfEntry{index, std::move(e)});
    if (!added) {
      return at_path(path, Error{400, strf("tensor %s is also in %s (as %s)", quote(name).c_str(),
                                           quote(paths_[at->second.file], 400).c_str(),
                                           quote(at->second.tensor.name).c_str())});
    }
  }
  return {};
}

Result<void> HfShards::add_index(const std::string& directory, const std::string& index) {
  auto text = read_whole_file(index, kMaxIndex);
  if (!text) return text.error();
  auto parsed = parse_json(*text);
  if (!parsed) return at_path(index, parsed.error());
  const json::object* top = parsed->if_object();
  const json::value* map = top ? top->if_contains("weight_map") : nullptr;
  if (!map || !map->is_object()) {
    return at_path(index, Error{400, "has no weight_map that says which file holds which tensor"});
  }
  std::set<std::string> shards;
  for (const auto& member : map->get_object()) {
    const json::string* name = member.value().if_string();
    if (!name || !is_plain_name(std::string_view(*name))) {
      return at_path(index, Error{400, strf("weight_map of %s is not the name of a .safetensors "
                                            "file beside it",
                                            quote(std::string_view(member.key())).c_str())});
    }
    shards.emplace(*name);
  }
  if (shards.size() > kMaxShards) return at_path(index, Error{400, "names too many files"});
  for (const std::string& shard : shards) {
    if (auto ok = add(directory + "/" + shard); !ok) {
      return Error{ok.error().code, ok.error().message + " (a part of the model by its index)"};
    }
  }
  for (const auto& member : map->get_object()) {
    const std::string_view name(member.key());
    const HfEntry* e = find(strip_prefix(name));
    const std::string shard = directory + "/" + std::string(member.value().get_string());
    if (!e || paths_[e->file] != shard || e->tensor.name != name) {
      return at_path(shard, Error{400, strf("has no tensor %s, which the index says it holds; "
                                            "fetch the files again",
                                            quote(name).c_str())});
    }
  }
  return {};
}

Result<HfShards> HfShards::open(const std::string& directory) {
  HfShards s;
  std::string single = directory + "/model.safetensors";
  const std::string index = directory + "/model.safetensors.index.json";
  if (!exists(single) && exists(index)) {
    if (auto ok = s.add_index(directory, index); !ok) return ok.error();
    return s;
  }
  if (!exists(single)) {
    auto name = only_file(directory);
    if (!name) return at_path(directory, name.error());
    single = directory + "/" + *name;
  }
  if (auto ok = s.add(single); !ok) return ok.error();
  return s;
}

const HfEntry* HfShards::find(std::string_view plain_name) const {
  auto it = tensors_.find(plain_name);
  return it == tensors_.end() ? nullptr : &it->second;
}

std::span<const std::byte> HfShards::bytes(const HfEntry& e) const {
  return files_[e.file].bytes().subspan(e.tensor.offset, e.tensor.bytes);
}

void HfShards::prefetch(const HfEntry& e) {
  files_[e.file].prefetch(e.tensor.offset, e.tensor.bytes);
}

void HfShards::drop(const HfEntry& e) { files_[e.file].drop(e.tensor.offset, e.tensor.bytes); }

}  // namespace sluice
