// For tests: a vocabulary of all bytes, some longer tokens, a control token and an end token.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "constrain/matcher.h"

namespace sluice::constrain {

inline constexpr Token kTestEnd = 0, kTestControl = 1;

inline std::shared_ptr<const VocabTrie> test_trie() {
  static const std::shared_ptr<const VocabTrie> kTrie = [] {
    std::vector<std::string> tokens{"", ""};
    for (int b = 0; b < 256; ++b) tokens.emplace_back(1, static_cast<char>(b));
    for (const char* t :
         {"{\"",      "\":",   "\": ",   "\", \"", "\"}",      "true",     "tru",  "alse",  "null",
          "12",       "123",   "1.5",    "ab",     "abc",      "abcd",     "a\"",  "ab\":", "  ",
          "\n  ",     "[]",    "{}",     "]}",     "\xC3\xA9", "\xE2\x82", "\xAC", "\\u00", "\\n",
          "e9",       "name",  "\"name", "name\"", "}}",       "1,",       "1}",   "ab",    " \"",
          "b\":1,\"", "<tool", "<tool>", "x<",     "tool>{"}) {
      tokens.emplace_back(t);
    }
    std::vector<std::string_view> views(tokens.begin(), tokens.end());
    Token ends[] = {kTestEnd};
    return std::make_shared<const VocabTrie>(views, ends);
  }();
  return kTrie;
}

inline Result<std::shared_ptr<const Constraint>> compile_test(ConstraintKind kind,
                                                              std::string text,
                                                              JsonSpace space = JsonSpace::flexible,
                                                              ConstraintLimits limits = {}) {
  return Constraint::compile({kind, std::move(text), space}, test_trie(), limits);
}

inline bool accepts(const std::shared_ptr<const Constraint>& constraint, std::string_view text) {
  Matcher matcher(constraint);
  return matcher.accept_bytes(text) && matcher.can_end();
}

inline bool accepts(ConstraintKind kind, const std::string& source, std::string_view text) {
  auto constraint = compile_test(kind, source);
  return constraint.has_value() && accepts(*constraint, text);
}

}  // namespace sluice::constrain
