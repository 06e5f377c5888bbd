#include "tensor/checkpoint.h"

#include <cmath>
#include <limits>

namespace sluice {

const MetaValue* Meta::find(std::string_view key) const {
  auto it = values_.find(key);
  return it == values_.end() ? nullptr : &it->second;
}

std::optional<int64_t> Meta::integer(std::string_view key) const {
  const MetaValue* v = find(key);
  if (!v) return std::nullopt;
  if (auto* i = std::get_if<int64_t>(v)) return *i;
  if (auto* u = std::get_if<uint64_t>(v)) {
    if (*u > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return std::nullopt;
    return static_cast<int64_t>(*u);
  }
  if (auto* d = std::get_if<double>(v)) {
    if (!(*d >= -0x1p63 && *d < 0x1p63) || *d != std::trunc(*d)) return std::nullopt;
    return static_cast<int64_t>(*d);
  }
  return std::nullopt;
}

std::optional<double> Meta::number(std::string_view key) const {
  const MetaValue* v = find(key);
  if (!v) return std::nullopt;
  if (auto* i = std::get_if<int64_t>(v)) return static_cast<double>(*i);
  if (auto* u = std::get_if<uint64_t>(v)) return static_cast<double>(*u);
  if (auto* d = std::get_if<double>(v)) return *d;
  return std::nullopt;
}

std::optional<bool> Meta::boolean(std::string_view key) const {
  const MetaValue* v = find(key);
  const bool* b = v ? std::get_if<bool>(v) : nullptr;
  return b ? std::optional<bool>(*b) : std::nullopt;
}

const std::string* Meta::string(std::string_view key) const {
  const MetaValue* v = find(key);
  return v ? std::get_if<std::string>(v) : nullptr;
}

const std::vector<std::string>* Meta::strings(std::string_view key) const {
  const MetaValue* v = find(key);
  return v ? std::get_if<std::vector<std::string>>(v) : nullptr;
}

const std::vector<float>* Meta::floats(std::string_view key) const {
  const MetaValue* v = find(key);
  return v ? std::get_if<std::vector<float>>(v) : nullptr;
}

const std::vector<int64_t>* Meta::integers(std::string_view key) const {
  const MetaValue* v = find(key);
  return v ? std::get_if<std::vector<int64_t>>(v) : nullptr;
}

const TensorInfo* Checkpoint::find(std::string_view name) const {
  auto it = index_.find(name);
  return it == index_.end() ? nullptr : &tensors_[it->second];
}

}  // namespace sluice
