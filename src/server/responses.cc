// POST /v1/responses, GET and DELETE /v1/responses/ID, as OpenAI has them.
#include <algorithm>
#include <ctime>
#include <utility>

#include "base/str.h"
#include "server/chat_start.h"
#include "server/responses_fields.h"
#include "server/routes.h"
#include "server/write_json.h"

namespace sluice {

namespace {

using Kind = OutputPart::Kind;
constexpr std::string_view kResponsesPath = "/v1/responses/";

ApiError no_response(const std::string& id, const char* param) {
  return {404,
          strf("there is no response %s: it was not stored, or it is not kept any more",
               quote(id).c_str()),
          param, "response_not_found"};
}

struct OutputItem {
  Kind kind;
  std::string id;
  std::string call_id, name;  // of a call
  std::string text;           // of a call: its arguments
};

const char* item_prefix(Kind kind) {
  switch (kind) {
    case Kind::content:
      return "msg_";
    case Kind::reasoning:
      return "rs_";
    case Kind::call:
      return "fc_";
  }
  return "";
}

// {"type":"output_text",...}
void append_text_part(std::string& out, Kind kind, std::string_view text) {
  out += kind == Kind::content ? "{\"type\":\"output_text\",\"annotations\":[],\"logprobs\":[]"
                               : "{\"type\":\"reasoning_text\"";
  out += ",\"text\":";
  append_json(out, text);
  out += '}';
}

// `begun`: as it is announced, without content.
void append_item(std::string& out, const OutputItem& item, const char* status, bool begun = false) {
  out += "{\"id\":";
  append_json(out, item.id);
  out += strf(",\"status\":\"%s\"", status);
  if (item.kind == Kind::call) {
    out += ",\"type\":\"function_call\",\"call_id\":";
    append_json(out, item.call_id);
    out += ",\"name\":";
    append_json(out, item.name);
    out += ",\"arguments\":";
    append_json(out, begun ? "" : item.text);
  } else {
    out += item.kind == Kind::content
               ? ",\"type\":\"message\",\"role\":\"assistant\""
               : ",\"type\":\"reasoning\",\"summary\":[],\"encrypted_content\":null";
    out += ",\"content\":[";
    if (!begun) append_text_part(out, item.kind, item.text);
    out += ']';
  }
  out += '}';
}

// The answer as a chat message, for the next turn.
json::object as_message(const std::vector<OutputItem>& items) {
  std::string content, reasoning;
  json::array calls;
  for (const OutputItem& item : items) {
    if (item.kind == Kind::content) content += item.text;
    if (item.kind == Kind::reasoning) reasoning += item.text;
    if (item.kind != Kind::call) continue;
    if (!whole_arguments(item.text)) continue;
    // As text: however deep they are, the conversation is not.
    calls.push_back(
        json::object{{"id", item.call_id},
                     {"type", "function"},
                     {"function", json::object{{"name", item.name}, {"arguments", item.text}}}});
  }
  json::object message{{"role", "assistant"}, {"content", content}};
  if (!reasoning.empty()) message["reasoning_content"] = reasoning;
  if (!calls.empty()) message["tool_calls"] = std::move(calls);
  return message;
}

class ResponsesAnswer final : public Answer {
 public:
  ResponsesAnswer(ChatReading reading, std::string echo, std::optional<std::string> conversation)
      : reading_(std::move(reading)),
        echo_(std::move(echo)),
        conversation_(std::move(conversation)) {}
  const char* id_prefix() const override { return "resp_"; }
  bool own_events() const override { return true; }
  std::unique_ptr<ChatOutput> make_output(Service& s) const override {
    return read_output(s, reading_, "call_");
  }
  std::span<const Token> kept_tokens() const override { return reading_.kept_tokens(); }
  size_t held_bytes() const override {
    return echo_.size() + (conversation_ ? conversation_->size() : 0);
  }

  void append_event(std::string& out, const Generation& g, Choice& c) override {
    if (!c.begun) {
      c.begun = true;
      begin_stream(out, g);
    }
    for (const OutputPart& part : take_parts(c)) stream_part(out, g, part);
    if (c.finish == Finish::none) return;
    const bool whole = c.finish == Finish::stop;
    close_item(out, whole);
    const std::string answer = response(g, &c, nullptr);
    begin(out, whole ? "response.completed" : "response.incomplete");
    out += ",\"response\":" + answer + "}\n\n";
    keep(g, answer);
  }

  void append_error(std::string& out, const Generation& g, const ApiError& error) override {
    if (next_ == 0) begin_stream(out, g);
    close_item(out, false);
    begin(out, "response.failed");
    out += ",\"response\":" + response(g, nullptr, &error) + "}\n\n";
  }

  std::optional<PieceWriter> body(std::string& out,
                                  const Generation& g,
                                  std::span<Choice> choices) override {
    return write_body(out, g, choices[0]);
  }

