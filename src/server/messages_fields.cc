#include "server/messages_fields.h"

#include <algorithm>
#include <utility>

#include "base/str.h"
#include "server/fields.h"

namespace sluice {

namespace {

class MessagesReader {
 public:
  MessagesReader(Fields& f, json::object& chat) : f_(f), chat_(chat) {}

  void read(bool counting) {
    copy_other_fields();
    read_system();
    read_messages();
    read_max_tokens(counting);
    read_stops();
    read_tools();
    read_choice();
    if (const json::value* v = f_.get("thinking")) chat_["thinking"] = *v;
    read_output_config();
    chat_["messages"] = std::move(messages_);
  }

 private:
  void refuse(const std::string& param, const std::string& what) {
    f_.fail(param, param + " " + what);
  }
  void refuse_type(const std::string& param, std::string_view type, const char* what) {
    f_.fail(param, strf("%s: %s is not supported: %s", param.c_str(), quote(type).c_str(), what),
            "unsupported_parameter");
  }

  void copy_other_fields() {
    for (const auto& pair : f_.object()) {
      if (!find_field(pair.key(), kMessages)) chat_[pair.key()] = pair.value();
    }
  }

  // Text, or text blocks with a newline between.
  bool read_text(const json::value& content, const std::string& param, std::string& out) {
    if (const json::string* text = content.if_string()) {
      out = std::string_view(*text);
      return true;
    }
    const json::array* list = content.if_array();
    if (!list) return refuse(param, "must be a string or a list of blocks"), false;
    for (size_t i = 0; i < list->size(); ++i) {
      std::string at = strf("%s[%zu]", param.c_str(), i);
      const json::object* block = (*list)[i].if_object();
      if (!block || type_of(*block).empty())
        return refuse(at, "must be an object with a type"), false;
      const json::string* text = text_field(*block, "text");
      if (type_of(*block) != "text")
        return refuse_type(at, type_of(*block), "only blocks of type text are read here"), false;
      if (!text) return refuse(at + ".text", "must be a string"), false;
      if (i > 0) out += '\n';
      out += std::string_view(*text);
    }
    return true;
  }

  void read_system() {
    const json::value* system = f_.get("system");
    std::string text;
    if (!system || !read_text(*system, "system", text) || text.empty()) return;
    messages_.push_back(json::object{{"role", "system"}, {"content", text}});
  }

  void read_messages() {
    const json::value* list = f_.get("messages");
    if (!list || !list->is_array() || list->get_array().empty())
      return f_.fail("messages", "messages must be a list of at least one message");
    const json::array& all = list->get_array();
    for (size_t i = 0; i < all.size() && !f_.failed(); ++i) {
      std::string param = strf("messages[%zu]", i);
      const json::object* m = all[i].if_object();
      const json::string* role = m ? text_field(*m, "role") : nullptr;
      const json::value* content = m ? m->if_contains("content") : nullptr;
      if (!role || (*role != "user" && *role != "assistant"))
        return refuse(param + ".role", "must be user or assistant; system is a field of its own");
      if (!content || !(content->is_string() || content->is_array()))
        return refuse(param + ".content", "must be a string or a list of blocks");
      if (content->is_array() && content->get_array().empty())
        return refuse(param + ".content", "must not be empty");
      param += ".content";
      if (*role == "user") {
        read_user(*content, param);
      } else {
        read_assistant(*content, param, i + 1 == all.size());
      }
    }
  }

  void add_user(std::string& text) {
    if (text.empty()) return;
    messages_.push_back(json::object{{"role", "user"}, {"content", std::exchange(text, {})}});
  }

  // Results of tools become messages of their own, in their place.
  void read_user(const json::value& content, const std::string& param) {
    std::string text;
    if (content.is_string()) {
      messages_.push_back(json::object{{"role", "user"}, {"content", content}});
      return;
    }
    for (size_t i = 0; i < content.get_array().size() && !f_.failed(); ++i) {
      std::string at = strf("%s[%zu]", param.c_str(), i);
      const json::object* block = content.get_array()[i].if_object();
      if (!block || type_of(*block).empty()) return refuse(at, "must be an object with a type");
      if (type_of(*block) == "tool_result") {
        add_user(text);
        read_result(*block, at);
        continue;
      }
      if (type_of(*block) != "text")
        return refuse_type(at, type_of(*block), "only text and tool_result are read here");
      const json::string* piece = text_field(*block, "text");
      if (!piece) return refuse(at + ".text", "must be a string");
      if (!text.empty()) text += '\n';
      text += std::string_view(*piece);
    }
    add_user(text);
  }

