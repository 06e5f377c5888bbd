#include "server/responses_fields.h"

#include <algorithm>
#include <utility>

#include "base/str.h"
#include "server/fields.h"

namespace sluice {

namespace {

bool is_given(const json::object& o, std::string_view name) {
  const json::value* v = o.if_contains(name);
  return v && !v->is_null();
}

// Items as chat messages. Neighbouring items of the assistant (reasoning, text, calls) are one
// message.
class ItemReader {
 public:
  ItemReader(Fields& f, json::array& messages) : f_(f), messages_(messages) {
    for (const json::value& m : messages) note_calls(m.get_object());
  }

  void read(const json::value& input) {
    if (input.is_string()) return add("user", std::string(input.get_string()));
    const json::array* list = input.if_array();
    if (!list || list->empty())
      return f_.fail("input", "input must be a string or a list of at least one item");
    for (size_t i = 0; i < list->size() && !f_.failed(); ++i)
      read_item((*list)[i], strf("input[%zu]", i));
    flush();
  }

 private:
  void refuse(const std::string& param, const std::string& what) {
    f_.fail(param, param + " " + what);
  }
  void refuse_type(const std::string& param, std::string_view type, const char* what) {
    f_.fail(param, strf("%s: %s is not supported: %s", param.c_str(), quote(type).c_str(), what),
            "unsupported_parameter");
  }
  void add(const char* role, std::string text) {
    messages_.push_back(json::object{{"role", role}, {"content", std::move(text)}});
  }
  void flush() {
    if (!open_) return;
    open_ = false;
    json::object turn = std::exchange(turn_, {});
    if (!turn.contains("content")) turn["content"] = "";
    note_calls(turn);
    messages_.push_back(std::move(turn));
  }
  json::object& turn() {
    if (!std::exchange(open_, true)) turn_ = {{"role", "assistant"}};
    return turn_;
  }
  void note_calls(const json::object& message) {
    const json::value* calls = message.if_contains("tool_calls");
    if (!calls) return;
    for (const json::value& c : calls->get_array())
      calls_.emplace_back(c.get_object().at("id").get_string());
  }

  void read_item(const json::value& v, const std::string& at) {
    const json::object* item = v.if_object();
    if (!item) return refuse(at, "must be an object");
    std::string_view type = type_of(*item);
    if (type == "message" || (type.empty() && item->contains("role")))
      return read_message(*item, at);
    if (type == "function_call") return read_call(*item, at);
    if (type == "function_call_output") return read_result(*item, at);
    if (type == "reasoning") return read_reasoning(*item, at);
    if (type.empty()) return refuse(at, "must have a type or a role");
    refuse_type(at, type, "items are message, function_call, function_call_output and reasoning");
  }

  // Text, or parts of it with `between` between them.
  bool read_text(const json::value* v,
                 const std::string& at,
                 const char* between,
                 std::string& out) {
    if (v && v->is_string()) {
      out = std::string_view(v->get_string());
      return true;
    }
    if (!v || !v->is_array()) return refuse(at, "must be a string or a list of parts"), false;
    const json::array& parts = v->get_array();
    for (size_t i = 0; i < parts.size(); ++i) {
      std::string param = strf("%s[%zu]", at.c_str(), i);
      const json::object* part = parts[i].if_object();
      std::string_view type = part ? type_of(*part) : "";
      if (type.empty()) return refuse(param, "must be an object with a type"), false;
      if (type != "input_text" && type != "output_text" && type != "text")
        return refuse_type(param, type, "only text is read here"), false;
      const json::string* text = text_field(*part, "text");
      if (!text) return refuse(param + ".text", "must be a string"), false;
      if (i > 0) out += between;
      out += std::string_view(*text);
    }
    return true;
  }

  void read_message(const json::object& item, const std::string& at) {
    const json::string* role = text_field(item, "role");
    if (!role ||
        (*role != "user" && *role != "assistant" && *role != "system" && *role != "developer"))
      return refuse(at + ".role", "must be user, assistant, system or developer");
    const bool own = *role == "assistant";
    std::string text;
    if (!read_text(item.if_contains("content"), at + ".content", own ? "" : "\n", text)) return;
    if (!own) {
      flush();
      return add(*role == "user" ? "user" : "system", std::move(text));
    }
    if (open_ && turn_.contains("content") && !turn_.contains("tool_calls")) flush();
    std::string all;
    if (const json::value* before = turn().if_contains("content"))
      all = std::string_view(before->get_string());
    turn()["content"] = all + text;
  }