 private:
  void begin(std::string& out, const char* event) {
    out += strf("event: %s\ndata: {\"type\":\"%s\",\"sequence_number\":%d", event, event, next_++);
  }
  void begin_stream(std::string& out, const Generation& g) {
    for (const char* event : {"response.created", "response.in_progress"}) {
      begin(out, event);
      out += ",\"response\":" + response(g, nullptr, nullptr) + "}\n\n";
    }
  }

  // With `c` the answer as it ended, with `error` as it failed, with neither as it began.
  std::string response(const Generation& g, const Choice* c, const ApiError* error) const {
    const bool whole = c && c->finish == Finish::stop;
    const char* status = error ? "failed" : !c ? "in_progress" : whole ? "completed" : "incomplete";
    std::string out = "{\"id\":";
    append_json(out, g.id());
    out += strf(",\"object\":\"response\",\"created_at\":%lld,\"status\":\"%s\",\"model\":",
                static_cast<long long>(g.created()), status);
    append_json(out, g.service().options().model_names[0]);
    out += ",\"completed_at\":";
    out += whole ? std::to_string(std::time(nullptr)) : "null";
    out += ",\"output\":[";
    for (const OutputItem& item : items_) {
      const bool cut = !whole && &item == &items_.back();
      if (&item != items_.data()) out += ',';
      append_item(out, item, cut ? "incomplete" : "completed");
    }
    out += "],\"error\":";
    if (error) {
      out += plain_json(
          json::object{{"code", error->status >= 500 ? "server_error" : "invalid_prompt"},
                       {"message", error->message}});
    } else {
      out += "null";
    }
    out += ",\"incomplete_details\":";
    out += c && !whole ? "{\"reason\":\"max_output_tokens\"}" : "null";
    out += ",\"usage\":";
    if (c) {
      append_tokens(out, g, *c);
    } else {
      out += "null";
    }
    out += ',';
    out.append(echo_, 1);  // without its first brace
    return out;
  }

  static void append_tokens(std::string& out, const Generation& g, const Choice& c) {
    const size_t prompt = g.prompt(c).tokens->size();
    const int reasoning = c.output ? std::min(c.output->num_reasoning(), c.num_output) : 0;
    out += strf(
        "{\"input_tokens\":%zu,\"input_tokens_details\":{\"cached_tokens\":%d,"
        "\"cache_write_tokens\":0},\"output_tokens\":%d,\"output_tokens_details\":"
        "{\"reasoning_tokens\":%d},\"total_tokens\":%zu}",
        prompt, g.prompt(c).num_cached, c.num_output, reasoning,
        prompt + static_cast<size_t>(c.num_output));
  }

  // True: it begins an item.
  bool add_part(const Generation& g, const OutputPart& part) {
    const bool begins = items_.empty() || items_.back().kind != part.kind || !part.id.empty();
    if (begins)
      items_.push_back(
          {part.kind, g.service().new_id(item_prefix(part.kind)), part.id, part.name, {}});
    items_.back().text += part.text;
    return begins;
  }

  // "item_id":...,"output_index":N
  void append_place(std::string& out) const {
    out += ",\"item_id\":";
    append_json(out, items_.back().id);
    out += strf(",\"output_index\":%zu", items_.size() - 1);
    if (items_.back().kind != Kind::call) out += ",\"content_index\":0";
  }

  void stream_part(std::string& out, const Generation& g, const OutputPart& part) {
    if (!items_.empty() && (items_.back().kind != part.kind || !part.id.empty()))
      close_item(out, true);
    if (add_part(g, part)) open_item(out);
    if (part.text.empty()) return;
    const char* event = part.kind == Kind::content     ? "response.output_text.delta"
                        : part.kind == Kind::reasoning ? "response.reasoning_text.delta"
                                                       : "response.function_call_arguments.delta";
    begin(out, event);
    append_place(out);
    out += ",\"delta\":";
    append_json(out, part.text);
    out += part.kind == Kind::content ? ",\"logprobs\":[]}\n\n" : "}\n\n";
  }

  void open_item(std::string& out) {
    open_ = true;
    const OutputItem& item = items_.back();
    begin(out, "response.output_item.added");
    out += strf(",\"output_index\":%zu,\"item\":", items_.size() - 1);
    append_item(out, item, "in_progress", true);
    out += "}\n\n";
    if (item.kind == Kind::call) return;
    begin(out, "response.content_part.added");
    append_place(out);
    out += ",\"part\":";
    append_text_part(out, item.kind, "");
    out += "}\n\n";
  }

