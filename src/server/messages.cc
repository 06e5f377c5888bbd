// POST /v1/messages and /v1/messages/count_tokens, as Anthropic has them.
#include <utility>

#include "base/str.h"
#include "server/chat_start.h"
#include "server/messages_fields.h"
#include "server/routes.h"
#include "server/write_json.h"

namespace sluice {

namespace {

constexpr std::string_view kAnthropicVersion = "2023-06-01";
// Of refusals and of code that runs at Anthropic: their clients look for the keys.
constexpr std::string_view kNoStopDetails = ",\"stop_details\":null,\"container\":null";

void append_usage(std::string& out, const Generation& g, const Choice& c) {
  const auto prompt = g.prompt(c).tokens->size(),
             cached = static_cast<size_t>(g.prompt(c).num_cached);
  out += strf(
      "\"usage\":{\"input_tokens\":%zu,\"cache_creation_input_tokens\":0,"
      "\"cache_read_input_tokens\":%zu,\"cache_creation\":null,\"output_tokens\":%d,"
      "\"output_tokens_details\":{\"thinking_tokens\":%d},\"server_tool_use\":null,"
      "\"service_tier\":\"standard\",\"inference_geo\":null}",
      prompt - std::min(prompt, cached), cached, c.num_output,
      c.output ? std::min(c.output->num_reasoning(), c.num_output) : 0);
}

// "stop_reason":...,"stop_sequence":...,"stop_details":null,"container":null
void append_stop(std::string& out, const Choice& c) {
  const bool sequence = c.finish == Finish::stop && c.stop_reason.is_string();
  const char* reason = c.finish != Finish::stop         ? "max_tokens"
                       : sequence                       ? "stop_sequence"
                       : c.output && c.output->called() ? "tool_use"
                                                        : "end_turn";
  out += strf("\"stop_reason\":\"%s\",\"stop_sequence\":", reason);
  out += sequence ? json::serialize(c.stop_reason) : "null";
  out += kNoStopDetails;
}

class MessagesAnswer final : public Answer {
 public:
  explicit MessagesAnswer(ChatReading reading) : reading_(std::move(reading)) {}
  const char* id_prefix() const override { return "msg_"; }
  bool own_events() const override { return true; }
  std::unique_ptr<ChatOutput> make_output(Service& s) const override {
    return read_output(s, reading_, "toolu_");
  }
  std::span<const Token> kept_tokens() const override { return reading_.kept_tokens(); }
  std::string_view ping() const override { return "event: ping\ndata: {\"type\":\"ping\"}\n\n"; }
  void append_error(std::string& out, const Generation&, const ApiError& error) override {
    out += "event: error\ndata: " + error_json(error, ErrorStyle::anthropic) + "\n\n";
  }

  void append_event(std::string& out, const Generation& g, Choice& c) override {
    if (!c.begun) {
      c.begun = true;
      begin(out, "message_start");
      out += ",\"message\":";
      append_head(out, g);
      out += "],\"stop_reason\":null,\"stop_sequence\":null";
      out += kNoStopDetails;
      out += ',';
      Choice none;
      none.prompt = c.prompt;
      append_usage(out, g, none);
      out += "}}\n\n";
      out += ping();
    }
    for (const OutputPart& part : take_parts(c)) append_part(out, part);
    if (c.finish == Finish::none) return;
    close_block(out);
    begin(out, "message_delta");
    out += ",\"delta\":{";
    append_stop(out, c);
    out += "},";
    append_usage(out, g, c);
    out += "}\n\n";
    begin(out, "message_stop");
    out += "}\n\n";
  }

  std::optional<PieceWriter> body(std::string& out,
                                  const Generation& g,
                                  std::span<Choice> choices) override {
    return write_body(out, g, choices[0]);
  }

 private:
  static void begin(std::string& out, const char* event) {
    out += strf("event: %s\ndata: {\"type\":\"%s\"", event, event);
  }

  // {"id":...,"content":[
  static void append_head(std::string& out, const Generation& g) {
    out += "{\"id\":";
    append_json(out, g.id());
    out += ",\"type\":\"message\",\"role\":\"assistant\",\"model\":";
    append_json(out, g.service().options().model_names[0]);
    out += ",\"content\":[";
  }

  // {"type":"tool_use","caller":...,"id":...,"name":...,"input":
  static void append_call(std::string& out, const OutputPart& part) {
    out += "{\"type\":\"tool_use\",\"caller\":{\"type\":\"direct\"},\"id\":";
    append_json(out, part.id);
    out += ",\"name\":";
    append_json(out, part.name);
    out += ",\"input\":";
  }

