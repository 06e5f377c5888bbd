// SchemaCompiler: sets of values to rules.
#include <algorithm>

#include "base/str.h"
#include "constrain/schema_compiler.h"

namespace sluice::constrain {

Result<RuleId> SchemaCompiler::compile(const json::value& document) {
  document_ = &document;
  collect_ids(document, 0);
  SchemaRef root = of(document);
  Result<bool> none = empty(root);
  if (!none) return none.error();
  if (*none) {
    if (auto limits = check_limits(); !limits) return limits.error();
    return Error{400, "schema: no value is valid"};
  }
  Result<RuleId> made = rule(root);
  if (!made) return made;
  // Schemas are turned into rules one by one, however deep they are nested.
  while (!pending_.empty()) {
    SchemaRef next = pending_.back();
    pending_.pop_back();
    if (Result<RuleId> body = rule_body(next, rules_[next]); !body) return body;
  }
  if (auto limits = check_limits(); !limits) return limits.error();
  return made;
}

Result<RuleId> SchemaCompiler::compile_any_object() {
  SchemaSet set;
  set.objects = schemas_[kTrue].set.objects;
  Result<RuleId> made = rule(fixed(std::move(set)));
  while (made && !pending_.empty()) {
    SchemaRef next = pending_.back();
    pending_.pop_back();
    if (Result<RuleId> body = rule_body(next, rules_[next]); !body) return body;
  }
  return made;
}

Result<RuleId> SchemaCompiler::rule(SchemaRef ref) {
  auto [at, is_new] = rules_.try_emplace(ref, 0);
  if (is_new) {
    at->second = builder_.alt({});
    pending_.push_back(ref);
  }
  return at->second;
}

Result<RuleId> SchemaCompiler::rule_body(SchemaRef ref, RuleId at) {
  Set set = eval(ref);
  if (!set) return set.error();
  const SchemaSet s = **set;
  std::vector<RegexId> scalars;
  if (s.null) scalars.push_back(pool_.literal("null"));
  if (s.yes) scalars.push_back(pool_.literal("true"));
  if (s.no) scalars.push_back(pool_.literal("false"));
  for (const NumberSet& n : s.numbers) scalars.push_back(number_regex(pool_, n));
  if (!pool_.is_empty(s.strings)) scalars.push_back(pool_.concat({quote_, s.strings, quote_}));
  std::vector<RuleId> parts;
  if (!scalars.empty()) parts.push_back(builder_.lex(pool_.any_of(std::move(scalars))));
  for (const ArraySet& a : s.arrays) {
    Result<bool> none = empty(a);
    if (!none) return none.error();
    if (*none) continue;
    Result<RuleId> r = array_rule(a);
    if (!r) return r;
    parts.push_back(*r);
  }
  for (const ObjectSet& o : s.objects) {
    Result<bool> none = empty(o);
    if (!none) return none.error();
    if (*none) continue;
    Result<RuleId> r = object_rule(o);
    if (!r) return r;
    parts.push_back(*r);
  }
  builder_.rules().rules[at].parts = std::move(parts);
  if (auto limits = check_limits(); !limits) return limits.error();
  return at;
}

Result<RuleId> SchemaCompiler::array_rule(const ArraySet& a) {
  ConstraintRule out{.kind = ConstraintRule::Kind::array, .min = a.min, .max = a.max};
  bool ends = false;
  for (size_t i = 0; i < a.prefix.size() && i < a.max && !ends; ++i) {
    Result<bool> none = empty(a.prefix[i]);
    if (!none) return none.error();
    ends = *none;
    if (ends) break;
    Result<RuleId> r = rule(a.prefix[i]);
    if (!r) return r;
    out.parts.push_back(*r);
  }
  if (!ends) {
    Result<bool> none = empty(a.items);
    if (!none) return none.error();
    if (!*none && a.max > out.parts.size()) {
      Result<RuleId> r = rule(a.items);
      if (!r) return r;
      out.items = *r;
    }
  }
  return builder_.add(std::move(out));
}

Result<RuleId> SchemaCompiler::object_rule(const ObjectSet& o) {
  ObjectRule out;
  out.min = o.min, out.max = o.max;
  ObjectSet all = o;
  for (const std::string& key : o.required) {  // required, but not declared
    bool declared = std::any_of(all.properties.begin(), all.properties.end(),
                                [&](const auto& p) { return p.first == key; });
    if (!declared) all.properties.emplace_back(key, value_of(o, key));
  }
  std::vector<std::pair<std::string, ObjectRule::Property>> sorted;
  std::vector<RegexId> names;
  for (const auto& [name, value] : all.properties) {
    std::string spelled = spell_key(name);
    names.push_back(pool_.literal(spelled));
    Result<bool> none = empty(value);
    if (!none) return none.error();
    if (*none) continue;
    Result<RuleId> r = rule(value);
    if (!r) return r;
    bool required = std::find(o.required.begin(), o.required.end(), name) != o.required.end();
    sorted.push_back({"\"" + spelled + "\"", {*r, required}});
    out.num_required += required;
  }
  std::sort(sorted.begin(), sorted.end(),
            [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<std::string> keys;
  for (auto& [key, property] : sorted) {
    keys.push_back(key);
    out.properties.push_back(property);
  }
  build_key_trie(keys, out);
  builder_.budget().spend(out.keys.size());
  RegexId declared = pool_.any_of(std::move(names));
  for (const ObjectSet::KeyClass& other : o.others) {
    Result<bool> none = empty(other.value);
    if (!none) return none.error();
    if (*none) continue;
    RegexId left = declared == RegexPool::kEmpty ? other.keys : pool_.minus(other.keys, declared);
    if (pool_.is_empty(left)) continue;
    RegexId key = pool_.concat({quote_, left, quote_});
    Result<RuleId> r = rule(other.value);
    if (!r) return r;
    bool finite = other.keys != all_keys_ && pool_.count(key, 256) < 256;
    out.extras.push_back({builder_.state(key), *r, finite});
  }
  ConstraintRule rule{.kind = ConstraintRule::Kind::object};
  rule.object = static_cast<uint32_t>(builder_.rules().objects.size());
  builder_.rules().objects.push_back(std::move(out));
  return builder_.add(std::move(rule));
}

Result<RuleId> build_json_schema(RuleBuilder& builder, std::string_view text) {
  Result<json::value> document =
      parse_json(text, {.max_values = 200'000, .max_key_pairs = 1u << 24});
  if (!document) return Error{400, "schema: " + document.error().message};
  builder.add_json_punctuation();
  return SchemaCompiler(builder).compile(*document);
}

Result<RuleId> build_json_object(RuleBuilder& builder) {
  builder.add_json_punctuation();
  return SchemaCompiler(builder).compile_any_object();
}

}  // namespace sluice::constrain
