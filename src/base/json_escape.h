// Characters of JSON strings, appended by hand: for what is written once per token.
#pragma once

#include <string>

namespace sluice {

// One byte of valid UTF-8, inside the quotes.
inline void append_json_char(std::string& out, char c) {
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

}  // namespace sluice
