#include "dialect/tool_set.h"

#include <algorithm>

#include "base/str.h"

namespace sluice::dialect {

namespace {

bool is_tool_name(std::string_view name, size_t max) {
  if (name.empty() || name.size() > max) return false;
  return std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' ||
           c == '-' || c == '.' || c == ':';
  });
}

}  // namespace

Tool::Type Tool::type_of(std::string_view parameter) const {
  const json::value* all = parameters.if_contains("properties");
  const json::value* schema =
      all && all->is_object() ? all->get_object().if_contains(parameter) : nullptr;
  if (!schema || !schema->is_object()) return Type::any;
  const json::object& o = schema->get_object();
  const json::value* type = o.if_contains("type");
  if (type && type->is_string()) {
    if (type->get_string() == "string") return Type::text;
    return type->get_string() == "boolean" ? Type::boolean : Type::other;
  }
  const json::value* values = o.if_contains("enum");
  if (!type && values && values->is_array()) {
    const json::array& list = values->get_array();
    bool texts =
        std::all_of(list.begin(), list.end(), [](const json::value& v) { return v.is_string(); });
    return texts ? Type::text : Type::any;
  }
  return Type::any;
}

Result<ToolSet> ToolSet::read(const json::value& tools, const ToolLimits& limits) {
  const json::array* list = tools.if_array();
  if (!list) return Error{400, "tools must be a list"};
  if (list->size() > limits.tools) return Error{400, strf("at most %zu tools", limits.tools)};
  ToolSet set;
  for (size_t i = 0; i < list->size(); ++i) {
    const json::object* o = (*list)[i].if_object();
    const json::value* type = o ? o->if_contains("type") : nullptr;
    if (type && *type != "function")
      return Error{400, strf("tools[%zu].type must be \"function\"", i)};
    const json::value* f = o && type ? o->if_contains("function") : nullptr;
    if (!f || !f->is_object())
      return Error{
          400,
          strf("tools[%zu] must be {\"type\": \"function\", \"function\": {\"name\": ...}}", i)};
    const json::object& function = f->get_object();
    const json::value* name = function.if_contains("name");
    if (!name || !name->is_string() || !is_tool_name(name->get_string(), limits.name_bytes))
      return Error{400, strf("tools[%zu].function.name must have 1 to %zu letters, digits or _-.:",
                             i, limits.name_bytes)};
    Tool tool;
    tool.name = std::string(name->get_string());
    if (set.find(tool.name))
      return Error{400, strf("tools[%zu]: there is another tool %s", i, quote(tool.name).c_str())};
    const json::value* parameters = function.if_contains("parameters");
    if (parameters && !parameters->is_null()) {
      if (!parameters->is_object())
        return Error{400, strf("tools[%zu].function.parameters must be a JSON schema", i)};
      tool.parameters = parameters->get_object();
    }
    const json::value* strict = function.if_contains("strict");
    if (strict && !strict->is_null() && !strict->is_bool())
      return Error{400, strf("tools[%zu].function.strict must be true or false", i)};
    tool.strict = strict && strict->is_bool() && strict->get_bool();
    const json::value* about = function.if_contains("description");
    if (about && !about->is_null() && !about->is_string())
      return Error{400, strf("tools[%zu].function.description must be a string", i)};
    set.tools_.push_back(std::move(tool));
  }
  return set;
}

const Tool* ToolSet::find(std::string_view name) const {
  auto it =
      std::find_if(tools_.begin(), tools_.end(), [&](const Tool& t) { return t.name == name; });
  return it == tools_.end() ? nullptr : &*it;
}

}  // namespace sluice::dialect