  void close_item(std::string& out, bool whole) {
    if (!std::exchange(open_, false)) return;
    const OutputItem& item = items_.back();
    const bool call = item.kind == Kind::call, content = item.kind == Kind::content;
    begin(out, call      ? "response.function_call_arguments.done"
               : content ? "response.output_text.done"
                         : "response.reasoning_text.done");
    append_place(out);
    if (call) {
      out += ",\"name\":";
      append_json(out, item.name);
    }
    out += call ? ",\"arguments\":" : ",\"text\":";
    append_json(out, item.text);
    out += content ? ",\"logprobs\":[]}\n\n" : "}\n\n";
    if (!call) {
      begin(out, "response.content_part.done");
      append_place(out);
      out += ",\"part\":";
      append_text_part(out, item.kind, item.text);
      out += "}\n\n";
    }
    begin(out, "response.output_item.done");
    out += strf(",\"output_index\":%zu,\"item\":", items_.size() - 1);
    append_item(out, item, whole ? "completed" : "incomplete");
    out += "}\n\n";
  }

  PieceWriter write_body(std::string& out, const Generation& g, Choice& c) {
    for (const OutputPart& part : take_parts(c)) add_part(g, part);
    const std::string answer = response(g, &c, nullptr);
    keep(g, answer);
    for (size_t at = 0; at < answer.size(); at += kPieceBytes) {
      out.append(answer, at, kPieceBytes);
      co_await pause_if_full(out);
    }
  }

  void keep(const Generation& g, const std::string& answer) {
    if (!conversation_) return;
    if (!conversation_->empty()) {
      conversation_->back() = ',';
      *conversation_ += plain_json(as_message(items_)) + ']';
    }
    if (conversation_->size() > g.service().options().heavy_bytes) conversation_->clear();
    g.service().responses().add(g.id(), {g.key(), answer, std::move(*conversation_)});
    conversation_.reset();
  }

  static constexpr size_t kPieceBytes = 16 << 10;
  ChatReading reading_;
  std::string echo_;                         // {"instructions":...}
  std::optional<std::string> conversation_;  // as StoredResponse has it; absent: nothing is stored
  std::vector<OutputItem> items_;
  bool open_ = false;  // the last item, in a stream
  int next_ = 0;       // sequence_number
};

// The conversation that the request goes on with, if any.
Refusal read_history(Service& s, const Call& call, const json::value& body, json::array& out) {
  const json::object* o = body.if_object();
  const json::value* id = o ? o->if_contains("previous_response_id") : nullptr;
  if (!id || !id->is_string()) return {};
  std::string name(id->get_string());
  std::shared_ptr<const StoredResponse> stored = s.responses().find(name, call.key);
  if (!stored) return no_response(name, "previous_response_id");
  if (stored->conversation.empty())
    return ApiError{400,
                    strf("the conversation of %s is too long to be stored: send it as input",
                         quote(name).c_str()),
                    "previous_response_id", "conversation_too_long"};
  Result<json::value> said = parse_json(stored->conversation);
  if (!said) return ApiError{500, said.error().message, "previous_response_id", ""};
  out = std::move(said->get_array());
  return {};
}

std::string response_id(const Call& call) { return call.http.path.substr(kResponsesPath.size()); }

}  // namespace

void serve_responses(Service& s, Call call) {
  std::optional<json::value> body = s.body(call);
  if (!body) return;
  json::array history;
  ResponsesFields fields;
  fields.chat.sampling = s.sampling_defaults();
  Refusal refused = read_history(s, call, *body, history);
  if (!refused) refused = parse_responses(*body, s.options().limits, std::move(history), fields);
  if (refused) return s.fail(call, *refused);
  if (fields.truncate) {  // with room for the answer
    const int most = s.session().engine().config().max_len;
    const int room = std::min(fields.chat.max_tokens.value_or(most / 4), most / 4);
    fields.chat.truncate_prompt = std::max(most - std::max(room, 1), 1);
  }
  std::string echo = plain_json(fields.echo);
  std::optional<std::string> conversation;
  if (fields.store) {
    conversation = plain_json(json::value(std::move(fields.conversation)));
    if (conversation->size() > s.options().heavy_bytes) conversation->clear();
  }
  start_chat(s, std::move(call), std::move(fields.chat), [&](ChatReading reading) {
    return std::make_unique<ResponsesAnswer>(std::move(reading), std::move(echo),
                                             std::move(conversation));
  });
}

void serve_response(Service& s, Call call) {
  if (Refusal r = s.check_ready()) return s.fail(call, *r);
  if (call.http.query.find("stream=true") != std::string::npos)
    return s.fail(call, {400, "stream is not supported: stored responses come whole", "stream",
                         "unsupported_parameter"});
  const std::string id = response_id(call);
  std::shared_ptr<const StoredResponse> stored = s.responses().find(id, call.key);
  if (!stored) return s.fail(call, no_response(id, ""));
  HttpResponse r;
  r.body = stored->answer;
  s.reply(call, std::move(r));
}

void serve_response_end(Service& s, Call call) {
  const std::string id = response_id(call);
  if (!s.responses().erase(id, call.key)) return s.fail(call, no_response(id, ""));
  s.reply_json(call, json::object{{"id", id}, {"object", "response"}, {"deleted", true}});
}

}  // namespace sluice
