#include "dialect/call_grammar.h"

#include <algorithm>
#include <unordered_set>
#include <utility>

#include "base/str.h"
#include "dialect/marker_scan.h"

namespace sluice::dialect {

namespace {

// Nodes of structural tags (constrain/structural_tags.cc).
json::object text_node(std::string_view text) {
  return {{"type", "const_string"}, {"value", text}};
}

json::object text_node(std::initializer_list<std::string_view> parts) {
  std::string text;
  for (std::string_view p : parts) text += p;
  return text_node(text);
}

json::object free_node(std::initializer_list<std::string_view> without) {
  json::array excludes;
  for (std::string_view text : without) {
    if (!text.empty()) excludes.emplace_back(text);
  }
  return {{"type", "any_text"}, {"excludes", std::move(excludes)}};
}

json::object list_node(const char* type, json::array elements) {
  return {{"type", type}, {"elements", std::move(elements)}};
}

json::object sequence(json::array elements) { return list_node("sequence", std::move(elements)); }
json::object any_of(json::array elements) { return list_node("or", std::move(elements)); }
json::object optional_node(json::object node) { return any_of({std::move(node), text_node("")}); }

json::object repeat_node(json::object content, bool several, std::string_view separator) {
  json::object o{{"type", "repeat"}, {"content", std::move(content)}, {"min", 1}};
  if (!several) o["max"] = 1;
  o["separator"] = separator;
  return o;
}

json::object schema_node(json::value schema) {
  return {{"type", "json_schema"}, {"json_schema", std::move(schema)}};
}

json::object arguments_schema(const Tool& tool) {
  json::object schema = tool.parameters;
  if (!schema.contains("type")) schema["type"] = "object";
  return schema;
}

// A parameter's schema, with the definitions that it may refer to.
json::value parameter_schema(const Tool& tool, const json::value& schema) {
  if (!schema.is_object()) return schema;
  json::object o = schema.get_object();
  for (const char* name : {"$defs", "definitions"}) {
    const json::value* all = tool.parameters.if_contains(name);
    if (all && !o.contains(name)) o[name] = *all;
  }
  return o;
}

// Text without quotes: any, or one of those in `enum`. Other keywords cannot be kept.
Result<json::object> bare_text(const Tool& tool,
                               std::string_view key,
                               const json::object& schema,
                               std::string_view end) {
  if (const json::value* values = schema.if_contains("enum"); values && values->is_array()) {
    json::array texts;
    for (const json::value& v : values->get_array()) {
      if (v.is_string() && v.get_string().find(end) == json::string::npos)
        texts.push_back(text_node(std::string_view(v.get_string())));
    }
    if (!texts.empty()) return any_of(std::move(texts));
  }
  for (const char* name : {"pattern", "format", "minLength", "maxLength", "const", "allOf", "anyOf",
                           "oneOf", "not", "enum", "$ref"}) {
    if (schema.contains(name))
      return Error{400, strf("tool %s: %s of %s cannot be kept in this model's format",
                             quote(tool.name).c_str(), name, quote(key).c_str())};
  }
  return free_node({end});
}

// A parameter with its key and value, as the format writes it.
Result<json::object> parameter(const ToolFormat& f,
                               const Tool& tool,
                               std::string_view key,
                               const json::value& schema) {
  constexpr std::string_view kEnd = "</parameter>";
  Tool::Type type = tool.type_of(key);
  json::object value = schema_node(parameter_schema(tool, schema));
  if (type == Tool::Type::text && f.shape != CallShape::pythonic) {
    std::string_view end = f.shape == CallShape::xml ? kEnd : f.quote;
    Result<json::object> text = bare_text(tool, key, schema.get_object(), end);
    if (!text) return text;
    value = std::move(*text);
  }
  switch (f.shape) {
    case CallShape::xml:
      return sequence(
          {text_node({"<parameter=", key, ">\n"}), value, text_node("\n</parameter>\n")});
    case CallShape::pythonic:
      if (type == Tool::Type::boolean) value = any_of({text_node("True"), text_node("False")});
      return sequence({text_node({key, "="}), value});
    default:
      if (type == Tool::Type::text)
        return sequence({text_node({key, ":", f.quote}), value, text_node(f.quote)});
      return sequence({text_node({key, ":"}), value});
  }
}

// What grammars of calls may take together, in bytes of their text.
class GrammarBudget {
 public:
  bool spend(size_t bytes) {
    if (bytes > left_) return false;
    left_ -= bytes;
    return true;
  }

