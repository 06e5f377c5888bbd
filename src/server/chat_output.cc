#include "server/chat_output.h"

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
  parser_.push(text, events_);
  if (finished) parser_.finish(events_);
  for (dialect::OutputEvent& e : events_) {
    using Kind = dialect::OutputEvent::Kind;
    if (e.call > 0 && !parallel_) continue;
    switch (e.kind) {
      case Kind::content:
        content_ += e.text;
        break;
      case Kind::reasoning:
        if (include_reasoning_) reasoning_ += e.text;
        break;
      case Kind::call_begin:
        calls_.push_back({e.call, new_id_(), std::move(e.text), {}});
        break;
      case Kind::arguments:
        if (calls_.empty() || calls_.back().index != e.call) calls_.push_back({e.call, {}, {}, {}});
        calls_.back().arguments += e.text;
        break;
      case Kind::call_end:
        break;
    }
  }
}

// In a stream the id and the name come first, the arguments in pieces.
void ChatOutput::append_calls(std::string& out, bool whole) const {
  out += "\"tool_calls\":[";
  for (const CallPiece& c : calls_) {
    out += &c == calls_.data() ? "{" : ",{";
    if (!whole) out += strf("\"index\":%d,", c.index);
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
    append_json(out, c.arguments);
    out += "}}";
  }
  out += ']';
}

void ChatOutput::append_delta(std::string& out) {
  const char* between = "";
  auto text = [&](const char* name, const std::string& value) {
    if (value.empty()) return;
    out += std::exchange(between, ",");
    out += strf("\"%s\":", name);
    append_json(out, value);
  };
  text("reasoning", reasoning_);
  text("reasoning_content", reasoning_);
  text("content", content_);
  if (!calls_.empty()) {
    out += between;
    append_calls(out, false);
  }
  content_.clear(), reasoning_.clear(), calls_.clear();
}

PieceWriter ChatOutput::write_message(std::string& out) const {
  auto text = [&](const char* name) { out += strf("\"%s\":", name); };
  text("content");
  if (content_.empty() && !calls_.empty()) {
    out += "null,";
  } else {
    out += '"';
    co_await write_escaped(out, content_);
    out += "\",";
  }
  append_calls(out, true);
  static constexpr const char* kNames[] = {"reasoning", "reasoning_content"};
  for (const char* name : kNames) {
    out += ',';
    text(name);
    if (reasoning_.empty()) {
      out += "null";
    } else {
      out += '"';
      co_await write_escaped(out, reasoning_);
      out += '"';
    }
  }
}

}  // namespace sluice
