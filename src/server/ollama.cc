// Ollama's API: POST /api/chat, /api/generate and /api/show, GET /api/tags and /api/version.
// (/api/embed is with the other embeddings.) Streams are lines of JSON.
#include <algorithm>
#include <ctime>
#include <utility>

#include "base/str.h"
#include "server/chat_start.h"
#include "server/ollama_fields.h"
#include "server/routes.h"
#include "server/write_json.h"

namespace sluice {

namespace {

std::string utc_text(int64_t at) {
  const std::time_t when = at;
  std::tm utc{};
  gmtime_r(&when, &utc);
  char text[32];
  return {text, std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &utc)};
}

// "model":...,"created_at":...
void append_ollama_head(std::string& out, const Service& s, int64_t at) {
  out += "\"model\":";
  append_json(out, s.options().model_names[0]);
  out += ",\"created_at\":\"" + utc_text(at) + '"';
}

class OllamaAnswer final : public Answer {
 public:
  OllamaAnswer(ChatReading reading, bool chat) : reading_(std::move(reading)), chat_(chat) {}
  const char* id_prefix() const override { return "ollama-"; }
  bool own_events() const override { return true; }
  const char* stream_type() const override { return "application/x-ndjson"; }
  std::string_view ping() const override { return {}; }  // clients read every line
  std::unique_ptr<ChatOutput> make_output(Service& s) const override {
    return read_output(s, reading_, "call_");
  }
  std::span<const Token> kept_tokens() const override { return reading_.kept_tokens(); }
  void append_error(std::string& out, const Generation&, const ApiError& error) override {
    out += error_json(error, ErrorStyle::ollama) + '\n';
  }

  void append_event(std::string& out, const Generation& g, Choice& c) override {
    for (OutputPart& part : take_parts(c)) {
      if (part.kind == OutputPart::Kind::call) {
        if (!part.id.empty()) end_call(out, g);
        if (!call_) call_.emplace(OutputPart{part.kind, part.call, part.id, part.name, {}});
        call_->text += part.text;
        continue;
      }
      end_call(out, g);
      append_line(out, g, part);
    }
    if (c.finish == Finish::none) return;
    end_call(out, g);
    out += '{';
    append_ollama_head(out, g.service(), g.created());
    out += chat_ ? ",\"message\":{\"role\":\"assistant\",\"content\":\"\"}" : ",\"response\":\"\"";
    append_end(out, g, c);
    out += "}\n";
  }

  std::optional<PieceWriter> body(std::string& out,
                                  const Generation& g,
                                  std::span<Choice> choices) override {
    return write_body(out, g, choices[0]);
  }

 private:
  // {"function":{...}}; false: the call was cut off, and nothing is written.
  static bool append_call(std::string& out, const OutputPart& call) {
    const std::optional<json::value> arguments = whole_arguments(call.text);
    if (!arguments) return false;
    out += "{\"id\":";
    append_json(out, call.id);
    out += strf(",\"function\":{\"index\":%d,\"name\":", call.call);
    append_json(out, call.name);
    out += ",\"arguments\":" + plain_json(*arguments) + "}}";  // on one line
    return true;
  }

  // Calls come whole.
  void end_call(std::string& out, const Generation& g) {
    if (!call_) return;
    const OutputPart call = *std::exchange(call_, std::nullopt);
    std::string text;
    if (!append_call(text, call)) return;
    out += '{';
    append_ollama_head(out, g.service(), g.created());
    out += ",\"message\":{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[" + text +
           "]},\"done\":false}\n";
  }

  void append_line(std::string& out, const Generation& g, const OutputPart& part) const {
    const bool thinking = part.kind == OutputPart::Kind::reasoning;
    out += '{';
    append_ollama_head(out, g.service(), g.created());
    const char* field = chat_ ? "content" : "response";
    out += chat_ ? ",\"message\":{\"role\":\"assistant\"," : ",";
    out += strf("\"%s\":", field);
    append_json(out, thinking ? std::string_view() : std::string_view(part.text));
    if (thinking) {
      out += ",\"thinking\":";
      append_json(out, part.text);
    }
    out += chat_ ? "},\"done\":false}\n" : ",\"done\":false}\n";
  }

