#include "server/constraint_fields.h"

#include <algorithm>
#include <span>
#include <utility>

#include "base/str.h"

namespace sluice {

namespace {

using constrain::ConstraintKind;
using constrain::JsonSpace;

// How a constraint is written as JSON.
enum class ConstraintForm : uint8_t {
  schema,   // a JSON schema, or its text
  text,     // a string
  grammar,  // a string: GBNF or Lark
  list,     // strings
  tags,     // structural tags, or their text
  flag,     // true
};

struct ConstraintName {
  std::string_view name;
  ConstraintKind kind;
  ConstraintForm form;
};

using enum ConstraintForm;
constexpr ConstraintName kTopLevel[] = {
    {"guided_json", ConstraintKind::json_schema, schema},
    {"guided_regex", ConstraintKind::regex, text},
    {"guided_choice", ConstraintKind::choice, list},
    {"guided_grammar", ConstraintKind::gbnf, grammar},
    {"guided_json_object", ConstraintKind::json_object, flag},
    {"grammar", ConstraintKind::gbnf, grammar},
    {"json_schema", ConstraintKind::json_schema, schema},
    {"regex", ConstraintKind::regex, text},
    {"ebnf", ConstraintKind::gbnf, text},
    {"structural_tag", ConstraintKind::structural_tags, tags},
};
constexpr ConstraintName kStructured[] = {
    {"json", ConstraintKind::json_schema, schema},
    {"regex", ConstraintKind::regex, text},
    {"choice", ConstraintKind::choice, list},
    {"grammar", ConstraintKind::gbnf, grammar},
    {"json_object", ConstraintKind::json_object, flag},
    {"structural_tag", ConstraintKind::structural_tags, tags},
};

// One request's constraint. `path` names the part of a field that is read: a member has the
// field's name and a dot in front; errors carry the field's name as their param.
class ConstraintReader {
 public:
  ConstraintReader(Fields& fields, GenerateFields& out) : fields_(fields), out_(out) {}

  void read_named(std::span<const ConstraintName> names) {
    for (const ConstraintName& n : names) {
      if (const json::value* v = fields_.get(n.name)) take(n.name, std::string(n.name), n, *v);
    }
  }

  void read_response_format() {
    constexpr std::string_view kName = "response_format";
    const json::value* v = fields_.get(kName);
    if (!v) return;
    const json::object* o = v->if_object();
    if (!o) return wrong(kName, "response_format must be an object with a type");
    const json::value* type = member(*o, "type");
    std::string_view what = type && type->is_string() ? type->get_string() : std::string_view();
    if (what == "text") {
      only(kName, *o, {"type"});
    } else if (what == "json_object") {
      only(kName, *o, {"type", "schema"});
      const json::value* own = member(*o, "schema");  // llama.cpp's
      if (own) return take(kName, "response_format.schema", kStructured[0], *own);
      set(kName, ConstraintKind::json_object, "");
    } else if (what == "json_schema") {
      only(kName, *o, {"type", "json_schema"});
      read_schema_format(kName, member(*o, "json_schema"));
    } else if (what == "structural_tag") {
      only(kName, *o, {"type", "structures", "triggers", "format"});
      json::object tags_of;
      for (const char* part : {"structures", "triggers", "format"}) {
        if (const json::value* p = member(*o, part)) tags_of[part] = *p;
      }
      set(kName, ConstraintKind::structural_tags, json::serialize(tags_of));
    } else if (what == "grammar") {
      only(kName, *o, {"type", "grammar"});
      const json::value* own = member(*o, "grammar");
      if (!own) return wrong(kName, "response_format.grammar is missing");
      take(kName, "response_format.grammar", {"", ConstraintKind::gbnf, grammar}, *own);
    } else {
      wrong(kName,
            "response_format.type must be text, json_object, json_schema, structural_tag or "
            "grammar");
    }
  }

  void read_structured_outputs() {
    constexpr std::string_view kName = "structured_outputs";
    const json::value* v = fields_.get(kName);
    if (!v) return;
    const json::object* o = v->if_object();
    if (!o) return wrong(kName, "structured_outputs must be an object");
    only(kName, *o,
         {"json", "regex", "choice", "grammar", "json_object", "structural_tag",
          "disable_any_whitespace", "disable_fallback", "_backend", "_backend_was_auto"});
    bool before = out_.constraint.has_value(), compact = false;
    for (const ConstraintName& n : kStructured) {
      if (const json::value* part = member(*o, n.name))
        take(kName, "structured_outputs." + std::string(n.name), n, *part);
    }
    if (const json::value* space = member(*o, "disable_any_whitespace")) {
      if (!space->is_bool())
        return wrong(kName, "structured_outputs.disable_any_whitespace must be true or false");
      compact = space->get_bool();
    }
    if (!out_.constraint)
      return wrong(kName,
                   "structured_outputs needs one of json, regex, choice, grammar, json_object and "
                   "structural_tag");
    if (!before && compact) out_.constraint->source.space = JsonSpace::none;
  }

  // TGI's {"type": "json", "value": SCHEMA}; also regex, and json_schema with a name.
  void read_tgi() {
    constexpr std::string_view kName = "grammar";
    const json::value* v = fields_.get(kName);
    if (!v || (v->is_string() && v->get_string().empty())) return;
    const json::object* o = v->if_object();
    const json::value* type = o ? member(*o, "type") : nullptr;
    const json::value* value = o ? member(*o, "value") : nullptr;
    std::string_view what = type && type->is_string() ? type->get_string() : std::string_view();
    if (!value) return wrong(kName, "grammar must be an object with a type and a value");
    only(kName, *o, {"type", "value"});
    if (what == "json" || what == "json_object") {
      take(kName, "grammar.value", kStructured[0], *value);
    } else if (what == "regex") {
      take(kName, "grammar.value", kStructured[1], *value);
    } else if (what == "json_schema") {
      read_schema_format(kName, value);
    } else {
      wrong(kName, "grammar.type must be json, json_schema or regex");
    }
  }