  void read_call(const json::object& item, const std::string& at) {
    const json::string* id = text_field(item, "call_id");
    const json::string* name = text_field(item, "name");
    const json::string* arguments = text_field(item, "arguments");
    if (!id) return refuse(at + ".call_id", "must be a string");
    if (!name) return refuse(at + ".name", "must be a string");
    Result<json::value> object = Error{};
    if (arguments) object = parse_json(arguments->empty() ? "{}" : *arguments, kRequestJson);
    if (!arguments || !object || !object->is_object())
      return refuse(at + ".arguments", "must be a JSON object, as a string");
    json::value& calls = turn()["tool_calls"];
    if (calls.is_null()) calls = json::array();
    calls.get_array().push_back(json::object{
        {"id", *id},
        {"type", "function"},
        {"function",
         json::object{{"name", *name}, {"arguments", arguments->empty() ? "{}" : *arguments}}}});
  }

  void read_result(const json::object& item, const std::string& at) {
    flush();
    const json::string* id = text_field(item, "call_id");
    if (!id) return refuse(at + ".call_id", "must be a string");
    if (std::find(calls_.begin(), calls_.end(), std::string_view(*id)) == calls_.end())
      return refuse(at + ".call_id", "names no function_call before it");
    std::string text;
    if (!read_text(item.if_contains("output"), at + ".output", "\n", text)) return;
    messages_.push_back(json::object{{"role", "tool"}, {"tool_call_id", *id}, {"content", text}});
  }

  void read_reasoning(const json::object& item, const std::string& at) {
    std::string text;
    const json::value* content = item.if_contains("content");
    if (!content || content->is_null()) {
      if (is_given(item, "encrypted_content"))
        return f_.fail(at, at + ".encrypted_content is not supported: send content",
                       "unsupported_parameter");
      return;
    }
    if (!content->is_array()) return refuse(at + ".content", "must be a list of reasoning_text");
    for (const json::value& v : content->get_array()) {
      const json::object* part = v.if_object();
      const json::string* piece = part ? text_field(*part, "text") : nullptr;
      if (!piece || type_of(*part) != "reasoning_text")
        return refuse(at + ".content", "must be a list of reasoning_text");
      text += std::string_view(*piece);
    }
    if (open_ && (turn_.contains("content") || turn_.contains("tool_calls"))) flush();
    if (text.empty()) return;
    json::value& all = turn()["reasoning_content"];
    if (all.is_string()) text = std::string(all.get_string()) + text;
    all = text;
  }

  Fields& f_;
  json::array& messages_;
  json::object turn_;  // the assistant's, while open_
  bool open_ = false;
  std::vector<std::string> calls_;  // ids of all calls so far
};

class ResponsesReader {
 public:
  ResponsesReader(Fields& f, ResponsesFields& out) : f_(f), out_(out) {}

  json::object read(json::array history) {
    for (const auto& pair : f_.object()) {
      if (!find_field(pair.key(), kResponses)) chat_[pair.key()] = pair.value();
    }
    if (const json::value* v = chat_.if_contains("chat_template_kwargs"); v && v->is_object())
      kwargs_ = v->get_object();
    out_.conversation = std::move(history);
    const json::value* input = f_.get("input");
    if (!input) {
      f_.fail("input", "input is missing");
    } else {
      ItemReader(f_, out_.conversation).read(*input);
    }
    read_tools();
    read_choice();
    read_text();
    read_reasoning();
    read_rest();
    json::array messages;
    std::string instructions;
    if (f_.text("instructions", instructions, SIZE_MAX) && !instructions.empty())
      messages.push_back(json::object{{"role", "system"}, {"content", instructions}});
    for (const json::value& m : out_.conversation) messages.push_back(m);
    chat_["messages"] = std::move(messages);
    if (!kwargs_.empty()) chat_["chat_template_kwargs"] = std::move(kwargs_);
    echo();
    return std::move(chat_);
  }