  void read_result(const json::object& block, const std::string& at) {
    const json::string* id = text_field(block, "tool_use_id");
    if (!id) return refuse(at + ".tool_use_id", "must be a string");
    if (std::find(calls_.begin(), calls_.end(), std::string_view(*id)) == calls_.end())
      return refuse(at + ".tool_use_id", "names no tool_use of the last assistant message");
    std::string text;
    const json::value* content = block.if_contains("content");
    if (content && !content->is_null() && !read_text(*content, at + ".content", text)) return;
    const json::value* failed = block.if_contains("is_error");
    if (failed && !failed->is_null() && !failed->is_bool())
      return refuse(at + ".is_error", "must be true or false");
    if (failed && failed->is_bool() && failed->get_bool()) text = "Error: " + text;
    messages_.push_back(json::object{{"role", "tool"}, {"tool_call_id", *id}, {"content", text}});
  }

  void read_assistant(const json::value& content, const std::string& param, bool last) {
    std::string text, reasoning;
    json::array calls;
    calls_.clear();
    if (content.is_string()) text = std::string_view(content.get_string());
    const json::array none;
    const json::array& blocks = content.is_array() ? content.get_array() : none;
    for (size_t i = 0; i < blocks.size() && !f_.failed(); ++i) {
      std::string at = strf("%s[%zu]", param.c_str(), i);
      const json::object* block = blocks[i].if_object();
      if (!block || type_of(*block).empty()) return refuse(at, "must be an object with a type");
      std::string_view type = type_of(*block);
      if (type == "text" || type == "thinking") {
        const json::string* piece = text_field(*block, type);
        if (!piece) return refuse(at + "." + std::string(type), "must be a string");
        (type == "text" ? text : reasoning) += std::string_view(*piece);
      } else if (type == "tool_use") {
        read_call(*block, at, calls);
      } else {
        return refuse_type(at, type, "only text, thinking and tool_use are read here");
      }
    }
    if (last) continue_answer(text, calls, param);
    json::object message{{"role", "assistant"}, {"content", text}};
    if (!reasoning.empty()) message["reasoning_content"] = reasoning;
    if (!calls.empty()) message["tool_calls"] = std::move(calls);
    messages_.push_back(std::move(message));
  }

  void read_call(const json::object& block, const std::string& at, json::array& calls) {
    const json::string* id = text_field(block, "id");
    const json::string* name = text_field(block, "name");
    const json::value* input = block.if_contains("input");
    if (!id) return refuse(at + ".id", "must be a string");
    if (!name) return refuse(at + ".name", "must be a string");
    if (!input || !input->is_object()) return refuse(at + ".input", "must be an object");
    calls_.emplace_back(*id);
    calls.push_back(
        json::object{{"id", *id},
                     {"type", "function"},
                     {"function", json::object{{"name", *name}, {"arguments", *input}}}});
  }

  // A last message of the assistant is the beginning of the answer.
  void continue_answer(const std::string& text, const json::array& calls, const std::string& at) {
    if (!calls.empty()) return refuse(at, "has a tool_use, so a tool_result must follow");
    if (text.find_first_not_of(" \n\r\t") == text.npos)
      return refuse(at, "is the beginning of the answer, so it must hold text");
    if (text.back() == ' ' || text.back() == '\n' || text.back() == '\t' || text.back() == '\r')
      return refuse(at, "is the beginning of the answer, so it must not end with white space");
    chat_["continue_final_message"] = true;
  }

  void read_max_tokens(bool counting) {
    int most = 0;
    if (f_.whole("max_tokens", most, 1, INT32_MAX)) {
      chat_["max_tokens"] = most;
    } else if (!counting && !f_.failed()) {
      f_.fail("max_tokens", "max_tokens is missing");
    }
  }

  void read_stops() {
    const json::value* v = f_.get("stop_sequences");
    if (!v) return;
    if (!v->is_array())
      return f_.fail("stop_sequences", "stop_sequences must be a list of strings");
    chat_["stop"] = *v;
  }

  void read_tools() {
    const json::value* v = f_.get("tools");
    if (!v) return;
    if (!v->is_array()) return f_.fail("tools", "tools must be a list");
    json::array tools;
    for (size_t i = 0; i < v->get_array().size() && !f_.failed(); ++i)
      read_tool(v->get_array()[i], strf("tools[%zu]", i), tools);
    chat_["tools"] = std::move(tools);
  }

