// sluice template: a conversation through the model's chat template.
#include <cstdio>
#include <ctime>

#include "base/json.h"
#include "base/str.h"
#include "load/open.h"
#include "tools/commands.h"
#include "tools/locate_model.h"
#include "tools/terminal.h"

namespace sluice {

namespace {

Result<json::value> read_json(const std::string& path) {
  Result<std::string> text = read_text(path);
  if (!text) return text.error();
  Result<json::value> v = parse_json(*text);
  if (!v) return Error{400, quote(path, 400) + ": " + v.error().message};
  return v;
}

}  // namespace

int cmd_template(const TemplateOptions& o) {
  Result<std::string> path = locate_model(o.model);
  if (!path) return report(path.error());
  Result<std::unique_ptr<Checkpoint>> file = open_text(*path);
  if (!file) return report(file.error());
  Result<std::optional<ChatTemplate>> chat = load_chat_template(**file);
  if (!chat) return report(chat.error());
  if (!*chat) return report({400, "the model has no chat template"});
  Result<json::value> messages = read_json(o.messages);
  if (!messages) return report(messages.error());
  TemplateInputs in;
  // Either the list itself or a request body that holds one.
  in.messages = messages->is_object() && messages->as_object().contains("messages")
                    ? messages->at("messages")
                    : *messages;
  if (!in.messages.is_array())
    return report({400, "the conversation must be a JSON list of messages"});
  if (!o.tools.empty()) {
    Result<json::value> tools = read_json(o.tools);
    if (!tools) return report(tools.error());
    in.tools = std::move(*tools);
  }
  in.add_generation_prompt = !o.no_generation_prompt;
  if (has_vocabulary(**file)) {
    Result<std::unique_ptr<Tokenizer>> tokenizer = load_tokenizer(**file);
    if (!tokenizer) return report(tokenizer.error());
    if ((*tokenizer)->bos() != kNoToken) in.bos_token = (*tokenizer)->spelling((*tokenizer)->bos());
    if ((*tokenizer)->eos() != kNoToken) in.eos_token = (*tokenizer)->spelling((*tokenizer)->eos());
  }
  std::time_t now = std::time(nullptr);
  localtime_r(&now, &in.now);
  Result<std::vector<TextSegment>> segments = (*chat)->render(in);
  if (!segments) return report(segments.error());
  if (o.json) {
    json::array parts;
    for (const TextSegment& s : *segments)
      parts.push_back(json::object{{"text", s.text}, {"trusted", s.trusted}});
    std::printf("%s\n", json::serialize(json::object{{"text", joined(*segments)},
                                                     {"segments", std::move(parts)}})
                            .c_str());
  } else {
    std::string text = joined(*segments);
    std::fwrite(text.data(), 1, text.size(), stdout);
  }
  return kExitOk;
}

}  // namespace sluice