  PieceWriter write_body(std::string& out, const Generation& g, Choice& c) const {
    append_head(out, g);
    const std::vector<OutputPart> parts = take_parts(c);
    for (const OutputPart& part : parts) {
      if (&part != parts.data()) out += ',';
      switch (part.kind) {
        case OutputPart::Kind::content:
          out += "{\"type\":\"text\",\"citations\":null,\"text\":\"";
          co_await write_escaped(out, part.text);
          out += "\"}";
          break;
        case OutputPart::Kind::reasoning:
          out += "{\"type\":\"thinking\",\"thinking\":\"";
          co_await write_escaped(out, part.text);
          out += "\",\"signature\":\"\"}";
          break;
        case OutputPart::Kind::call:
          append_call(out, part);
          out += whole_arguments(part.text) ? part.text : "{}";
          out += '}';
          break;
      }
      co_await pause_if_full(out);
    }
    out += "],";
    append_stop(out, c);
    out += ',';
    append_usage(out, g, c);
    out += '}';
  }

  void append_part(std::string& out, const OutputPart& part) {
    if (!open_ || open_kind_ != part.kind || !part.id.empty()) open_block(out, part);
    if (part.text.empty()) return;
    begin(out, "content_block_delta");
    out += strf(",\"index\":%d,\"delta\":{\"type\":", index_);
    switch (part.kind) {
      case OutputPart::Kind::content:
        out += "\"text_delta\",\"text\":";
        break;
      case OutputPart::Kind::reasoning:
        out += "\"thinking_delta\",\"thinking\":";
        break;
      case OutputPart::Kind::call:
        out += "\"input_json_delta\",\"partial_json\":";
        break;
    }
    append_json(out, part.text);
    out += "}}\n\n";
  }

  void open_block(std::string& out, const OutputPart& part) {
    close_block(out);
    ++index_;
    open_ = true;
    open_kind_ = part.kind;
    begin(out, "content_block_start");
    out += strf(",\"index\":%d,\"content_block\":", index_);
    switch (part.kind) {
      case OutputPart::Kind::content:
        out += "{\"type\":\"text\",\"citations\":null,\"text\":\"\"}";
        break;
      case OutputPart::Kind::reasoning:
        out += "{\"type\":\"thinking\",\"thinking\":\"\",\"signature\":\"\"}";
        break;
      case OutputPart::Kind::call:
        append_call(out, part);
        out += "{}}";
        break;
    }
    out += "}\n\n";
  }

  // Nothing here checks a thinking block that comes back, so its signature is empty.
  void close_block(std::string& out) {
    if (!open_) return;
    open_ = false;
    if (open_kind_ == OutputPart::Kind::reasoning) {
      begin(out, "content_block_delta");
      out += strf(",\"index\":%d,\"delta\":{\"type\":\"signature_delta\",\"signature\":\"\"}}\n\n",
                  index_);
    }
    begin(out, "content_block_stop");
    out += strf(",\"index\":%d}\n\n", index_);
  }

  ChatReading reading_;
  int index_ = -1;  // of the last block that began
  bool open_ = false;
  OutputPart::Kind open_kind_{};
};

// The body's fields, or nothing once the call has been answered.
std::optional<ChatFields> read_body(Service& s, const Call& call, bool counting) {
  std::optional<json::value> body = s.body(call);
  if (!body) return {};
  ChatFields fields;
  fields.sampling = s.sampling_defaults();
  Refusal refused;
  std::string_view version = call.http.header("anthropic-version");
  if (!version.empty() && version != kAnthropicVersion)
    refused = ApiError{400, "anthropic-version must be " + std::string(kAnthropicVersion), "", ""};
  if (!refused) refused = parse_messages(*body, s.options().limits, counting, fields);
  if (!refused) return fields;
  s.fail(call, *refused);
  return {};
}

}  // namespace

void serve_messages(Service& s, Call call) {
  std::optional<ChatFields> fields = read_body(s, call, false);
  if (!fields) return;
  start_chat(s, std::move(call), std::move(*fields), [](ChatReading reading) {
    return std::make_unique<MessagesAnswer>(std::move(reading));
  });
}

void serve_count_tokens(Service& s, Call call) {
  std::optional<ChatFields> fields = read_body(s, call, true);
  if (!fields) return;
  std::vector<Token> ids;
  Refusal refused = s.check_model(fields->model);
  if (!refused) refused = s.encode_chat(*fields, false, ids);
  if (refused) return s.fail(call, *refused);
  s.note_unknown(fields->unknown);
  s.reply_json(call, json::object{{"input_tokens", ids.size()}});
}

}  // namespace sluice