 private:
  static const json::value* member(const json::object& o, std::string_view name) {
    const json::value* v = o.if_contains(name);
    return v && !v->is_null() ? v : nullptr;
  }
  void wrong(std::string_view field, std::string message, std::string code = {}) {
    fields_.fail(field, std::move(message), std::move(code));
  }
  void only(std::string_view field,
            const json::object& o,
            std::initializer_list<std::string_view> names) {
    for (const auto& pair : o) {
      const json::value& v = pair.value();
      if (v.is_null() || (v.is_bool() && !v.get_bool())) continue;  // asks for nothing
      std::string_view name = pair.key();
      if (std::find(names.begin(), names.end(), name) != names.end()) continue;
      wrong(field, strf("%s.%s is not supported", std::string(field).c_str(), shown(name).c_str()),
            "unsupported_parameter");
    }
  }
  static std::string shown(std::string_view name) {
    bool plain = !name.empty() && name.size() <= 64 &&
                 std::all_of(name.begin(), name.end(), [](char c) { return c > ' ' && c < 127; });
    return plain ? std::string(name) : quote(name);
  }

  // {"name", "description", "schema", "strict"}. `strict` changes nothing: every output is valid.
  void read_schema_format(std::string_view field, const json::value* format) {
    const json::object* o = format ? format->if_object() : nullptr;
    std::string path = std::string(field) + ".json_schema";
    if (!o) return wrong(field, path + " must be an object with a schema");
    for (const auto& pair : *o) {
      const json::value& v = pair.value();
      std::string_view name = pair.key();
      bool text_of = name == "name" || name == "description";
      if (v.is_null() || name == "schema") continue;
      if (text_of ? v.is_string() : name == "strict" && v.is_bool()) continue;
      if (text_of) return wrong(field, path + "." + std::string(name) + " must be a string");
      if (name == "strict") return wrong(field, path + ".strict must be true or false");
      return wrong(field, path + "." + shown(name) + " is not supported", "unsupported_parameter");
    }
    const json::value* own = member(*o, "schema");
    if (!own) return wrong(field, path + ".schema is missing");
    take(field, path + ".schema", kStructured[0], *own);
  }

  void take(std::string_view field,
            const std::string& path,
            const ConstraintName& n,
            const json::value& v) {
    bool empty = v.is_string() && v.get_string().empty();
    switch (n.form) {
      case schema:
        if (empty) return;
        if (!v.is_object() && !v.is_bool() && !v.is_string())
          return wrong(field, path + " must be a JSON schema or its text");
        return set(field, n.kind, v.is_string() ? str(v) : json::serialize(v));
      case tags:
        if (empty) return;
        if (!v.is_object() && !v.is_string())
          return wrong(field, path + " must be an object with structures and triggers");
        return set(field, n.kind, v.is_string() ? str(v) : json::serialize(v));
      case text:
      case grammar:
        if (!v.is_string()) return wrong(field, path + " must be a string");
        if (empty) return;
        return set(field, n.form == grammar ? constrain::grammar_kind(str(v)) : n.kind, str(v));
      case list:
        if (!v.is_array() || v.get_array().empty() ||
            !std::all_of(v.get_array().begin(), v.get_array().end(),
                         [](const json::value& x) { return x.is_string(); }))
          return wrong(field, path + " must be a list of strings with at least one");
        return set(field, n.kind, json::serialize(v));
      case flag:
        if (!v.is_bool()) return wrong(field, path + " must be true or false");
        if (v.get_bool()) set(field, n.kind, "");
        return;
    }
  }

  static std::string str(const json::value& v) { return std::string(v.get_string()); }

  void set(std::string_view field, ConstraintKind kind, std::string source) {
    constexpr size_t kMost = constrain::ConstraintLimits().max_source_bytes;
    std::string name(field);
    if (source.size() > kMost)
      return wrong(field, strf("%s has %zu bytes; at most %zu are allowed", name.c_str(),
                               source.size(), kMost));
    if (!out_.constraint) {
      out_.constraint = ConstraintField{name, {kind, std::move(source), JsonSpace::flexible}};
      return;
    }
    const std::string& other = out_.constraint->name;
    wrong(field, other == name ? name + " has two constraints: send one of them"
                               : strf("%s and %s both constrain the answer: send one of them",
                                      other.c_str(), name.c_str()));
  }

  Fields& fields_;
  GenerateFields& out_;
};

}  // namespace

void read_constraint(Fields& fields, GenerateFields& out) {
  ConstraintReader reader(fields, out);
  reader.read_response_format();
  reader.read_structured_outputs();
  reader.read_named(kTopLevel);
}

void read_tgi_constraint(Fields& parameters, GenerateFields& out) {
  ConstraintReader(parameters, out).read_tgi();
}

void check_constrained(Fields& fields, const GenerateFields& given, const std::string& by) {
  auto refuse = [&](const char* name, const char* why) {
    fields.fail(name, strf("%s does not go with %s: %s", name, by.c_str(), why),
                "unsupported_parameter");
  };
  if (given.ignore_eos) refuse("ignore_eos", "the answer ends where its form is complete");
  if (given.sampling.min_tokens > 0)
    refuse("min_tokens", "ask for a longest or shortest value in the constraint");
  if (!given.bad_words.empty()) refuse("bad_words", "leave the words out of the constraint");
  if (!given.sampling.allowed.empty())
    refuse("allowed_token_ids", "the constraint says which tokens are allowed");
}

}  // namespace sluice
