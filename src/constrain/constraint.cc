#include "constrain/constraint.h"

#include <algorithm>

#include "base/json.h"
#include "base/str.h"
#include "constrain/pattern.h"
#include "constrain/rule_builder.h"

namespace sluice::constrain {

std::string ConstraintSource::key() const {
  return strf("%d %d ", static_cast<int>(kind), static_cast<int>(space)) + text;
}

ConstraintKind grammar_kind(std::string_view text) {
  constexpr std::string_view kBlank = " \t\r";
  while (!text.empty()) {
    size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    line.remove_prefix(std::min(line.find_first_not_of(kBlank), line.size()));
    auto is_name = [](char c) {
      return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
             c == '-' || c == '_';
    };
    size_t name = 0;
    while (name < line.size() && is_name(line[name])) ++name;
    if (name == 0) continue;
    line.remove_prefix(name);
    line.remove_prefix(std::min(line.find_first_not_of(kBlank), line.size()));
    if (line.starts_with("::=")) return ConstraintKind::gbnf;
  }
  return ConstraintKind::lark;
}

size_t Constraint::memory_bytes() const {
  size_t bytes = sizeof(Constraint) + dfa_->memory_bytes();
  for (const ConstraintRule& r : rules_.rules)
    bytes += sizeof(ConstraintRule) + r.parts.size() * sizeof(RuleId);
  for (const ObjectRule& o : rules_.objects) {
    bytes += sizeof(ObjectRule) + o.properties.size() * sizeof(ObjectRule::Property) +
             o.extras.size() * sizeof(ObjectRule::Extra);
    for (const ObjectRule::KeyNode& k : o.keys)
      bytes += sizeof(k) + k.children.size() * sizeof(k.children[0]);
  }
  return bytes;
}

RuleBuilder::RuleBuilder(const ConstraintLimits& limits, JsonSpace space)
    : limits_(limits),
      budget_(limits.max_compile_work),
      constraint_(new Constraint),
      speller_((constraint_->dfa_ = std::make_unique<RegexDfa>(limits, budget_))->pool()),
      space_(space) {}

RuleId RuleBuilder::add(ConstraintRule rule) {
  budget_.spend(5 + rule.parts.size());
  rules().rules.push_back(std::move(rule));
  return static_cast<RuleId>(rules().rules.size() - 1);
}

DfaState RuleBuilder::state(RegexId r) {
  DfaState s = constraint_->dfa_->start(r, budget_);
  if (s == RegexDfa::kFailed) dfa_full_ = true;
  return s == RegexDfa::kFailed ? RegexDfa::kDead : s;
}

RuleId RuleBuilder::lex(RegexId r) {
  return add({.kind = ConstraintRule::Kind::lex, .lex = state(r)});
}

RuleId RuleBuilder::seq(std::vector<RuleId> parts) {
  return add({.kind = ConstraintRule::Kind::seq, .parts = std::move(parts)});
}

RuleId RuleBuilder::alt(std::vector<RuleId> parts) {
  return add({.kind = ConstraintRule::Kind::alt, .parts = std::move(parts)});
}

const char* RuleBuilder::exceeded() const {
  if (budget_.spent()) return "steps of work";
  if (dfa_full_ || constraint_->dfa_->pool().failed()) return "states";
  return nullptr;
}

void RuleBuilder::add_json_punctuation() {
  RegexPool& p = pool();
  RegexId space = RegexPool::kEps;
  if (space_ == JsonSpace::flexible) {
    ByteSet blanks;
    blanks.add(' '), blanks.add('\t');
    RegexId line = p.concat(
        {p.optional(p.range('\r', '\r')), p.range('\n', '\n'), p.repeat(p.bytes(blanks), 0, 64)});
    space = p.any_of({p.repeat(p.range(' ', ' '), 0, 2), line});
  }
  auto after = [&](char c) { return state(p.concat(p.range(c, c), space)); };
  auto before = [&](char c) { return state(p.concat(space, p.range(c, c))); };
  auto around = [&](char c) { return state(p.concat({space, p.range(c, c), space})); };
  auto& json = rules().json;
  json = {after('{'), before('}'), after('['), before(']'), around(','), around(':')};
}

Result<std::shared_ptr<const Constraint>> RuleBuilder::finish(
    RuleId root, std::shared_ptr<const VocabTrie> trie) {
  if (const char* limit = exceeded()) {
    return Error{400, strf("the constraint is too large: more %s than are allowed", limit)};
  }
  rules().root = root;
  constraint_->trie_ = std::move(trie);
  constraint_->limits_ = limits_;
  constraint_->compile_work_ = limits_.max_compile_work - budget_.left();
  return std::shared_ptr<const Constraint>(std::move(constraint_));
}

namespace {

Result<RuleId> build_choice(RuleBuilder& builder, std::string_view text) {
  Result<json::value> list = parse_json(text, {.max_values = 100'000});
  if (!list) return Error{400, "choice: " + list.error().message};
  if (!list->is_array() || list->get_array().empty()) {
    return Error{400, "choice must be a list of strings with at least one"};
  }
  std::vector<RegexId> options;
  for (const json::value& v : list->get_array()) {
    if (!v.is_string()) return Error{400, "choice must be a list of strings"};
    if (v.get_string().empty()) return Error{400, "choice: an empty string cannot be chosen"};
    if (builder.pool().failed()) break;
    options.push_back(builder.pool().literal(v.get_string()));
  }
  return builder.lex(builder.pool().any_of(std::move(options)));
}

Result<RuleId> build_regex(RuleBuilder& builder, std::string_view text) {
  Result<RegexId> r =
      build_pattern(text, builder.pool(), builder.speller(),
                    {Spelling::utf8, PatternMatch::whole, builder.limits().max_depth});
  if (!r) return r.error();
  if (builder.pool().is_empty(*r) && !builder.exceeded()) {
    return Error{400, "regex: no text matches"};
  }
  return builder.lex(*r);
}

Result<RuleId> build(RuleBuilder& builder, const ConstraintSource& source) {
  switch (source.kind) {
    case ConstraintKind::json_schema:
      return build_json_schema(builder, source.text);
    case ConstraintKind::json_object:
      return build_json_object(builder);
    case ConstraintKind::regex:
      return build_regex(builder, source.text);
    case ConstraintKind::choice:
      return build_choice(builder, source.text);
    case ConstraintKind::gbnf:
      return build_gbnf(builder, source.text);
    case ConstraintKind::lark:
      return build_lark(builder, source.text);
    case ConstraintKind::structural_tags:
      return build_structural_tags(builder, source.text);
  }
  return Error{400, "unknown kind of constraint"};
}

}  // namespace

Result<std::shared_ptr<const Constraint>> Constraint::compile(const ConstraintSource& source,
                                                              std::shared_ptr<const VocabTrie> trie,
                                                              const ConstraintLimits& limits) {
  if (source.text.size() > limits.max_source_bytes) {
    return Error{400, strf("the constraint has %zu bytes; at most %zu are allowed",
                           source.text.size(), limits.max_source_bytes)};
  }
  if (!valid_utf8(source.text)) return Error{400, "the constraint is not valid UTF-8"};
  RuleBuilder builder(limits, source.space);
  Result<RuleId> root = build(builder, source);
  if (!root) return root.error();
  return builder.finish(*root, std::move(trie));
}

}  // namespace sluice::constrain
