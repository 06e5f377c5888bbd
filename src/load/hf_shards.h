// The safetensors files of a model's directory, mapped, and their tensors by name. Everything is
// checked when it is opened. Owned by the checkpoint that reads them.
#pragma once

#include <cstddef>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "tensor/mapped_file.h"
#include "tensor/safetensors.h"

namespace sluice {

struct HfEntry {
  size_t file = 0;
  SafetensorsEntry tensor;  // its name as the file has it
};

class HfShards {
 public:
  // model.safetensors, the files of model.safetensors.index.json, or the only safetensors file.
  static Result<HfShards> open(const std::string& directory);

  // By strip_prefix() of the names.
  const std::map<std::string, HfEntry, std::less<>>& tensors() const { return tensors_; }
  const HfEntry* find(std::string_view plain_name) const;
  const std::string& path(const HfEntry& e) const { return paths_[e.file]; }

  std::span<const std::byte> bytes(const HfEntry& e) const;
  void prefetch(const HfEntry& e);
  void drop(const HfEntry& e);

 private:
  Result<void> add(const std::string& path);
  Result<void> add_index(const std::string& directory, const std::string& index);

  std::vector<std::string> paths_;
  std::vector<MappedFile> files_;  // beside paths_
  std::map<std::string, HfEntry, std::less<>> tensors_;
};

}  // namespace sluice
