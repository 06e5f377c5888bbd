#include "server/ollama_fields.h"

#include <algorithm>
#include <utility>

#include "base/str.h"
#include "server/thinking_fields.h"

namespace sluice {

namespace {

enum class OptionUse : uint8_t {
  chat,     // a field of /v1/chat/completions, which honours or refuses it
  predict,  // num_predict
  newline,  // penalize_newline
  loading,  // about how a model is loaded, which has been done
};
struct OllamaOption {
  std::string_view name;
  OptionUse use;
};

constexpr OllamaOption kOllamaOptions[] = {
    {"temperature", OptionUse::chat},
    {"top_k", OptionUse::chat},
    {"top_p", OptionUse::chat},
    {"min_p", OptionUse::chat},
    {"seed", OptionUse::chat},
    {"stop", OptionUse::chat},
    {"repeat_penalty", OptionUse::chat},
    {"presence_penalty", OptionUse::chat},
    {"frequency_penalty", OptionUse::chat},
    {"repeat_last_n", OptionUse::chat},
    {"typical_p", OptionUse::chat},
    {"tfs_z", OptionUse::chat},
    {"mirostat", OptionUse::chat},
    {"mirostat_tau", OptionUse::chat},
    {"mirostat_eta", OptionUse::chat},
    {"num_predict", OptionUse::predict},
    {"penalize_newline", OptionUse::newline},
    {"num_ctx", OptionUse::loading},
    {"num_keep", OptionUse::loading},
    {"num_batch", OptionUse::loading},
    {"num_gpu", OptionUse::loading},
    {"main_gpu", OptionUse::loading},
    {"low_vram", OptionUse::loading},
    {"f16_kv", OptionUse::loading},
    {"vocab_only", OptionUse::loading},
    {"use_mmap", OptionUse::loading},
    {"use_mlock", OptionUse::loading},
    {"num_thread", OptionUse::loading},
    {"numa", OptionUse::loading},
};

void read_options(Fields& f, json::object& chat) {
  const json::value* v = f.get("options");
  if (!v) return;
  if (!v->is_object()) return f.fail("options", "options must be an object");
  for (const auto& [key, value] : v->get_object()) {
    const std::string name(key);
    auto row = std::find_if(std::begin(kOllamaOptions), std::end(kOllamaOptions),
                            [&](const OllamaOption& o) { return o.name == name; });
    if (row == std::end(kOllamaOptions))
      return f.fail("options", "options." + name + " is not known here: leave it out",
                    "unsupported_parameter");
    if (row->use == OptionUse::loading || value.is_null()) continue;
    if (row->use == OptionUse::chat) {
      chat[name] = value;
      continue;
    }
    if (row->use == OptionUse::newline) {  // penalties are over all tokens
      if (!value.is_bool())
        return f.fail("options", "options.penalize_newline must be true or false");
      if (!value.get_bool())
        return f.fail("options", "options.penalize_newline false is not supported: use logit_bias",
                      "unsupported_parameter");
      continue;
    }
    // -1 and -2: until the model or the context ends.
    if (!value.is_int64() || value.get_int64() < -2 || value.get_int64() == 0 ||
        value.get_int64() > INT32_MAX)
      return f.fail("options",
                    "options.num_predict must be a whole number from 1 to 2147483647, -1 or -2");
    if (value.get_int64() > 0) chat["max_tokens"] = value;
  }
}

void read_format(Fields& f, json::object& chat) {
  const json::value* v = f.get("format");
  if (!v || *v == "") return;
  if (*v == "json") {
    chat["response_format"] = json::object{{"type", "json_object"}};
  } else if (v->is_object()) {
    chat["response_format"] = json::object{
        {"type", "json_schema"}, {"json_schema", json::object{{"name", "answer"}, {"schema", *v}}}};
  } else {
    f.fail("format", "format must be json or a JSON schema");
  }
}

// true and false, or how hard.
void read_think(Fields& f, json::object& chat) {
  const json::value* v = f.get("think");
  if (!v) return;
  if (!v->is_bool() && *v != "low" && *v != "medium" && *v != "high")
    return f.fail("think", "think must be true, false, low, medium or high");
  json::value& kwargs = chat["chat_template_kwargs"];
  if (!kwargs.is_object()) kwargs = json::object();
  set_thinking(kwargs.get_object(), v->is_string() || v->get_bool());
  if (v->is_string()) chat["reasoning_effort"] = *v;
}

void read_images(Fields& f, const json::object& o, const std::string& param) {
  const json::value* v = o.if_contains("images");
  if (!v || v->is_null() || (v->is_array() && v->get_array().empty())) return;
  f.fail(param, param + " is not supported: only text is", "unsupported_parameter");
}

void read_turns(Fields& f, json::object& chat) {
  const json::value* v = f.get("messages");
  json::array messages;
  if (v && !v->is_array()) return f.fail("messages", "messages must be a list");
  for (size_t i = 0; v && i < v->get_array().size(); ++i) {
    const std::string at = strf("messages[%zu]", i);
    const json::object* m = v->get_array()[i].if_object();
    if (!m) return f.fail(at, at + " must be an object");
    read_images(f, *m, at + ".images");
    json::object message;
    for (const auto& [key, value] : *m) {
      if (value.is_null() || key == "images") continue;
      message[key == "thinking" ? "reasoning_content" : key == "tool_name" ? "name" : key] = value;
    }
    messages.push_back(std::move(message));
  }
  chat["messages"] = std::move(messages);
}

// What both have, and the fields that are /v1/chat/completions' own.
void read_common(Fields& f, std::initializer_list<std::string_view> own, json::object& chat) {
  for (const auto& pair : f.object()) {
    const bool ours = std::find(own.begin(), own.end(), pair.key()) != own.end();
    if (!ours && !find_field(pair.key(), kOllama)) chat[pair.key()] = pair.value();
  }
  bool stream = true;
  f.flag("stream", stream);
  chat["stream"] = stream;
  read_options(f, chat);
  read_format(f, chat);
  read_think(f, chat);
}

Refusal finish_chat(json::object chat, const RequestLimits& limits, ChatFields& out) {
  Refusal refused = parse_chat(json::value(std::move(chat)), limits, out);
  if (out.constraint && out.constraint->name == "response_format") out.constraint->name = "format";
  strip_tag(out.model);
  return refused;
}

}  // namespace

void strip_tag(std::string& name) {
  constexpr std::string_view kTag = ":latest";
  if (name.size() > kTag.size() && name.ends_with(kTag)) name.resize(name.size() - kTag.size());
}

Refusal parse_ollama_chat(const json::value& body, const RequestLimits& limits, ChatFields& out) {
  Fields f(body, kOllama);
  if (f.failed()) return f.error();
  json::object chat;
  read_common(f, {}, chat);
  read_turns(f, chat);
  f.text("model", out.model);
  if (f.failed()) return f.error();
  if (chat["messages"].get_array().empty()) {
    strip_tag(out.model);
    return {};
  }
  return finish_chat(std::move(chat), limits, out);
}

Refusal parse_ollama_generate(const json::value& body,
                              const RequestLimits& limits,
                              OllamaGenerateFields& out) {
  Fields f(body, kOllama);
  if (f.failed()) return f.error();
  json::object chat;
  read_common(f, {"prompt", "system", "raw", "suffix", "template", "context", "images", "tools"},
              chat);
  read_images(f, f.object(), "images");
  std::string system;
  f.text("prompt", out.prompt, SIZE_MAX);
  f.text("system", system, SIZE_MAX);
  f.flag("raw", out.raw);
  for (const auto& [name, instead] :
       {std::pair("template", "use /api/chat"), std::pair("suffix", "use /v1/completions"),
        std::pair("context", "send the conversation to /api/chat"),
        std::pair("tools", "use /api/chat")}) {
    const json::value* v = f.get(name);
    if (v && *v != "" && !(v->is_array() && v->get_array().empty()))
      f.fail(name, std::string(name) + " is not supported: " + instead, "unsupported_parameter");
  }
  for (const char* name : {"system", "think"}) {
    const json::value* v = f.object().if_contains(name);
    if (out.raw && v && !v->is_null() && *v != "")
      f.fail(name, std::string(name) + " does not go with raw: it is the chat template's");
  }
  f.text("model", out.chat.model);
  if (f.failed()) return f.error();
  if (out.prompt.empty()) {
    strip_tag(out.chat.model);
    return {};
  }
  json::array messages;
  if (!system.empty()) messages.push_back(json::object{{"role", "system"}, {"content", system}});
  messages.push_back(json::object{{"role", "user"}, {"content", out.prompt}});
  chat["messages"] = std::move(messages);
  return finish_chat(std::move(chat), limits, out.chat);
}

Refusal parse_ollama_embed(const json::value& body,
                           const RequestLimits& limits,
                           EmbeddingFields& out) {
  Fields f(body);
  if (f.failed()) return f.error();
  bool truncate = true;
  f.flag("truncate", truncate);
  json::object none;
  read_options(f, none);  // nothing is drawn
  if (f.failed()) return f.error();
  json::object embedding;
  for (const auto& [key, value] : f.object()) {
    if (key != "truncate" && key != "options" && key != "keep_alive") embedding[key] = value;
  }
  if (truncate) embedding["truncate_prompt_tokens"] = -1;
  if (truncate) embedding["truncation_side"] = "right";
  Refusal refused = parse_embedding(json::value(std::move(embedding)), limits, out);
  const char* changed = !out.normalize ? "normalize" : out.base64 ? "encoding_format" : nullptr;
  if (!refused && changed)
    refused = ApiError{400,
                       strf("%s is not supported: use /v1/embeddings, this endpoint gives lists of "
                            "numbers, of length 1",
                            changed),
                       changed, "unsupported_parameter"};
  strip_tag(out.model);
  return refused;
}

}  // namespace sluice
