// POST /v1/completions
#include <optional>
#include <utility>

#include "base/str.h"
#include "server/generation.h"
#include "server/infill.h"
#include "server/logprobs.h"
#include "server/routes.h"
#include "server/write_json.h"

namespace sluice {

namespace {

class TextAnswer final : public Answer {
 public:
  const char* id_prefix() const override { return "cmpl-"; }
  const char* object(bool) const override { return "text_completion"; }
  // As many scores as usage.completion_tokens: lm-eval cuts off the last of them.
  bool scores_end() const override { return true; }

  void append_first(std::string& out, const Generation& g, Choice& c) const override {
    if (!g.echo) return;
    out += "\"text\":";
    append_json(out, g.prompt(c).text);
    out += ",\"logprobs\":";
    if (scored(g)) {
      logprobs(out, g, c, true, false).finish();
    } else {
      out += "null";
    }
    append_prompt(out, g, c);
  }

  void append_chunk(std::string& out, const Generation& g, Choice& c) const override {
    out += "\"text\":";
    append_json(out, c.text);
    out += ",\"logprobs\":";
    if (scored(g) && !c.scores.empty()) {
      logprobs(out, g, c, false, true).finish();
    } else {
      out += "null";
    }
    if (!c.tokens.empty()) {
      out += ",\"token_ids\":";
      write_ids(out, c.tokens).finish();
    }
    append_prompt(out, g, c);
  }

  PieceWriter choice(std::string& out, const Generation& g, Choice& c) const override {
    const PromptState& p = g.prompt(c);
    out += strf("\"index\":%d,\"text\":\"", c.index);
    if (g.echo) co_await write_escaped(out, p.text);
    co_await write_escaped(out, c.text);
    out += "\",\"logprobs\":";
    if (scored(g)) {
      co_await logprobs(out, g, c, g.echo, true);
    } else {
      out += "null";
    }
    out += ",\"prompt_logprobs\":";
    if (g.fields().sampling.prompt_logprobs >= 0 && !g.echo) {
      co_await prompt_logprobs(out, g.service().session().tokenizer(), p.scores);
    } else {
      out += "null";
    }
    if (g.fields().return_token_ids) {
      out += ",\"token_ids\":";
      co_await write_ids(out, c.tokens);
      out += ",\"prompt_token_ids\":";
      co_await write_ids(out, *p.tokens);
    } else {
      out += ",\"token_ids\":null,\"prompt_token_ids\":null";
    }
  }

  PieceWriter extra(std::string& out, const Generation& g) const override {
    out += ",\"service_tier\":null,\"kv_transfer_params\":" + g.transfer_params();
    co_return;
  }

 private:
  // In the first chunk of a choice.
  static void append_prompt(std::string& out, const Generation& g, Choice& c) {
    if (!std::exchange(c.shows_prompt, false)) return;
    out += ",\"prompt_token_ids\":";
    write_ids(out, *g.prompt(c).tokens).finish();
  }

  static bool scored(const Generation& g) { return g.fields().sampling.num_logprobs >= 0; }

  static PieceWriter logprobs(
      std::string& out, const Generation& g, Choice& c, bool prompt, bool output) {
    const PromptState& p = g.prompt(c);
    TextScores scores;
    if (prompt) {
      scores.first = p.tokens->front();
      scores.prompt = p.scores;
    }
    if (output) scores.output = c.scores;
    TokenNames names{g.service().session().tokenizer(), g.fields().tokens_as_ids};
    return text_logprobs(out, names, scores, c.text_offset);
  }
};

// Text is echoed as it came, unless it is cut.
std::vector<std::optional<std::string>> texts_to_echo(const CompletionFields& fields) {
  std::vector<std::optional<std::string>> texts;
  if (!fields.echo || fields.truncate_prompt) return texts;
  for (const PromptField& p : fields.prompts) {
    const auto* text = std::get_if<std::string>(&p);
    texts.push_back(text ? std::optional(*text) : std::nullopt);
  }
  return texts;
}

}  // namespace

void serve_completion(Service& s, Call call) {
  std::optional<json::value> body = s.body(call);
  if (!body) return;
  CompletionFields fields;
  fields.sampling = s.sampling_defaults();
  Refusal refused = parse_completion(*body, s.options().limits, fields);
  if (!refused) refused = s.check_model(fields.model);
  if (!refused && fields.stream && fields.sampling.prompt_logprobs >= 0)
    refused = ApiError{400, "prompt_logprobs does not go with stream", "prompt_logprobs", ""};
  if (refused) return s.fail(call, *refused);

  std::vector<std::vector<Token>> prompts;
  std::vector<std::optional<std::string>> texts = texts_to_echo(fields);
  refused = fields.suffix.empty() ? s.encode_prompts(fields.prompts, "prompt",
                                                     fields.add_special_tokens, fields, prompts)
                                  : encode_gaps(s, fields, prompts);
  if (refused) return s.fail(call, *refused);
  bool echo = fields.echo, score_only = fields.max_tokens == 0;
  if (score_only) fields.max_tokens = 1;
  // Echoed tokens are scored like generated ones.
  if (echo && fields.sampling.num_logprobs >= 0)
    fields.sampling.prompt_logprobs = fields.sampling.num_logprobs;
  auto g = std::make_shared<Generation>(s, std::move(call), std::move(fields),
                                        std::make_unique<TextAnswer>());
  g->echo = echo;
  g->echo_texts = std::move(texts);
  g->score_only = score_only;
  g->start(std::move(prompts));
}

}  // namespace sluice
