// A compiled constraint: which texts a sequence may become. Immutable for its users and shared
// between threads; compile it once, away from the engine and io threads, and keep it by
// ConstraintSource::key(). A Matcher follows one sequence.
//
// Nothing outside the language is ever accepted; what is not understood is refused by name.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/named.h"
#include "base/result.h"
#include "constrain/limits.h"
#include "constrain/rules.h"
#include "constrain/vocab_trie.h"

namespace sluice::constrain {

enum class ConstraintKind : uint8_t {
  json_schema,
  json_object,      // any JSON object; no text
  regex,            // the whole output matches
  choice,           // text: a JSON list of strings
  gbnf,             // llama.cpp's grammars
  lark,             // the common subset of Lark's
  structural_tags,  // text: {"structures": [{"begin", "schema", "end"}], "triggers": [...]}
};
inline constexpr NamedValue<ConstraintKind> kConstraintKinds[] = {
    {"json-schema", ConstraintKind::json_schema},
    {"json-object", ConstraintKind::json_object},
    {"regex", ConstraintKind::regex},
    {"choice", ConstraintKind::choice},
    {"gbnf", ConstraintKind::gbnf},
    {"lark", ConstraintKind::lark},
    {"structural-tags", ConstraintKind::structural_tags}};

// White space between the tokens of JSON.
enum class JsonSpace : uint8_t {
  flexible,  // none, one or two blanks, or a line break and up to 64 blanks or tabs
  none,
};
inline constexpr NamedValue<JsonSpace> kJsonSpaces[] = {{"flexible", JsonSpace::flexible},
                                                        {"none", JsonSpace::none}};

struct ConstraintSource {
  ConstraintKind kind = ConstraintKind::json_schema;
  std::string text;
  JsonSpace space = JsonSpace::flexible;

  // Equal for equal sources: what a cache is keyed by, together with the vocabulary.
  std::string key() const;
};

// A grammar whose author does not say: GBNF where a rule is written NAME ::= ..., else Lark.
ConstraintKind grammar_kind(std::string_view text);

class Constraint {
 public:
  static Result<std::shared_ptr<const Constraint>> compile(const ConstraintSource& source,
                                                           std::shared_ptr<const VocabTrie> trie,
                                                           const ConstraintLimits& limits = {});

  const Rules& rules() const { return rules_; }
  RegexDfa& dfa() const { return *dfa_; }  // locks by itself
  const VocabTrie& trie() const { return *trie_; }
  const ConstraintLimits& limits() const { return limits_; }
  uint64_t compile_work() const { return compile_work_; }
  // Without the trie, which is shared. Grows as texts reach new states; any thread.
  size_t memory_bytes() const;

 private:
  friend class RuleBuilder;
  Constraint() = default;

  Rules rules_;
  std::unique_ptr<RegexDfa> dfa_;
  std::shared_ptr<const VocabTrie> trie_;
  ConstraintLimits limits_;
  uint64_t compile_work_ = 0;
};

}  // namespace sluice::constrain
