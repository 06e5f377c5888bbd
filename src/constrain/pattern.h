// Reads regular expressions in the syntax of ECMA-262 (JSON Schema's `pattern`) and builds them in
// a RegexPool. Backreferences, word boundaries, lookbehind, flags and Unicode properties are
// refused by name; lookahead is understood outside groups.
#pragma once

#include <string_view>

#include "base/result.h"
#include "constrain/code_points.h"

namespace sluice::constrain {

enum class PatternMatch : uint8_t { whole, search };  // search: anywhere unless anchored

struct PatternOptions {
  Spelling spelling = Spelling::utf8;
  PatternMatch match = PatternMatch::whole;
  int max_depth = 200;
};

Result<RegexId> build_pattern(std::string_view pattern,
                              RegexPool& pool,
                              CodeSpeller& speller,
                              const PatternOptions& options);

// A class like [a-z\d] at text[at]; `at` moves behind it. For grammars, which share the syntax.
Result<CodeSet> read_class(std::string_view text, size_t& at);

}  // namespace sluice::constrain
