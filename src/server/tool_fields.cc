#include "server/tool_fields.h"

#include "base/str.h"
#include "server/constraint_fields.h"

namespace sluice {

namespace {

constexpr const char* kChoices =
    "tool_choice must be auto, none, required or {\"type\": \"function\", \"function\": "
    "{\"name\": ...}}";

void read_choice(Fields& f, ToolFields& out) {
  const json::value* v = f.get("tool_choice");
  if (!v) return;
  if (v->is_string()) {
    std::string_view text = v->get_string();
    if (text == "auto") return;
    if (text != "none" && text != "required") return f.fail("tool_choice", kChoices);
    out.choice = text == "none" ? ToolFields::Choice::none : ToolFields::Choice::required;
  } else {
    const json::object* o = v->if_object();
    const json::value* type = o ? o->if_contains("type") : nullptr;
    const json::value* function = o ? o->if_contains("function") : nullptr;
    const json::value* name =
        function && function->is_object() ? function->get_object().if_contains("name") : nullptr;
    if (!type || *type != "function" || !name || !name->is_string())
      return f.fail("tool_choice", kChoices);
    out.choice = ToolFields::Choice::named;
    out.name = std::string(name->get_string());
    if (!out.set || !out.set->find(out.name))
      return f.fail("tool_choice",
                    "tool_choice names " + quote(out.name) + ", which is not among tools");
  }
  if (out.choice == ToolFields::Choice::required && !out.set)
    f.fail("tool_choice", "tool_choice required needs tools");
}

void read_reasoning(Fields& f, ChatFields& out) {
  f.flag("include_reasoning", out.include_reasoning);
  f.flag("separate_reasoning", out.separate_reasoning);
  std::string format;
  if (f.text("reasoning_format", format)) {
    if (format != "auto" && format != "none" && format != "deepseek")
      f.fail("reasoning_format", "reasoning_format must be auto, deepseek or none");
    if (format == "none") out.separate_reasoning = false;
  }
}

// A string of JSON, as OpenAI has it, or the object itself.
bool read_arguments(json::object& function) {
  json::value& v = function["arguments"];
  if (v.is_null()) v = json::object();
  if (v.is_string()) {
    std::string_view text = v.get_string();
    if (text.find_first_not_of(" \n\r\t") == std::string_view::npos) text = "{}";
    Result<json::value> parsed = parse_json(text, kRequestJson);
    if (!parsed) return false;
    json::value value = std::move(*parsed);
    v = std::move(value);
  }
  return v.is_object();
}

}  // namespace

void read_tools(Fields& f, ChatFields& out) {
  ToolFields& t = out.tools;
  if (const json::value* v = f.get("tools"); v && !(v->is_array() && v->get_array().empty())) {
    Result<dialect::ToolSet> set = dialect::ToolSet::read(*v);
    if (!set) return f.fail("tools", set.error().message);
    t.set = std::make_shared<const dialect::ToolSet>(std::move(*set));
    t.list = *v;
  }
  f.flag("parallel_tool_calls", t.parallel);
  read_choice(f, t);
  if (t.must_call() || t.strict()) check_constrained(f, out, t.constrained_by());
  read_reasoning(f, out);
}

bool read_turn(Fields& f, json::object& message, size_t at) {
  std::string param = strf("messages[%zu]", at);
  auto wrong = [&](const char* field, const char* what) {
    f.fail(param + "." + field, std::string(field) + " " + what);
    return false;
  };
  for (const char* name : {"tool_call_id", "reasoning", "reasoning_content"}) {
    const json::value* v = message.if_contains(name);
    if (v && !v->is_null() && !v->is_string()) return wrong(name, "must be a string");
  }
  const json::value* reasoning = message.if_contains("reasoning");
  if (reasoning && reasoning->is_string() && !message.contains("reasoning_content")) {
    json::value copy = *reasoning;
    message["reasoning_content"] = std::move(copy);
  }
  json::value* calls = message.if_contains("tool_calls");
  if (!calls) return true;
  if (calls->is_null() || (calls->is_array() && calls->get_array().empty())) {
    message.erase("tool_calls");  // templates ask whether it is there
    return true;
  }
  if (!calls->is_array()) return wrong("tool_calls", "must be a list");
  for (json::value& call : calls->get_array()) {
    json::object* o = call.if_object();
    json::value* function = o ? o->if_contains("function") : nullptr;
    json::object* g = function ? function->if_object() : nullptr;
    const json::value* name = g ? g->if_contains("name") : nullptr;
    const json::value* id = o ? o->if_contains("id") : nullptr;
    if (!name || !name->is_string() || (id && !id->is_null() && !id->is_string()))
      return wrong("tool_calls",
                   "must hold {\"id\", \"type\": \"function\", \"function\": {\"name\", "
                   "\"arguments\"}}");
    if (!read_arguments(*g))
      return wrong("tool_calls", "must have arguments that are a JSON object, as a string");
  }
  return true;
}

}  // namespace sluice
