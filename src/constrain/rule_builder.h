// What the readers of schemas and grammars build a Constraint with. Lives while one is compiled.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "constrain/code_points.h"
#include "constrain/constraint.h"

namespace sluice::constrain {

class RuleBuilder {
 public:
  RuleBuilder(const ConstraintLimits& limits, JsonSpace space);

  RegexPool& pool() { return constraint_->dfa_->pool(); }
  CodeSpeller& speller() { return speller_; }
  WorkBudget& budget() { return budget_; }
  const ConstraintLimits& limits() const { return limits_; }
  Rules& rules() { return constraint_->rules_; }

  RuleId add(ConstraintRule rule);
  // kDead for an expression that matches nothing; check failed() afterwards.
  RuleId lex(RegexId r);
  DfaState state(RegexId r);
  RuleId seq(std::vector<RuleId> parts);
  RuleId alt(std::vector<RuleId> parts);
  // The first limit that was exceeded; empty if none was.
  const char* exceeded() const;

  // Sets the white space and punctuation of JSON; for constraints that contain JSON.
  void add_json_punctuation();

  Result<std::shared_ptr<const Constraint>> finish(RuleId root,
                                                   std::shared_ptr<const VocabTrie> trie);

 private:
  ConstraintLimits limits_;
  WorkBudget budget_;
  std::shared_ptr<Constraint> constraint_;
  CodeSpeller speller_;
  JsonSpace space_;
  bool dfa_full_ = false;
};

// Readers, one per kind of source. Each returns the root rule.
Result<RuleId> build_json_schema(RuleBuilder& builder, std::string_view text);
Result<RuleId> build_json_object(RuleBuilder& builder);
Result<RuleId> build_gbnf(RuleBuilder& builder, std::string_view text);
Result<RuleId> build_lark(RuleBuilder& builder, std::string_view text);
Result<RuleId> build_structural_tags(RuleBuilder& builder, std::string_view text);

}  // namespace sluice::constrain
