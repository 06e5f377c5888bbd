// JSON appended by hand, for what is written once per token.
#pragma once

#include <string>
#include <string_view>

#include "base/json_escape.h"

namespace sluice {

// A quoted JSON string. `text` is valid UTF-8.
inline void append_json(std::string& out, std::string_view text) {
  out += '"';
  for (char c : text) append_json_char(out, c);
  out += '"';
}

}  // namespace sluice
