// Structural tags: free text in which some strings (triggers) begin a part that follows a schema:
//   {"structures": [{"begin": "<f>", "schema": {...}, "end": "</f>"}], "triggers": ["<f"]}
// Every begin starts with a trigger. Free text contains no trigger.
#include <algorithm>
#include <deque>

#include "base/json.h"
#include "base/str.h"
#include "constrain/schema_compiler.h"

namespace sluice::constrain {

Result<RuleId> build_structural_tags(RuleBuilder& builder, std::string_view text) {
  Result<json::value> parsed = parse_json(text, {.max_values = 200'000, .max_key_pairs = 1u << 24});
  if (!parsed) return Error{400, "structural tags: " + parsed.error().message};
  const json::object* o = parsed->if_object();
  const json::value* structures = o ? o->if_contains("structures") : nullptr;
  const json::value* triggers = o ? o->if_contains("triggers") : nullptr;
  if (!structures || !structures->is_array() || structures->get_array().empty() || !triggers ||
      !triggers->is_array() || triggers->get_array().empty()) {
    return Error{400, "structural tags: \"structures\" and \"triggers\" must be lists, not empty"};
  }
  RegexPool& pool = builder.pool();
  RegexId any = pool.star(builder.speller().any(Spelling::utf8));
  std::vector<RegexId> trigger_regexes;
  std::vector<std::string> trigger_texts;
  for (const json::value& t : triggers->get_array()) {
    if (!t.is_string() || t.get_string().empty()) {
      return Error{400, "structural tags: \"triggers\" must be strings, not empty"};
    }
    trigger_texts.emplace_back(t.get_string());
    trigger_regexes.push_back(pool.literal(trigger_texts.back()));
  }
  RegexId has_trigger = pool.concat({any, pool.any_of(std::move(trigger_regexes)), any});
  RegexId free_text = pool.minus(any, has_trigger);
  builder.add_json_punctuation();
  // Each part: text up to and with its begin (one expression), a value, its end.
  std::vector<RuleId> tagged;
  std::deque<SchemaCompiler> compilers;
  for (const json::value& s : structures->get_array()) {
    const json::object* part = s.if_object();
    const json::value* begin = part ? part->if_contains("begin") : nullptr;
    const json::value* schema = part ? part->if_contains("schema") : nullptr;
    const json::value* end = part ? part->if_contains("end") : nullptr;
    if (!begin || !begin->is_string() || !schema || !end || !end->is_string()) {
      return Error{400, "structural tags: a structure has \"begin\", \"schema\" and \"end\""};
    }
    std::string_view first = begin->get_string();
    bool triggered = std::any_of(trigger_texts.begin(), trigger_texts.end(),
                                 [&](const std::string& t) { return first.starts_with(t); });
    if (!triggered) {
      return Error{400,
                   strf("structural tags: begin %s starts with no trigger", quote(first).c_str())};
    }
    Result<RuleId> value = compilers.emplace_back(builder).compile(*schema);
    if (!value) return value;
    tagged.push_back(builder.seq({builder.lex(pool.concat(free_text, pool.literal(first))), *value,
                                  builder.lex(pool.literal(end->get_string()))}));
  }
  ConstraintRule loop{.kind = ConstraintRule::Kind::rep, .parts = {builder.alt(std::move(tagged))}};
  loop.min = 0, loop.max = kUnbounded;
  RuleId parts = builder.add(std::move(loop));
  return builder.seq({parts, builder.lex(free_text)});
}

}  // namespace sluice::constrain
