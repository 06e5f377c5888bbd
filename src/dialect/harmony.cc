#include "dialect/harmony.h"

#include <algorithm>

namespace sluice::dialect {

namespace {

constexpr std::string_view kMarks[] = {"<|start|>", "<|channel|>", "<|constrain|>", "<|message|>",
                                       "<|end|>",   "<|call|>",    "<|return|>"};
enum Mark : size_t { kStart, kChannel, kConstrain, kMessage, kEnd };  // the others end too

constexpr std::string_view kSpace = " \n\r\t";

// The word behind `mark` in the header; empty: none.
std::string_view word_behind(std::string_view header, std::string_view mark) {
  size_t at = header.find(mark);
  if (at == std::string_view::npos) return {};
  header.remove_prefix(at + mark.size());
  return header.substr(0, header.find_first_of(" \n\r\t<"));
}

}  // namespace

Harmony::Harmony(const ToolFormat& format, const ToolSet* tools)
    : prefix_(format.before_name),
      tools_(tools),
      scan_({kMarks[0], kMarks[1], kMarks[2], kMarks[3], kMarks[4], kMarks[5], kMarks[6]}) {}

void Harmony::feed(char c, EventWriter& out) {
  std::string text;
  int mark = scan_.feed(c, text);
  on_text(text, out);
  if (mark != MarkerScan::kNone) on_mark(static_cast<size_t>(mark), out);
}

void Harmony::begin_header(std::string_view mark) {
  header_ = mark;
  state_ = State::header;
}

// The prompt ends with <|start|>assistant: what the output begins with is a header, if it has a
// mark or a recipient.
void Harmony::on_text(std::string_view text, EventWriter& out) {
  for (char c : text) {
    switch (state_) {
      case State::start:
        header_ += c;
        if (!std::string_view(" to=").starts_with(std::string_view(header_).substr(0, 4))) {
          state_ = State::content;
          out.text(OutputEvent::Kind::content, header_);
        } else if (header_.size() == 4) {
          state_ = State::header;
        }
        break;
      case State::header:
        header_ += c;
        if (header_.size() <= kMaxHeader) break;
        state_ = State::content;
        out.text(OutputEvent::Kind::content, header_);
        break;
      case State::content:
        out.text(OutputEvent::Kind::content, {&c, 1});
        break;
      case State::reasoning:
        out.text(OutputEvent::Kind::reasoning, {&c, 1});
        break;
      case State::arguments:
        feed_arguments(c, out);
        break;
      case State::after_arguments:
        if (kSpace.find(c) != std::string_view::npos) break;
        state_ = State::content;
        out.text(OutputEvent::Kind::content, {&c, 1});
        break;
    }
  }
}

void Harmony::feed_arguments(char c, EventWriter& out) {
  std::string piece;
  bool object = scanner_.begun() || is_json_space(c) || c == '{';
  Step step = object ? scanner_.feed(c, piece) : Step::bad;
  if (step == Step::bad) {
    out.end_call(false);
    state_ = State::content;
    return out.text(OutputEvent::Kind::content, {&c, 1});
  }
  out.arguments(piece);
  if (step == Step::more) return;
  out.end_call();
  state_ = State::after_arguments;
}

void Harmony::begin_message(EventWriter& out) {
  std::string_view to = word_behind(header_, "to="), channel = word_behind(header_, "<|channel|>");
  if (to.starts_with(prefix_)) to.remove_prefix(prefix_.size());
  bool known = !to.empty() && !tools_->empty();
  if (known &&
      (header_.find("to=" + std::string(prefix_)) != std::string::npos || tools_->find(to))) {
    scanner_ = {};
    out.begin_call(to);
    state_ = State::arguments;
  } else {
    state_ = channel == "analysis" ? State::reasoning : State::content;
  }
}

void Harmony::on_mark(size_t mark, EventWriter& out) {
  if (state_ == State::arguments) out.end_call(false);
  switch (mark) {
    case kStart:
      return begin_header(kMarks[mark]);
    case kChannel:
    case kConstrain:
      if (state_ == State::start || state_ == State::header) {
        header_ += kMarks[mark];
        state_ = State::header;
      } else {
        begin_header(kMarks[mark]);
      }
      return;
    case kMessage:
      if (state_ == State::start || state_ == State::header) return begin_message(out);
      state_ = State::content;
      return;
    default:
      state_ = State::content;  // until the next <|start|>
  }
}

void Harmony::finish(EventWriter& out) {
  on_text(scan_.take_held(), out);
  if (state_ == State::arguments) out.end_call(false);
  if (state_ == State::start || state_ == State::header) {
    if (header_.find("<|") == std::string::npos) out.text(OutputEvent::Kind::content, header_);
  }
}

}  // namespace sluice::dialect
