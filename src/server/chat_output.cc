#include "server/chat_output.h"

#include <algorithm>

#include "base/str.h"
#include "server/write_json.h"

namespace sluice {

ChatOutput::ChatOutput(const ChatReading& reading, std::function<std::string()> new_id)
    : parser_(reading.parser),
      new_id_(std::move(new_id)),
      parallel_(reading.parallel),
      include_reasoning_(reading.include_reasoning) {}

void ChatOutput::push(std::string_view text, bool finished) {
  events_.clear();
  if (parser_.thinking()) ++num_reasoning_;
  parser_.push(text, events_);
  if (finished) parser_.finish(events_);
  for (dialect::OutputEvent& e : events_) {
    using Kind = dialect::OutputEvent::Kind;
    if (e.call > 0 && !parallel_) continue;
    switch (e.kind) {
      case Kind::content:
        add(OutputPart::Kind::content, e.text);
        break;
      case Kind::reasoning:
        if (include_reasoning_) add(OutputPart::Kind::reasoning, e.text);
        break;
      case Kind::call_begin:
        parts_.push_back({OutputPart::Kind::call, e.call, new_id_(), std::move(e.text), {}});
        break;
      case Kind::arguments:
        if (parts_.empty() || parts_.back().call != e.call)
          parts_.push_back({OutputPart::Kind::call, e.call, {}, {}, {}});
        parts_.back().text += e.text;
        break;
      case Kind::call_end:
        break;
    }
  }
}

void ChatOutput::add(OutputPart::Kind kind, std::string_view text) {
  if (text.empty()) return;
  if (parts_.empty() || parts_.back().kind != kind) parts_.push_back({kind, -1, {}, {}, {}});
  parts_.back().text += text;
}

bool ChatOutput::has(OutputPart::Kind kind) const {
  return std::ranges::any_of(parts_, [&](const OutputPart& p) { return p.kind == kind; });
}

// In a stream the id and the name come first, the arguments in pieces.
void ChatOutput::append_calls(std::string& out, bool whole) const {
  out += "\"tool_calls\":[";
  const char* between = "{";
  for (const OutputPart& c : parts_) {
    if (c.kind != OutputPart::Kind::call) continue;
    out += std::exchange(between, ",{");
    if (!whole) out += strf("\"index\":%d,", c.call);
    if (!c.id.empty()) {
      out += "\"id\":";
      append_json(out, c.id);
      out += ",\"type\":\"function\",\"function\":{\"name\":";
      append_json(out, c.name);
      out += ",";
    } else {
      out += "\"function\":{";
    }
    out += "\"arguments\":";
    append_json(out, c.text);
    out += "}}";
  }
  out += ']';
}

void ChatOutput::append_text(std::string& out, const char* name, OutputPart::Kind kind) const {
  out += strf("\"%s\":\"", name);
  for (const OutputPart& p : parts_) {
    if (p.kind != kind) continue;
    for (char c : p.text) append_json_char(out, c);
  }
  out += '"';
}

void ChatOutput::append_delta(std::string& out) {
  using Kind = OutputPart::Kind;
  const char* between = "";
  auto text = [&](const char* name, Kind kind) {
    if (!has(kind)) return;
    out += std::exchange(between, ",");
    append_text(out, name, kind);
  };
  text("reasoning", Kind::reasoning);
  text("reasoning_content", Kind::reasoning);
  text("content", Kind::content);
  if (has(Kind::call)) {
    out += between;
    append_calls(out, false);
  }
  parts_.clear();
}

PieceWriter ChatOutput::write_text(std::string& out, OutputPart::Kind kind) const {
  out += '"';
  for (const OutputPart& p : parts_) {
    if (p.kind == kind) co_await write_escaped(out, p.text);
  }
  out += '"';
}

PieceWriter ChatOutput::write_message(std::string& out) const {
  using Kind = OutputPart::Kind;
  out += "\"content\":";
  if (!has(Kind::content) && has(Kind::call)) {
    out += "null";
  } else {
    co_await write_text(out, Kind::content);
  }
  out += ',';
  append_calls(out, true);
  static constexpr const char* kNames[] = {"reasoning", "reasoning_content"};
  for (const char* name : kNames) {
    out += strf(",\"%s\":", name);
    if (has(Kind::reasoning)) {
      co_await write_text(out, Kind::reasoning);
    } else {
      out += "null";
    }
  }
}

std::optional<json::value> whole_arguments(std::string_view text) {
  Result<json::value> v = parse_json(text, kRequestJson);
  if (!v || !v->is_object()) return {};
  return std::move(*v);
}

}  // namespace sluice
