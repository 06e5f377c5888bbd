// POST /v1/chat/completions
#include "server/generation.h"
#include "server/logprobs.h"
#include "server/routes.h"
#include "server/write_json.h"

namespace sluice {

namespace {

class ChatAnswer final : public Answer {
 public:
  const char* id_prefix() const override { return "chatcmpl-"; }
  const char* object(bool chunk) const override {
    return chunk ? "chat.completion.chunk" : "chat.completion";
  }

  void append_first(std::string& out, const Generation&, Choice&) const override {
    out += "\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null";
  }

  void append_chunk(std::string& out, const Generation& g, Choice& c) const override {
    out += "\"delta\":{";
    if (!c.text.empty()) {
      out += "\"content\":";
      append_json(out, c.text);
    }
    out += "},\"logprobs\":";
    out += c.scores.empty() ? "null" : json::serialize(logprobs(g, c));
    if (!c.tokens.empty()) {
      out += ",\"token_ids\":";
      out += json::serialize(json::array(c.tokens.begin(), c.tokens.end()));
    }
  }

  json::object choice(const Generation& g, Choice& c) const override {
    json::object o;
    o["index"] = c.index;
    o["message"] = json::object{{"role", "assistant"}, {"content", c.text}, {"refusal", nullptr}};
    bool scored = g.fields().sampling.num_logprobs >= 0;
    o["logprobs"] = scored ? json::value(logprobs(g, c)) : json::value(nullptr);
    if (g.fields().return_token_ids) o["token_ids"] = json::array(c.tokens.begin(), c.tokens.end());
    return o;
  }

  void append_extra(std::string& out, const Generation& g) const override {
    const PromptState& p = g.prompts()[0];
    if (g.fields().sampling.prompt_logprobs >= 0) {
      out += ",\"prompt_logprobs\":";
      out += json::serialize(prompt_logprobs(g.service().session().tokenizer(), p.scores));
    }
    if (g.fields().return_token_ids) {
      out += ",\"prompt_token_ids\":";
      out += json::serialize(json::array(p.tokens->begin(), p.tokens->end()));
    }
  }

 private:
  static json::object logprobs(const Generation& g, const Choice& c) {
    return chat_logprobs(g.service().session().tokenizer(), c.scores);
  }
};

}  // namespace

void serve_chat(Service& s, Call call) {
  std::optional<json::value> body = s.body(call);
  if (!body) return;
  ChatFields fields;
  Refusal refused = parse_chat(*body, s.options().limits, fields);
  if (!refused) refused = s.check_model(fields.model);
  if (!refused && fields.stream && fields.sampling.prompt_logprobs >= 0)
    refused = ApiError{400, "prompt_logprobs does not go with stream", "prompt_logprobs", ""};
  if (refused) return s.fail(call, *refused);
  std::vector<std::vector<Token>> prompts(1);
  refused = s.encode_chat(fields, true, prompts[0]);
  if (refused) return s.fail(call, *refused);
  auto g = std::make_shared<Generation>(s, std::move(call), std::move(fields),
                                        std::make_unique<ChatAnswer>());
  g->start(std::move(prompts));
}

}  // namespace sluice