  // Times are in nanoseconds.
  static void append_end(std::string& out, const Generation& g, const Choice& c) {
    auto between = [](Time from, Time to) {
      return static_cast<long long>(from.count() > 0 && to > from ? (to - from).count() : 0);
    };
    const SeqTiming& t = c.timing;
    out += strf(
        ",\"done\":true,\"done_reason\":\"%s\",\"total_duration\":%lld,\"load_duration\":0,"
        "\"prompt_eval_count\":%zu,\"prompt_eval_duration\":%lld,\"eval_count\":%d,"
        "\"eval_duration\":%lld",
        c.finish == Finish::stop ? "stop" : "length", between(t.arrival, t.last_token),
        g.prompt(c).tokens->size(), between(t.first_scheduled, t.first_token), c.num_output,
        between(t.first_token, t.last_token));
  }

  static PieceWriter write_texts(std::string& out,
                                 const std::vector<OutputPart>& parts,
                                 OutputPart::Kind kind) {
    out += '"';
    for (const OutputPart& p : parts) {
      if (p.kind == kind) co_await write_escaped(out, p.text);
    }
    out += '"';
  }

  PieceWriter write_body(std::string& out, const Generation& g, Choice& c) const {
    const std::vector<OutputPart> parts = take_parts(c);
    auto has = [&](OutputPart::Kind kind) {
      return std::ranges::any_of(parts, [&](const OutputPart& p) { return p.kind == kind; });
    };
    out += '{';
    append_ollama_head(out, g.service(), g.created());
    out += chat_ ? ",\"message\":{\"role\":\"assistant\",\"content\":" : ",\"response\":";
    co_await write_texts(out, parts, OutputPart::Kind::content);
    if (has(OutputPart::Kind::reasoning)) {
      out += ",\"thinking\":";
      co_await write_texts(out, parts, OutputPart::Kind::reasoning);
    }
    std::string calls;
    for (const OutputPart& p : parts) {
      std::string one;
      if (p.kind != OutputPart::Kind::call || !append_call(one, p)) continue;
      calls += (calls.empty() ? "" : ",") + one;
    }
    if (!calls.empty()) out += ",\"tool_calls\":[" + calls + ']';
    if (chat_) out += '}';
    append_end(out, g, c);
    out += '}';
  }

  ChatReading reading_;
  bool chat_;                       // not /api/generate
  std::optional<OutputPart> call_;  // not whole yet
};

// A request without a question asks whether the model is there.
void answer_load(Service& s, const Call& call, const std::string& model, bool chat) {
  if (Refusal refused = s.check_model(model)) return s.fail(call, *refused);
  HttpResponse r;
  r.body = "{";
  append_ollama_head(r.body, s, std::time(nullptr));
  r.body += chat ? ",\"message\":{\"role\":\"assistant\",\"content\":\"\"}" : ",\"response\":\"\"";
  r.body += ",\"done\":true,\"done_reason\":\"load\"}";
  s.reply(call, std::move(r));
}

json::object model_details(const Service& s) {
  const std::string& arch = s.session().model().shape().arch;
  return {{"family", arch}, {"families", json::array{arch}}};
}

json::array capabilities(Service& s) {
  json::array out{"completion"};
  const ChatTemplate* t = s.session().chat_template();
  const dialect::OutputFormat format =
      t ? choose_format(s.options().formats, t->source()) : dialect::OutputFormat{};
  if (format.tools) out.push_back("tools");
  if (format.think || format.is_harmony()) out.push_back("thinking");
  return out;
}

}  // namespace