 private:
  size_t left_ = constrain::ConstraintLimits().max_source_bytes;
};

std::unordered_set<std::string_view> required_of(const Tool& tool) {
  std::unordered_set<std::string_view> names;
  const json::value* required = tool.parameters.if_contains("required");
  if (!required || !required->is_array()) return names;
  for (const json::value& name : required->get_array()) {
    if (name.is_string()) names.insert(name.get_string());
  }
  return names;
}

// Required parameters in their order, then others, each or not.
Result<json::object> parameters(const ToolFormat& f, const Tool& tool, GrammarBudget& budget) {
  std::string_view comma = f.shape == CallShape::xml        ? ""
                           : f.shape == CallShape::pythonic ? ", "
                                                            : ",";
  const json::value* properties = tool.parameters.if_contains("properties");
  for (const char* name : {"$ref", "allOf", "anyOf", "oneOf", "not", "if"}) {
    if (tool.parameters.contains(name))
      return Error{400, strf("tool %s: %s of its parameters cannot be kept in this model's format",
                             quote(tool.name).c_str(), name)};
  }
  if (!properties || !properties->is_object() || properties->get_object().empty())
    return text_node("");
  const std::unordered_set<std::string_view> required = required_of(tool);
  // Without a required one, each optional one is written behind all that may come before it.
  const bool repeated =
      !comma.empty() && std::ranges::none_of(properties->get_object(), [&](const auto& p) {
        return required.contains(p.key());
      });
  json::array must, may;
  for (const auto& p : properties->get_object()) {
    Result<json::object> node = parameter(f, tool, p.key(), p.value());
    if (!node) return node;
    const bool needed = required.contains(p.key());
    if (!budget.spend(json::serialize(*node).size() * (repeated ? may.size() + 1 : 1)))
      return Error{400, strf("tool %s: its parameters are too many or too large for a grammar of "
                             "this model's format",
                             quote(tool.name).c_str())};
    (needed ? must : may).push_back(std::move(*node));
  }
  auto more = [&](const json::value& node) {
    return optional_node(sequence({text_node(comma), node}));
  };
  json::array all;
  for (const json::value& node : must) {
    if (!all.empty() && !comma.empty()) all.push_back(text_node(comma));
    all.push_back(node);
  }
  if (!must.empty() || comma.empty()) {
    for (const json::value& node : may) all.push_back(more(node));
    return sequence(std::move(all));
  }
  json::array starts{text_node("")};  // by the first that is there
  for (size_t i = 0; i < may.size(); ++i) {
    json::array rest{may[i]};
    for (size_t k = i + 1; k < may.size(); ++k) rest.push_back(more(may[k]));
    starts.push_back(sequence(std::move(rest)));
  }
  return any_of(std::move(starts));
}

std::string json_text(std::string_view text) { return json::serialize(json::string(text)); }

Result<json::object> call_node(const ToolFormat& f, const Tool& tool, GrammarBudget& budget) {
  switch (f.shape) {
    case CallShape::json:
      return sequence({text_node({"{", json_text(f.name_key), ": ", json_text(tool.name), ", ",
                                  json_text(f.args_key), ": "}),
                       schema_node(arguments_schema(tool)), text_node("}")});
    case CallShape::named:
      return sequence({text_node({f.call_begin, f.before_name, tool.name, f.after_name}),
                       schema_node(arguments_schema(tool)), text_node({f.after_args, f.call_end})});
    case CallShape::harmony:
      return sequence({text_node({"<|channel|>commentary to=", f.before_name, tool.name,
                                  " <|constrain|>json", f.after_name}),
                       schema_node(arguments_schema(tool))});
    default:
      break;
  }
  Result<json::object> inside = parameters(f, tool, budget);
  if (!inside) return inside;
  switch (f.shape) {
    case CallShape::xml:
      return sequence({text_node({f.before_name, tool.name, f.after_name}), std::move(*inside),
                       text_node(f.after_args)});
    case CallShape::pythonic:
      return sequence({text_node({tool.name, "("}), std::move(*inside), text_node(")")});
    default:
      return sequence(
          {text_node({f.before_name, tool.name, "{"}), std::move(*inside), text_node("}")});
  }
}

bool has_json_arguments(const ToolFormat& f) {
  return f.shape == CallShape::json || f.shape == CallShape::named || f.shape == CallShape::harmony;
}

// All calls of an answer. A line break behind a call may be the last: models that end with one
// would otherwise have to call again.
json::object calls_node(const ToolFormat& f, json::object call, bool several) {
  if (f.shape == CallShape::harmony) return call;
  std::string_view begin = f.bare ? "" : f.begin, end = f.bare ? "" : f.end;
  if (f.repeats) {
    json::object block = sequence({text_node(begin), std::move(call), text_node(end)});
    json::object all = repeat_node(std::move(block), several, f.between);
    if (!several || f.between != "\n") return all;
    return sequence({std::move(all), optional_node(text_node("\n"))});
  }
  std::string_view between = f.list && f.shape == CallShape::json ? ", " : f.between;
  return sequence({text_node({begin, f.list ? "[" : ""}),
                   repeat_node(std::move(call), several, between),
                   text_node({f.list ? "]" : "", end})});
}

// Thinking comes first where the model thinks.
json::object thinking_node(const OutputFormat& format) {
  if (format.is_harmony())
    return optional_node(
        sequence({text_node("<|channel|>analysis<|message|>"), free_node({"<|end|>"}),
                  text_node("<|end|><|start|>assistant")}));
  if (!format.think) return text_node("");
  const ThinkFormat& t = *format.think;
  return optional_node(sequence({text_node(t.begin), free_node({t.end}), text_node(t.end),
                                 any_of({text_node("\n\n"), text_node("\n"), text_node("")})}));
}

}  // namespace

Result<constrain::ConstraintSource> call_constraint(const OutputFormat& format,
                                                    const ToolSet& tools,
                                                    const CallRules& rules) {
  if (!format.tools) return Error{400, "how this model writes tool calls is not known"};
  const ToolFormat& f = *format.tools;
  json::array calls;
  GrammarBudget budget;
  for (const Tool& tool : tools.all()) {
    if (!rules.name.empty() && tool.name != rules.name) continue;
    Result<json::object> call = Error{};
    if (!rules.required && !tool.strict) {  // any arguments
      Tool loose{tool.name, {}, false};
      call = call_node(f, has_json_arguments(f) ? loose : tool, budget);
    } else {
      call = call_node(f, tool, budget);
    }
    if (!call) return call.error();
    calls.push_back(std::move(*call));
  }
  if (calls.empty()) return Error{400, "there is no tool to call"};
  // A tool that is named is called once.
  json::object node = calls_node(f, any_of(std::move(calls)), rules.parallel && rules.name.empty());
  json::object thinking = thinking_node(format);
  if (!rules.required) {
    if (f.bare || f.shape == CallShape::harmony)
      return Error{400,
                   "strict tools need tool_choice required with this model: its calls have no "
                   "mark that tells them from text"};
    json::object text = free_node({trimmed(f.begin), trimmed(f.begin2)});
    node = any_of({text, sequence({text, std::move(node)})});
  }
  json::object root = sequence({std::move(thinking), std::move(node)});
  return constrain::ConstraintSource{constrain::ConstraintKind::structural_tags,
                                     json::serialize(json::object{{"format", std::move(root)}})};
}

}  // namespace sluice::dialect
