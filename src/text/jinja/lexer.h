// Splits a template into tokens, with jinja2's whitespace rules under trim_blocks and
// lstrip_blocks. A pure function of the source.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "text/jinja/value.h"

namespace sluice::jinja {

enum class TokenKind : uint8_t {
  data,
  variable_begin,
  variable_end,
  block_begin,
  block_end,
  name,
  string,
  integer,
  real,
  op,
  eof
};

struct LexToken {
  TokenKind kind;
  int line;
  std::string text;  // data: the text; string: unescaped; op and name: as written
};

inline constexpr size_t kMaxTokens = 250'000;  // with their nodes about 300 bytes each

// Throws TemplateError. The source must be valid UTF-8.
std::vector<LexToken> tokenize(std::string_view source);

}  // namespace sluice::jinja
