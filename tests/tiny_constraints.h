// For tests with tiny models: a vocabulary of made-up text for models that have none, and
// constraints over it.
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "constrain/output_matcher.h"

namespace sluice {

// Tokens of the characters that the constraints below use, some longer ones, then tokens without
// text; the last one ends an output.
inline std::vector<std::string> tiny_tokens(int vocab) {
  std::vector<std::string> tokens;
  for (char c : std::string("abcdefglrstu0123456789{}[]\":, .")) tokens.emplace_back(1, c);
  for (const char* t :
       {"ab", "abc", "\"a\"", "\": ", "true", "rue", "12", "],", "be", "\"b", "c\": "})
    tokens.emplace_back(t);
  tokens.resize(static_cast<size_t>(vocab));
  return tokens;
}

inline std::shared_ptr<const constrain::VocabTrie> tiny_trie(int vocab) {
  static std::map<int, std::shared_ptr<const constrain::VocabTrie>> made;
  auto& trie = made[vocab];
  if (trie) return trie;
  const std::vector<std::string> tokens = tiny_tokens(vocab);
  std::vector<std::string_view> views(tokens.begin(), tokens.end());
  Token ends[] = {vocab - 1};
  trie = std::make_shared<const constrain::VocabTrie>(views, ends);
  return trie;
}

inline constexpr const char *kTinyThink = "{a", *kTinyThinkEnd = "}b";  // two tokens each

inline std::shared_ptr<const constrain::Thinking> tiny_thinking(int vocab, bool open, int budget) {
  static std::map<int, std::shared_ptr<const constrain::ThinkMarks>> made;
  auto& marks = made[vocab];
  if (!marks) {
    const std::vector<std::string> tokens = tiny_tokens(vocab);
    std::vector<std::string_view> views(tokens.begin(), tokens.end());
    Token ends[] = {vocab - 1};
    marks = std::make_shared<const constrain::ThinkMarks>(kTinyThink, kTinyThinkEnd, views, ends);
  }
  return std::make_shared<const constrain::Thinking>(constrain::Thinking{marks, open, budget});
}

// Whether the masks allow the tokens, and thinking that the prompt opened ends within its budget.
inline bool keeps_budget(const std::shared_ptr<const constrain::Constraint>& constraint,
                         const std::shared_ptr<const constrain::Thinking>& thinking,
                         const std::vector<Token>& tokens) {
  constrain::OutputMatcher matcher(constraint, thinking);
  std::vector<uint32_t> bits(matcher.mask_words());
  const size_t limit = static_cast<size_t>(*thinking->budget) + std::string(kTinyThinkEnd).size();
  std::string text;
  for (size_t k = 0; k < tokens.size(); ++k) {
    if (thinking->open && k == limit && text.find(kTinyThinkEnd) == text.npos) return false;
    const auto t = static_cast<size_t>(tokens[k]);
    if (!matcher.fill_mask(bits) || !(bits[t / 32] >> (t % 32) & 1)) return false;
    const bool ends = std::ranges::count(thinking->marks->ends(), tokens[k]) > 0;
    if (!matcher.accept(tokens[k]) && !ends) return false;
    text += thinking->marks->bytes(tokens[k]);
  }
  return true;
}

inline constexpr int kNumTinyConstraints = 7;
inline constexpr int kDeadEnd = 6;  // a text that the vocabulary cannot spell to its end

// Compiled once for a vocabulary; `which` below kNumTinyConstraints.
inline std::shared_ptr<const constrain::Constraint> tiny_constraint(int which, int vocab) {
  using constrain::ConstraintKind;
  static const constrain::ConstraintSource kSources[kNumTinyConstraints] = {
      {ConstraintKind::regex, "[ab]{2,6}(abc)+[012]*", {}},
      {ConstraintKind::choice, R"(["abc", "abd2", "true", "be abused"])", {}},
      {ConstraintKind::json_schema,
       R"({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "boolean"}},
           "required": ["a"], "additionalProperties": false})",
       {}},
      {ConstraintKind::regex, R"(\{"abc": "[abc]{1,8}", "b": \[true, true\]\})", {}},
      {ConstraintKind::gbnf, "root ::= \"a\" root \"b\" | \"c\"", {}},
      {ConstraintKind::json_schema, R"({"type": "array", "items": {"enum": ["a", 12, true]}})", {}},
      {ConstraintKind::choice, R"(["abcd-"])", {}},
  };
  static std::map<std::pair<int, int>, std::shared_ptr<const constrain::Constraint>> made;
  auto& constraint = made[{which, vocab}];
  if (!constraint)
    constraint = constrain::Constraint::compile(kSources[which], tiny_trie(vocab)).value();
  return constraint;
}

// Whether the tokens begin a text of the constraint; a whole one if they end with its end token.
inline bool obeys(const std::shared_ptr<const constrain::Constraint>& constraint,
                  const std::vector<Token>& tokens) {
  constrain::Matcher matcher(constraint);
  for (size_t k = 0; k < tokens.size(); ++k) {
    if (constraint->trie().is_end(tokens[k])) return k + 1 == tokens.size() && matcher.can_end();
    std::string_view bytes = constraint->trie().bytes(tokens[k]);
    if (bytes.empty() || !matcher.accept_bytes(bytes)) return false;
  }
  return true;
}

}  // namespace sluice
