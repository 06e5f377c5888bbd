// POST /v1/completions
#include "base/str.h"
#include "server/generation.h"
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
    if (g.fields().sampling.prompt_logprobs >= 0 && !g.echo) {
      out += ",\"prompt_logprobs\":";
      co_await prompt_logprobs(out, g.service().session().tokenizer(), p.scores);
    }
    if (g.fields().return_token_ids) {
      out += ",\"token_ids\":";
      co_await write_ids(out, c.tokens);
      out += ",\"prompt_token_ids\":";
      co_await write_ids(out, *p.tokens);
    }
  }

  PieceWriter extra(std::string&, const Generation&) const override { co_return; }

 private:
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
    return text_logprobs(out, g.service().session().tokenizer(), scores, c.text_offset);
  }
};

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
  refused = s.encode_prompts(fields.prompts, "prompt", fields.add_special_tokens, fields, prompts);
  if (refused) return s.fail(call, *refused);
  bool echo = fields.echo, score_only = fields.max_tokens == 0;
  if (score_only) fields.max_tokens = 1;
  // Echoed tokens are scored like generated ones.
  if (echo && fields.sampling.num_logprobs >= 0)
    fields.sampling.prompt_logprobs = fields.sampling.num_logprobs;
  auto g = std::make_shared<Generation>(s, std::move(call), std::move(fields),
                                        std::make_unique<TextAnswer>());
  g->echo = echo;
  g->score_only = score_only;
  g->start(std::move(prompts));
}

}  // namespace sluice
