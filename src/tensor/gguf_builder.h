// Writes GGUF bytes for tests, field by field, so that any field can be wrong.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

namespace sluice {

struct GgufBuilder {
  std::string magic = "GGUF";
  uint32_t version = 3;
  uint64_t num_tensors = 0, num_keys = 0;
  std::string keys, tensors, data;
  uint64_t alignment = 32;

  template <typename T>
  static std::string raw(T value) {
    return std::string(reinterpret_cast<const char*>(&value), sizeof(value));
  }
  static std::string str(std::string_view s) { return raw<uint64_t>(s.size()) + std::string(s); }

  // `value` is the value's bytes.
  GgufBuilder& key(std::string_view name, uint32_t type, std::string_view value) {
    keys += str(name) + raw(type) + std::string(value);
    ++num_keys;
    return *this;
  }
  GgufBuilder& key_u32(std::string_view name, uint32_t v) { return key(name, 4, raw(v)); }
  GgufBuilder& key_str(std::string_view name, std::string_view v) { return key(name, 8, str(v)); }
  template <typename T>
  GgufBuilder& key_array(std::string_view name, uint32_t type, const std::vector<T>& values) {
    std::string bytes = raw(type) + raw<uint64_t>(values.size());
    for (const T& v : values) {
      if constexpr (std::is_same_v<T, std::string>) {
        bytes += str(v);
      } else {
        bytes += raw(v);
      }
    }
    return key(name, 9, bytes);
  }

  GgufBuilder& entry(std::string_view name,
                     const std::vector<uint64_t>& dims,
                     uint32_t type,
                     uint64_t offset) {
    tensors += str(name) + raw(static_cast<uint32_t>(dims.size()));
    for (uint64_t d : dims) tensors += raw(d);
    tensors += raw(type) + raw(offset);
    ++num_tensors;
    return *this;
  }
  // An entry with its bytes, at the next aligned place.
  GgufBuilder& tensor(std::string_view name,
                      const std::vector<uint64_t>& dims,
                      uint32_t type,
                      std::string_view bytes) {
    data.resize((data.size() + alignment - 1) / alignment * alignment);
    entry(name, dims, type, data.size());
    data += bytes;
    return *this;
  }

  std::string header() const {
    return magic + raw(version) + raw(num_tensors) + raw(num_keys) + keys + tensors;
  }
  std::string build() const {
    std::string out = header();
    if (!num_tensors) return out;
    out.resize((out.size() + alignment - 1) / alignment * alignment);
    return out + data;
  }
};

}  // namespace sluice