  void read_tool(const json::value& v, const std::string& at, json::array& tools) {
    const json::object* tool = v.if_object();
    if (!tool) return refuse(at, "must be an object");
    std::string_view type = type_of(*tool);
    if (!type.empty() && type != "custom")
      return refuse_type(at, type, "only tools with an input_schema are");
    for (std::string_view name : {"input_examples", "defer_loading", "allowed_callers"}) {
      const json::value* given = tool->if_contains(name);
      bool off = !given || given->is_null() || (given->is_bool() && !given->get_bool()) ||
                 (given->is_array() && given->get_array().empty());
      if (!off)
        return f_.fail(at + "." + std::string(name),
                       at + "." + std::string(name) + " is not supported: leave it out",
                       "unsupported_parameter");
    }
    const json::value* name = tool->if_contains("name");
    const json::value* schema = tool->if_contains("input_schema");
    if (!name || !name->is_string()) return refuse(at + ".name", "must be a string");
    if (!schema || !schema->is_object()) return refuse(at + ".input_schema", "must be an object");
    json::object function{{"name", *name}, {"parameters", *schema}};
    for (std::string_view same : {"description", "strict"}) {
      if (const json::value* given = tool->if_contains(same)) function[same] = *given;
    }
    tools.push_back(json::object{{"type", "function"}, {"function", std::move(function)}});
  }

  void read_choice() {
    const json::value* v = f_.get("tool_choice");
    if (!v) return;
    const json::object* o = v->if_object();
    std::string_view type = o ? type_of(*o) : "";
    const bool any = type == "any", named = type == "tool";
    if (type != "auto" && type != "none" && !any && !named)
      return f_.fail("tool_choice", "tool_choice.type must be auto, any, tool or none");
    const json::value* tools = chat_.if_contains("tools");
    if ((any || named) && (!tools || tools->get_array().empty()))
      return f_.fail("tool_choice", "tool_choice needs tools");
    const json::string* name = text_field(*o, "name");
    if (named && !name) return f_.fail("tool_choice", "tool_choice.name must be a string");
    if (named) {
      chat_["tool_choice"] =
          json::object{{"type", "function"}, {"function", json::object{{"name", *name}}}};
    } else {
      chat_["tool_choice"] = any ? std::string_view("required") : type;
    }
    const json::value* one = o->if_contains("disable_parallel_tool_use");
    if (one && !one->is_null() && !one->is_bool())
      return f_.fail("tool_choice", "tool_choice.disable_parallel_tool_use must be true or false");
    if (one && one->is_bool() && one->get_bool()) chat_["parallel_tool_calls"] = false;
  }

  void read_format(const json::value& v, const std::string& param) {
    const json::object* o = v.if_object();
    const json::value* schema = o ? o->if_contains("schema") : nullptr;
    if (!o || type_of(*o) != "json_schema" || !schema || !schema->is_object())
      return f_.fail(param, param + " must be {\"type\": \"json_schema\", \"schema\": {...}}");
    if (chat_.contains("response_format"))
      return f_.fail(param, param + " stands for response_format, which is given too");
    chat_["response_format"] =
        json::object{{"type", "json_schema"},
                     {"json_schema", json::object{{"name", "answer"}, {"schema", *schema}}}};
  }

  void read_output_config() {
    if (const json::value* format = f_.get("output_format")) read_format(*format, "output_format");
    const json::value* v = f_.get("output_config");
    if (!v) return;
    if (!v->is_object()) return f_.fail("output_config", "output_config must be an object");
    for (const auto& [key, value] : v->get_object()) {
      if (value.is_null()) continue;
      std::string param = "output_config." + std::string(key);
      if (key == "format") {
        read_format(value, param);
      } else if (key != "effort") {
        f_.fail(param, param + " is not supported: leave it out", "unsupported_parameter");
      } else if (!value.is_string()) {
        refuse(param, "must be a string");
      } else if (chat_.contains("reasoning_effort")) {
        refuse(param, "stands for reasoning_effort, which is given too");
      } else {
        chat_["reasoning_effort"] = value;
      }
    }
  }

  Fields& f_;
  json::object& chat_;
  json::array messages_;
  std::vector<std::string> calls_;  // ids of tool_use blocks in the last assistant message
};

}  // namespace

Refusal parse_messages(const json::value& body,
                       const RequestLimits& limits,
                       bool counting,
                       ChatFields& out) {
  Fields f(body, kMessages);
  if (f.failed()) return f.error();
  json::object chat;
  MessagesReader(f, chat).read(counting);
  if (f.failed()) return f.error();
  Refusal refused = parse_chat(json::value(std::move(chat)), limits, out);
  if (refused && refused->param == "stop") refused->param = "stop_sequences";
  if (out.constraint && out.constraint->name == "response_format")
    out.constraint->name = "output_config.format";
  return refused;
}

}  // namespace sluice
