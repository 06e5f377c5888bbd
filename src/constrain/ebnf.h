// Grammars as rules of alternatives, whatever syntax they were written in (GBNF, Lark). Rules
// without recursion become one regular expression each, so that most of a text is matched there.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "constrain/rule_builder.h"

namespace sluice::constrain {

struct EbnfExpr {
  enum class Kind : uint8_t { regex, rule, seq, alt, rep } kind = Kind::seq;
  RegexId regex = RegexPool::kEps;
  std::string rule{};
  std::vector<EbnfExpr> parts{};
  uint32_t min = 1, max = 1;  // rep: of parts[0]
};

struct Ebnf {
  std::map<std::string, EbnfExpr> rules;
  std::string root;
};

// Direct left recursion is rewritten; indirect left recursion, unknown and empty rules are refused.
Result<RuleId> build_ebnf(RuleBuilder& builder, Ebnf grammar);

}  // namespace sluice::constrain
