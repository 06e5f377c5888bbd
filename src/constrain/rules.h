// A compiled constraint as rules that a Matcher runs: expressions joined by sequence, choice and
// repetition, and JSON arrays and objects. Plain data, immutable once compiled. Recursion is a rule
// that names an earlier one.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "constrain/regex_dfa.h"

namespace sluice::constrain {

using RuleId = uint32_t;
inline constexpr RuleId kNoRule = UINT32_MAX;
inline constexpr uint32_t kUnbounded = UINT32_MAX;

struct ConstraintRule {
  enum class Kind : uint8_t { lex, seq, alt, rep, array, object };
  Kind kind = Kind::alt;
  DfaState lex = RegexDfa::kDead;
  std::vector<RuleId> parts{};  // seq, alt; rep: one; array: the first items
  RuleId items = kNoRule;       // array: all further ones
  uint32_t min = 0, max = 0;    // rep, array
  uint32_t object = 0;          // index into Rules::objects
};

// Keys may come in any order, each once.
struct ObjectRule {
  struct KeyNode {
    std::vector<std::pair<uint8_t, uint32_t>> children;
    uint32_t first = 0, last = 0;  // the properties below, in order of their spelling
    int property = -1;             // that ends here
  };
  struct Property {
    RuleId value;
    bool required;
  };
  // Keys that are not declared, by pattern.
  struct Extra {
    DfaState key;
    RuleId value;
    bool finite;  // only so many different keys match
  };
  std::vector<KeyNode> keys;  // a trie over keys as JSON spells them, quotes included
  std::vector<Property> properties;
  std::vector<Extra> extras;
  uint32_t num_required = 0;
  uint32_t min = 0, max = kUnbounded;
};

struct Rules {
  std::vector<ConstraintRule> rules;
  std::vector<ObjectRule> objects;
  RuleId root = 0;
  // JSON's punctuation with the white space around it.
  struct {
    DfaState open_object, close_object, open_array, close_array, comma, colon;
  } json{};
};

// Declares the properties of an object: sorted keys, as JSON spells them, to the trie.
void build_key_trie(const std::vector<std::string>& sorted_keys, ObjectRule& out);

}  // namespace sluice::constrain
