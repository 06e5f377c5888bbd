// POST /v1/chat/completions
#include <utility>

#include "base/str.h"
#include "server/chat_start.h"
#include "server/logprobs.h"
#include "server/routes.h"
#include "server/write_json.h"

namespace sluice {

namespace {

class ChatAnswer final : public Answer {
 public:
  explicit ChatAnswer(ChatReading reading) : reading_(std::move(reading)) {}
  const char* id_prefix() const override { return "chatcmpl-"; }
  const char* object(bool chunk) const override {
    return chunk ? "chat.completion.chunk" : "chat.completion";
  }

  std::unique_ptr<ChatOutput> make_output(Service& s) const override {
    return read_output(s, reading_, "call_");
  }
  std::span<const Token> kept_tokens() const override { return reading_.kept_tokens(); }

  void append_first(std::string& out, const Generation&, Choice&) const override {
    out += "\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null";
  }

  void append_chunk(std::string& out, const Generation& g, Choice& c) const override {
    out += "\"delta\":{";
    if (c.output) {
      c.output->append_delta(out);
    } else if (!c.text.empty()) {
      out += "\"content\":";
      append_json(out, c.text);
    }
    out += "},\"logprobs\":";
    if (c.scores.empty()) {
      out += "null";
    } else {
      chat_logprobs(out, names(g), c.scores).finish();
    }
    if (!c.tokens.empty()) {
      out += ",\"token_ids\":";
      write_ids(out, c.tokens).finish();
    }
  }

  void append_beside(std::string& out, const Generation& g, Choice& c) const override {
    if (!std::exchange(c.shows_prompt, false)) return;
    out += ",\"prompt_token_ids\":";
    write_ids(out, *g.prompt(c).tokens).finish();
  }

  // The nulls and empty lists are vLLM's, as far as OpenAI's description allows them.
  PieceWriter choice(std::string& out, const Generation& g, Choice& c) const override {
    out += strf("\"index\":%d,\"message\":{\"role\":\"assistant\",", c.index);
    if (c.output) {
      co_await c.output->write_message(out);
    } else {
      out += "\"content\":\"";
      co_await write_escaped(out, c.text);
      out += "\",\"tool_calls\":[],\"reasoning\":null,\"reasoning_content\":null";
    }
    out += ",\"refusal\":null,\"annotations\":[],\"audio\":null},\"logprobs\":";
    if (g.fields().sampling.num_logprobs >= 0) {
      co_await chat_logprobs(out, names(g), c.scores);
    } else {
      out += "null";
    }
    out += ",\"token_ids\":";
    if (g.fields().return_token_ids) {
      co_await write_ids(out, c.tokens);
    } else {
      out += "null";
    }
  }

  PieceWriter extra(std::string& out, const Generation& g) const override {
    const PromptState& p = g.prompts()[0];
    out += ",\"service_tier\":\"default\",\"prompt_logprobs\":";
    if (g.fields().sampling.prompt_logprobs >= 0) {
      co_await prompt_logprobs(out, g.service().session().tokenizer(), p.scores);
    } else {
      out += "null";
    }
    out += ",\"prompt_token_ids\":";
    if (g.fields().return_token_ids) {
      co_await write_ids(out, *p.tokens);
    } else {
      out += "null";
    }
    out += ",\"kv_transfer_params\":" + g.transfer_params();
  }

 private:
  static TokenNames names(const Generation& g) {
    return {g.service().session().tokenizer(), g.fields().tokens_as_ids};
  }

  ChatReading reading_;
};

}  // namespace

std::unique_ptr<ChatOutput> read_output(Service& s, const ChatReading& reading, const char* id) {
  if (!reading.reads()) return nullptr;
  const dialect::ToolFormat* format = reading.parser.format.tools;
  size_t length = format ? format->id_length : 0;
  return std::make_unique<ChatOutput>(reading, [&s, length, id] {
    return length > 0 ? s.new_id("").substr(0, length) : s.new_id(id);
  });
}

std::vector<OutputPart> take_parts(Choice& c) {
  if (c.output) return c.output->take_parts();
  std::vector<OutputPart> parts;
  if (!c.text.empty())
    parts.push_back({OutputPart::Kind::content, -1, {}, {}, std::exchange(c.text, {})});
  return parts;
}

void start_chat(Service& s,
                Call call,
                ChatFields fields,
                const std::function<std::unique_ptr<Answer>(ChatReading)>& answer) {
  Refusal refused = s.check_model(fields.model);
  std::vector<std::vector<Token>> prompts(1);
  ChatReading reading;
  if (!refused) refused = s.encode_chat(fields, true, prompts[0], &reading);
  if (!refused) refused = enforce_calls(reading, fields);
  if (!refused) refused = s.plan_thinking(reading, fields);
  if (refused) return s.fail(call, *refused);
  std::vector<Fingerprint> turns = fingerprint_turns(fields.messages);
  auto g = std::make_shared<Generation>(s, std::move(call), std::move(fields),
                                        answer(std::move(reading)));
  g->turns = std::move(turns);
  g->start(std::move(prompts));
}

void serve_chat(Service& s, Call call) {
  std::optional<json::value> body = s.body(call);
  if (!body) return;
  ChatFields fields;
  fields.sampling = s.sampling_defaults();
  Refusal refused = parse_chat(*body, s.options().limits, fields);
  if (!refused && fields.stream && fields.sampling.prompt_logprobs >= 0)
    refused = ApiError{400, "prompt_logprobs does not go with stream", "prompt_logprobs", ""};
  if (refused) return s.fail(call, *refused);
  start_chat(s, std::move(call), std::move(fields),
             [](ChatReading reading) { return std::make_unique<ChatAnswer>(std::move(reading)); });
}

}  // namespace sluice
