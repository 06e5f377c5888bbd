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
    out += scored(g) ? json::serialize(logprobs(g, c, true, false)) : "null";
  }

  void append_chunk(std::string& out, const Generation& g, Choice& c) const override {
    out += "\"text\":";
    append_json(out, c.text);
    out += ",\"logprobs\":";
    out += scored(g) && !c.scores.empty() ? json::serialize(logprobs(g, c, false, true)) : "null";
    if (!c.tokens.empty()) {
      out += ",\"token_ids\":";
      out += json::serialize(json::array(c.tokens.begin(), c.tokens.end()));
    }
  }

  json::object choice(const Generation& g, Choice& c) const override {
    const PromptState& p = g.prompt(c);
    json::object o;
    o["index"] = c.index;
    o["text"] = g.echo ? p.text + c.text : c.text;
    o["logprobs"] = scored(g) ? json::value(logprobs(g, c, g.echo, true)) : json::value(nullptr);
    if (g.fields().sampling.prompt_logprobs >= 0 && !g.echo)
      o["prompt_logprobs"] = prompt_logprobs(g.service().session().tokenizer(), p.scores);
    if (g.fields().return_token_ids) {
      o["token_ids"] = json::array(c.tokens.begin(), c.tokens.end());
      o["prompt_token_ids"] = json::array(p.tokens->begin(), p.tokens->end());
    }
    return o;
  }

  void append_extra(std::string&, const Generation&) const override {}

 private:
  static bool scored(const Generation& g) { return g.fields().sampling.num_logprobs >= 0; }

  static json::object logprobs(const Generation& g, Choice& c, bool prompt, bool output) {
    std::vector<const ScoredToken*> scores;
    const PromptState& p = g.prompt(c);
    if (prompt) {
      for (const ScoredToken& s : p.scores) scores.push_back(&s);
    }
    if (output) {
      for (const ScoredToken& s : c.scores) scores.push_back(&s);
    }
    Token first = prompt ? p.tokens->front() : kNoToken;
    return text_logprobs(g.service().session().tokenizer(), first, scores, c.text_offset);
  }
};

}  // namespace

void serve_completion(Service& s, Call call) {
  std::optional<json::value> body = s.body(call);
  if (!body) return;
  CompletionFields fields;
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
