// Writes safetensors bytes for tests; the header's text may be replaced by a wrong one.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

namespace sluice {

struct SafetensorsBuilder {
  std::string entries, data;

  SafetensorsBuilder& tensor(std::string_view name,
                             std::string_view dtype,
                             const std::vector<int64_t>& shape,
                             std::string_view bytes) {
    std::string dims;
    for (int64_t d : shape) dims += (dims.empty() ? "" : ",") + std::to_string(d);
    if (!entries.empty()) entries += ",";
    entries += "\"" + std::string(name) + "\":{\"dtype\":\"" + std::string(dtype) +
               "\",\"shape\":[" + dims + "],\"data_offsets\":[" + std::to_string(data.size()) +
               "," + std::to_string(data.size() + bytes.size()) + "]}";
    data += bytes;
    return *this;
  }

  static std::string with_header(std::string header, std::string_view data, bool pad = true) {
    while (pad && header.size() % 8 != 0) header += ' ';
    uint64_t length = header.size();
    std::string out(8, '\0');
    std::memcpy(out.data(), &length, 8);
    return out + header + std::string(data);
  }
  std::string build() const { return with_header("{" + entries + "}", data); }
};

}  // namespace sluice