 private:
  void refuse_value(const std::string& param, const std::string& what) {
    f_.fail(param, param + " is not supported: " + what, "unsupported_parameter");
  }

  void read_tools() {
    const json::value* v = f_.get("tools");
    if (!v) return;
    if (!v->is_array()) return f_.fail("tools", "tools must be a list");
    json::array tools;
    for (size_t i = 0; i < v->get_array().size(); ++i) {
      std::string at = strf("tools[%zu]", i);
      const json::object* tool = v->get_array()[i].if_object();
      std::string_view type = tool ? type_of(*tool) : "";
      if (type.empty()) return f_.fail(at, at + " must be an object with a type");
      if (type != "function")
        return f_.fail(at,
                       strf("%s: %s is not supported: only tools of type function are", at.c_str(),
                            quote(type).c_str()),
                       "unsupported_parameter");
      json::object function;
      for (std::string_view name : {"name", "description", "parameters", "strict"}) {
        if (is_given(*tool, name)) function[name] = tool->at(name);
      }
      if (!text_field(function, "name")) return f_.fail(at, at + ".name must be a string");
      if (function.contains("parameters") && !function["parameters"].is_object())
        return f_.fail(at, at + ".parameters must be a JSON schema");
      tools.push_back(json::object{{"type", "function"}, {"function", std::move(function)}});
    }
    chat_["tools"] = std::move(tools);
  }

  void read_choice() {
    const json::value* v = f_.get("tool_choice");
    if (!v) return;
    if (v->is_string()) {
      chat_["tool_choice"] = *v;
      return;
    }
    const json::object* o = v->if_object();
    std::string_view type = o ? type_of(*o) : "";
    const json::string* name = o ? text_field(*o, "name") : nullptr;
    if (!type.empty() && type != "function")
      return refuse_value("tool_choice", "it must be auto, none, required or a function");
    if (type.empty() || !name)
      return f_.fail("tool_choice",
                     "tool_choice must be auto, none, required or {\"type\": \"function\", "
                     "\"name\": ...}");
    chat_["tool_choice"] =
        json::object{{"type", "function"}, {"function", json::object{{"name", *name}}}};
  }

  void read_text() {
    const json::value* v = f_.get("text");
    if (!v) return;
    if (!v->is_object()) return f_.fail("text", "text must be an object");
    for (const auto& [key, value] : v->get_object()) {
      if (value.is_null()) continue;
      std::string param = "text." + std::string(key);
      if (key == "format") {
        read_format(value);
      } else if (key != "verbosity") {
        refuse_value(param, "leave it out");
      } else if (!value.is_string()) {
        f_.fail(param, "text.verbosity must be a string");
      } else {
        chat_["verbosity"] = value;
      }
    }
  }

  void read_format(const json::value& v) {
    const json::object* o = v.if_object();
    std::string_view type = o ? type_of(*o) : "";
    if (type == "text") return;
    if (type == "json_object") {
      chat_["response_format"] = json::object{{"type", "json_object"}};
    } else if (type == "json_schema" && text_field(*o, "name") && is_given(*o, "schema") &&
               o->at("schema").is_object()) {
      chat_["response_format"] = json::object{
          {"type", "json_schema"},
          {"json_schema", json::object{{"name", o->at("name")}, {"schema", o->at("schema")}}}};
    } else {
      f_.fail("text.format",
              "text.format must be of type text, json_object, or json_schema with name and schema");
    }
  }

  void read_reasoning() {
    const json::value* v = f_.get("reasoning");
    if (!v) return;
    if (!v->is_object()) return f_.fail("reasoning", "reasoning must be an object");
    for (const auto& [key, value] : v->get_object()) {
      if (value.is_null() || key == "summary" || key == "generate_summary") continue;
      std::string param = "reasoning." + std::string(key);
      if (key != "effort") {
        refuse_value(param, "leave it out");
      } else if (!value.is_string()) {
        f_.fail(param, "reasoning.effort must be a string");
      } else {
        chat_["reasoning_effort"] = value;
      }
    }
  }

