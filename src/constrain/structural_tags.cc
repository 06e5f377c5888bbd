// Structural tags: free text in which some strings (triggers) begin a part that follows a schema:
//   {"structures": [{"begin": "<f>", "schema": {...}, "end": "</f>"}], "triggers": ["<f"]}
// Every begin starts with a trigger. Free text contains no trigger.
// Or a tree, {"format": NODE}, whose nodes are named as xgrammar names them:
//   {"type": "const_string", "value": TEXT}
//   {"type": "json_schema", "json_schema": SCHEMA}
//   {"type": "any_text", "excludes": [TEXT, ...]}
//   {"type": "sequence", "elements": [NODE, ...]} and {"type": "or", "elements": [NODE, ...]}
//   {"type": "repeat", "content": NODE, "min": 0, "max": 3, "separator": TEXT}; max null: no end
#include <algorithm>
#include <deque>
#include <optional>

#include "base/json.h"
#include "base/str.h"
#include "constrain/schema_compiler.h"

namespace sluice::constrain {

namespace {

// Rules of a tree of nodes. JSON limits its depth.
class TagTree {
 public:
  explicit TagTree(RuleBuilder& builder) : builder_(builder) { builder_.add_json_punctuation(); }

  Result<RuleId> node(const json::value& value) {
    const json::object* o = value.if_object();
    const json::value* type = o ? o->if_contains("type") : nullptr;
    std::string_view name = type && type->is_string() ? std::string_view(type->get_string()) : "";
    if (name == "const_string" || name == "any_text") {
      Result<RegexId> text = expression(*o);
      if (!text) return text.error();
      return builder_.lex(*text);
    }
    if (name == "json_schema") {
      const json::value* schema = o->if_contains("json_schema");
      if (!schema) return wrong("json_schema needs \"json_schema\"");
      return compilers_.emplace_back(builder_).compile(*schema);
    }
    if (name == "sequence" || name == "or") return elements(*o, name == "or");
    if (name == "repeat") return repeat(*o);
    return wrong(strf("a node has no type %s", quote(name).c_str()));
  }

 private:
  static Error wrong(std::string what) { return {400, "structural tags: " + std::move(what)}; }
  static bool is_text(const json::value& v) {
    const json::object* o = v.if_object();
    const json::value* type = o ? o->if_contains("type") : nullptr;
    return type && (*type == "const_string" || *type == "any_text");
  }

  Result<RegexId> expression(const json::object& o) {
    RegexPool& pool = builder_.pool();
    if (o.at("type") == "const_string") {
      const json::value* text = o.if_contains("value");
      if (!text || !text->is_string()) return wrong("const_string needs \"value\"");
      return pool.literal(text->get_string());
    }
    RegexId any = pool.star(builder_.speller().any(Spelling::utf8));
    const json::value* excludes = o.if_contains("excludes");
    if (!excludes || (excludes->is_array() && excludes->get_array().empty())) return any;
    if (!excludes->is_array()) return wrong("\"excludes\" must be a list");
    std::vector<RegexId> texts;
    for (const json::value& v : excludes->get_array()) {
      if (!v.is_string() || v.get_string().empty())
        return wrong("\"excludes\" must be strings, not empty");
      texts.push_back(pool.literal(v.get_string()));
    }
    return pool.minus(any, pool.concat({any, pool.any_of(std::move(texts)), any}));
  }

  // Texts that follow each other become one expression: free text ends only where the next begins.
  Result<RuleId> elements(const json::object& o, bool choice) {
    const json::value* list = o.if_contains("elements");
    if (!list || !list->is_array() || list->get_array().empty())
      return wrong("\"elements\" must be a list, not empty");
    std::vector<RuleId> parts;
    std::optional<RegexId> texts;
    auto flush = [&] {
      if (texts) parts.push_back(builder_.lex(*texts));
      texts.reset();
    };
    for (const json::value& e : list->get_array()) {
      if (!choice && is_text(e)) {
        Result<RegexId> text = expression(e.get_object());
        if (!text) return text.error();
        texts = texts ? builder_.pool().concat(*texts, *text) : *text;
        continue;
      }
      flush();
      Result<RuleId> rule = node(e);
      if (!rule) return rule;
      parts.push_back(*rule);
    }
    flush();
    return choice ? builder_.alt(std::move(parts)) : builder_.seq(std::move(parts));
  }

  Result<RuleId> repeat(const json::object& o) {
    const json::value* content = o.if_contains("content");
    if (!content) return wrong("repeat needs \"content\"");
    auto number = [&](const char* key, uint32_t otherwise) {
      const json::value* v = o.if_contains(key);
      return v && v->is_int64()
                 ? static_cast<uint32_t>(std::clamp<int64_t>(v->get_int64(), 0, int64_t{1} << 16))
                 : otherwise;
    };
    uint32_t min = number("min", 0), max = number("max", kUnbounded);
    const json::value* separator = o.if_contains("separator");
    Result<RuleId> first = node(*content);
    if (!first) return first;
    if (max == 0 || max < min) return wrong("repeat: \"max\" is below \"min\", or 0");
    if (!separator || !separator->is_string() || separator->get_string().empty())
      return repeated(*first, min, max);
    RuleId text = builder_.lex(builder_.pool().literal(separator->get_string()));
    RuleId next = builder_.seq({text, *first});
    RuleId some = builder_.seq(
        {*first, repeated(next, min > 0 ? min - 1 : 0, max == kUnbounded ? max : max - 1)});
    return min > 0 ? some : repeated(some, 0, 1);
  }

  RuleId repeated(RuleId part, uint32_t min, uint32_t max) {
    ConstraintRule loop{.kind = ConstraintRule::Kind::rep, .parts = {part}};
    loop.min = min, loop.max = max;
    return builder_.add(std::move(loop));
  }

  RuleBuilder& builder_;
  std::deque<SchemaCompiler> compilers_;
};

}  // namespace

Result<RuleId> build_structural_tags(RuleBuilder& builder, std::string_view text) {
  Result<json::value> parsed = parse_json(text, {.max_values = 200'000, .max_key_pairs = 1u << 24});
  if (!parsed) return Error{400, "structural tags: " + parsed.error().message};
  const json::object* o = parsed->if_object();
  if (const json::value* format = o ? o->if_contains("format") : nullptr)
    return TagTree(builder).node(*format);
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
