// POST /models/NAME/generate and /models/NAME/generate_stream: one prompt, text or ids, in the
// shape of text-generation servers before OpenAI's was everybody's.
#include "base/str.h"
#include "server/generation.h"
#include "server/logprobs.h"
#include "server/routes.h"
#include "server/write_json.h"
#include "text/detokenizer.h"

namespace sluice {

namespace {

class GenerateAnswer final : public Answer {
 public:
  GenerateAnswer(bool full_text, bool details) : full_text_(full_text), details_(details) {}

  const char* id_prefix() const override { return "gen-"; }
  bool own_events() const override { return true; }

  // One event per step: {"token": {"id", "text", "special"}, "generated_text", "details"}.
  void append_event(std::string& out, const Generation& g, Choice& c) override {
    text_ += c.text;
    const Tokenizer* tokenizer = g.service().session().tokenizer();
    json::object o;
    o["index"] = c.num_output;
    Token id = c.tokens.empty() ? kNoToken : c.tokens.back();
    o["token"] = json::object{{"id", id == kNoToken ? json::value(nullptr) : json::value(id)},
                              {"text", c.text},
                              {"special", tokenizer && tokenizer->is_control(id)}};
    bool over = c.finish != Finish::none;
    o["generated_text"] = over ? json::value(whole(g, c, text_)) : json::value(nullptr);
    o["details"] = over ? json::value(details(g, c)) : json::value(nullptr);
    out += "data: " + plain_json(o) + "\n\n";
  }

  std::optional<PieceWriter> body(std::string& out,
                                  const Generation& g,
                                  std::span<Choice> choices) override {
    return write_body(out, g, choices[0]);
  }

 private:
  PieceWriter write_body(std::string& out, const Generation& g, const Choice& c) const {
    out += "{\"generated_text\":\"";
    if (full_text_) co_await write_escaped(out, g.prompt(c).text);
    co_await write_escaped(out, c.text);
    out += "\",\"token_ids\":";
    co_await write_ids(out, c.tokens);
    if (details_) out += ",\"details\":" + plain_json(details(g, c));
    out += '}';
  }
  std::string whole(const Generation& g, const Choice& c, const std::string& text) const {
    return full_text_ ? g.prompt(c).text + text : text;
  }
  json::object details(const Generation& g, const Choice& c) const {
    const char* reason = c.finish == Finish::length ? "length"
                         : c.stop_reason.is_null()  ? "eos_token"
                                                    : "stop_sequence";
    return {{"finish_reason", reason},
            {"generated_tokens", c.num_output},
            {"prompt_tokens", g.prompt(c).tokens->size()},
            {"seed", g.fields().sampling.seed}};
  }

  bool full_text_, details_;
  std::string text_;  // so far
};

// "/models/NAME/generate" into its parts.
bool split_path(const std::string& path, std::string& model, bool& stream) {
  std::string_view rest = std::string_view(path).substr(std::string_view("/models/").size());
  size_t slash = rest.rfind('/');
  if (slash == rest.npos || slash == 0) return false;
  model = rest.substr(0, slash);
  std::string_view what = rest.substr(slash + 1);
  stream = what == "generate_stream";
  return stream || what == "generate";
}

}  // namespace

void serve_generate(Service& s, Call call) {
  std::string model;
  bool stream = false;
  if (!split_path(call.http.path, model, stream)) {
    return s.fail(call, {404, "there are /models/NAME/generate and /models/NAME/generate_stream",
                         "", "not_found"});
  }
  std::optional<json::value> body = s.body(call);
  if (!body) return;
  TgiFields fields;
  fields.sampling = s.sampling_defaults();
  Refusal refused = parse_tgi(*body, s.options().limits, fields);
  if (!refused) refused = s.check_model(model);
  if (!refused && fields.model != "") refused = s.check_model(fields.model);
  if (refused) return s.fail(call, *refused);
  std::vector<PromptField> inputs{std::move(fields.inputs)};
  std::optional<std::string> text;
  if (const auto* given = std::get_if<std::string>(&inputs[0])) text = *given;
  std::vector<std::vector<Token>> prompts;
  refused = s.encode_prompts(inputs, "inputs", true, fields, prompts);
  if (refused) return s.fail(call, *refused);
  fields.stream = stream || fields.stream;
  fields.return_token_ids = true;
  bool full = fields.return_full_text;
  std::vector<std::optional<std::string>> texts(1);
  if (full && !fields.truncate_prompt) texts[0] = std::move(text);
  auto answer = std::make_unique<GenerateAnswer>(full, fields.details);
  auto g = std::make_shared<Generation>(s, std::move(call), std::move(fields), std::move(answer));
  g->echo = full;
  g->echo_texts = std::move(texts);
  g->start(std::move(prompts));
}

}  // namespace sluice