  void read_rest() {
    int most = 0;
    if (f_.whole("max_output_tokens", most, 1, INT32_MAX)) chat_["max_tokens"] = most;
    f_.flag("store", out_.store);
    std::string truncation;
    if (f_.text("truncation", truncation)) {
      out_.truncate = truncation == "auto";
      if (!out_.truncate && truncation != "disabled")
        f_.fail("truncation", "truncation must be auto or disabled");
    }
    std::string previous;
    f_.text("previous_response_id", previous);
    read_metadata();
    if (const json::value* v = f_.get("include")) {
      if (!v->is_array()) return f_.fail("include", "include must be a list");
      for (const json::value& name : v->get_array()) {
        if (!name.is_string()) return f_.fail("include", "include must be a list of strings");
        if (name == "message.output_text.logprobs")
          return refuse_value("include", "log-probabilities are in /v1/chat/completions");
      }
    }
    if (const json::value* v = f_.get("stream_options")) {
      if (!v->is_object()) return f_.fail("stream_options", "stream_options must be an object");
      for (const auto& [key, value] : v->get_object()) {
        if (key != "include_obfuscation")
          refuse_value("stream_options." + std::string(key), "usage is always sent");
      }
    }
  }

  void read_metadata() {
    const json::value* v = f_.get("metadata");
    if (!v) return;
    const char* wrong = "metadata must map at most 16 names of 64 bytes to strings of 512 bytes";
    const json::object* o = v->if_object();
    if (!o || o->size() > 16) return f_.fail("metadata", wrong);
    for (const auto& [key, value] : *o) {
      if (key.size() > 64 || !value.is_string() || value.get_string().size() > 512)
        return f_.fail("metadata", wrong);
    }
  }

  // The values that were sent, or what absent ones mean.
  void echo() {
    auto sent = [&](std::string_view name, json::value absent) {
      const json::value* v = f_.object().if_contains(name);
      out_.echo[name] = v && !v->is_null() ? *v : std::move(absent);
    };
    sent("instructions", nullptr);
    sent("max_output_tokens", nullptr);
    sent("max_tool_calls", nullptr);
    sent("metadata", json::object());
    sent("parallel_tool_calls", true);
    sent("previous_response_id", nullptr);
    sent("prompt_cache_key", nullptr);
    sent("reasoning", json::object{{"effort", nullptr}, {"summary", nullptr}});
    sent("safety_identifier", nullptr);
    sent("text", json::object{{"format", json::object{{"type", "text"}}}});
    sent("tool_choice", "auto");
    out_.echo["tools"] = whole_tools();
    sent("truncation", "disabled");
    sent("user", nullptr);
    out_.echo["store"] = out_.store;
    out_.echo["background"] = false;
    out_.echo["top_logprobs"] = 0;
    out_.echo["service_tier"] = "default";
  }

  // As OpenAI's schema has them: no key is absent.
  json::array whole_tools() const {
    json::array tools;
    const json::value* sent = f_.object().if_contains("tools");
    if (!sent || !sent->is_array()) return tools;
    for (const json::value& v : sent->get_array()) {
      if (!v.is_object()) continue;  // refused
      json::object tool = v.get_object();
      for (std::string_view name : {"description", "parameters", "strict"}) {
        if (!tool.contains(name)) tool[name] = nullptr;
      }
      tools.push_back(std::move(tool));
    }
    return tools;
  }

  Fields& f_;
  ResponsesFields& out_;
  json::object chat_, kwargs_;
};

}  // namespace

Refusal parse_responses(const json::value& body,
                        const RequestLimits& limits,
                        json::array history,
                        ResponsesFields& out) {
  Fields f(body, kResponses);
  if (f.failed()) return f.error();
  json::object chat = ResponsesReader(f, out).read(std::move(history));
  if (f.failed()) return f.error();
  Refusal refused = parse_chat(json::value(std::move(chat)), limits, out.chat);
  if (out.chat.constraint && out.chat.constraint->name == "response_format")
    out.chat.constraint->name = "text.format";
  // As OpenAI's schema has them: always numbers.
  out.echo["temperature"] = out.chat.sampling.temperature;
  out.echo["top_p"] = out.chat.sampling.top_p;
  out.echo["presence_penalty"] = out.chat.sampling.presence_penalty;
  out.echo["frequency_penalty"] = out.chat.sampling.frequency_penalty;
  return refused;
}

}  // namespace sluice
