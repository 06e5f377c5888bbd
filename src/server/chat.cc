// POST /v1/chat/completions
#include "base/str.h"
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
    if (c.scores.empty()) {
      out += "null";
    } else {
      chat_logprobs(out, tokenizer(g), c.scores).finish();
    }
    if (!c.tokens.empty()) {
      out += ",\"token_ids\":";
      write_ids(out, c.tokens).finish();
    }
  }

  PieceWriter choice(std::string& out, const Generation& g, Choice& c) const override {
    out += strf("\"index\":%d,\"message\":{\"role\":\"assistant\",\"content\":\"", c.index);
    co_await write_escaped(out, c.text);
    out += "\",\"refusal\":null},\"logprobs\":";
    if (g.fields().sampling.num_logprobs >= 0) {
      co_await chat_logprobs(out, tokenizer(g), c.scores);
    } else {
      out += "null";
    }
    if (g.fields().return_token_ids) {
      out += ",\"token_ids\":";
      co_await write_ids(out, c.tokens);
    }
  }

  PieceWriter extra(std::string& out, const Generation& g) const override {
    const PromptState& p = g.prompts()[0];
    if (g.fields().sampling.prompt_logprobs >= 0) {
      out += ",\"prompt_logprobs\":";
      co_await prompt_logprobs(out, tokenizer(g), p.scores);
    }
    if (g.fields().return_token_ids) {
      out += ",\"prompt_token_ids\":";
      co_await write_ids(out, *p.tokens);
    }
  }

 private:
  static const Tokenizer* tokenizer(const Generation& g) {
    return g.service().session().tokenizer();
  }
};

}  // namespace

void serve_chat(Service& s, Call call) {
  std::optional<json::value> body = s.body(call);
  if (!body) return;
  ChatFields fields;
  fields.sampling = s.sampling_defaults();
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