void serve_ollama_chat(Service& s, Call call) {
  std::optional<json::value> body = s.body(call);
  if (!body) return;
  ChatFields fields;
  fields.sampling = s.sampling_defaults();
  Refusal refused = parse_ollama_chat(*body, s.options().limits, fields);
  if (refused) return s.fail(call, *refused);
  if (fields.messages.empty()) return answer_load(s, call, fields.model, true);
  start_chat(s, std::move(call), std::move(fields), [](ChatReading reading) {
    return std::make_unique<OllamaAnswer>(std::move(reading), true);
  });
}

void serve_ollama_generate(Service& s, Call call) {
  std::optional<json::value> body = s.body(call);
  if (!body) return;
  OllamaGenerateFields fields;
  fields.chat.sampling = s.sampling_defaults();
  Refusal refused = parse_ollama_generate(*body, s.options().limits, fields);
  if (refused) return s.fail(call, *refused);
  if (fields.prompt.empty()) return answer_load(s, call, fields.chat.model, false);
  // A model without a template continues the text, if that is all that is asked.
  const ChatFields& chat = fields.chat;
  const bool plain =
      chat.messages.size() == 1 && chat.template_kwargs.empty() && chat.chat_template.empty();
  const bool raw = fields.raw || (!s.session().chat_template() && plain);
  if (!raw) {
    return start_chat(s, std::move(call), std::move(fields.chat), [](ChatReading reading) {
      return std::make_unique<OllamaAnswer>(std::move(reading), false);
    });
  }
  std::vector<PromptField> texts{std::move(fields.prompt)};
  std::vector<std::vector<Token>> prompts;
  refused = s.check_model(fields.chat.model);
  if (!refused)
    refused =
        s.encode_prompts(texts, "prompt", fields.chat.add_special_tokens, fields.chat, prompts);
  if (refused) return s.fail(call, *refused);
  auto g = std::make_shared<Generation>(s, std::move(call), std::move(fields.chat),
                                        std::make_unique<OllamaAnswer>(ChatReading{}, false));
  g->start(std::move(prompts));
}

void serve_ollama_tags(Service& s, Call call) {
  if (Refusal r = s.check_ready()) return s.fail(call, *r);
  json::array models;
  for (const std::string& name : s.options().model_names) {
    models.push_back(json::object{{"name", name},
                                  {"model", name},
                                  {"modified_at", utc_text(s.started_at())},
                                  {"size", s.session().weight_bytes()},
                                  {"digest", ""},
                                  {"details", model_details(s)}});
  }
  s.reply_json(call, json::object{{"models", std::move(models)}});
}

// The template is shown where /tokenizer_info would show it.
void serve_ollama_show(Service& s, Call call) {
  std::optional<json::value> body = s.body(call);
  if (!body) return;
  const json::object* o = body->if_object();
  const json::value* name = o ? o->if_contains("model") : nullptr;
  if (!name) name = o ? o->if_contains("name") : nullptr;
  if (!name || !name->is_string())
    return s.fail(call, {400, "model must be a string", "model", ""});
  std::string model(name->get_string());
  strip_tag(model);
  if (Refusal refused = s.check_model(model)) return s.fail(call, *refused);
  const ModelShape& shape = s.session().model().shape();
  json::object about{{"modified_at", utc_text(s.started_at())},
                     {"details", model_details(s)},
                     {"capabilities", capabilities(s)},
                     {"model_info", json::object{{"general.architecture", shape.arch},
                                                 {shape.arch + ".context_length",
                                                  s.session().engine().config().max_len},
                                                 {shape.arch + ".embedding_length", shape.hidden},
                                                 {shape.arch + ".block_count", shape.num_layers}}}};
  const ChatTemplate* t = s.session().chat_template();
  if (t && s.options().tokenizer_info) about["template"] = t->source();
  s.reply_json(call, about);
}

}  // namespace sluice
