// JSON appended by hand, for what is written once per token.
#pragma once

#include <string>
#include <string_view>

namespace sluice {

// A quoted JSON string. `text` is valid UTF-8.
inline void append_json(std::string& out, std::string_view text) {
  out += '"';
  for (char c : text) {
    auto u = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (u >= 0x20) {
      out += c;
    } else if (c == '\n') {
      out += "\\n";
    } else {
      constexpr char kHex[] = "0123456789abcdef";
      out += "\\u00";
      out += kHex[u >> 4];
      out += kHex[u & 15];
    }
  }
  out += '"';
}

}  // namespace sluice
