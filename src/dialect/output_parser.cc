#include "dialect/output_parser.h"

namespace sluice::dialect {

OutputParser::OutputParser(Options options) : options_(std::move(options)) {
  static const auto kNoTools = std::make_shared<const ToolSet>();
  if (!options_.tools) options_.tools = kNoTools;
  if (options_.format.is_harmony()) {
    harmony_.emplace(*options_.format.tools, options_.tools.get());
    return;
  }
  if (options_.tools->empty()) options_.format.tools = nullptr;
  if (options_.thinking && options_.format.think) {
    mode_ = Mode::thinking;
    drop_space_ = true;
    scan_ = MarkerScan({options_.format.think->end});
  } else {
    begin_content();
  }
}

void OutputParser::begin_content() {
  mode_ = Mode::content;
  const ToolFormat* t = options_.format.tools;
  const ThinkFormat* think = may_think_ ? options_.format.think : nullptr;
  scan_ = MarkerScan({think ? think->begin : "", t ? t->begin : "", t ? t->begin2 : ""});
}

void OutputParser::push(std::string_view bytes, std::vector<OutputEvent>& out) {
  writer_.to(out);
  if (harmony_) {
    for (char c : bytes) harmony_->feed(c, writer_);
    return;
  }
  while (!bytes.empty()) {
    // Most of an output is plain text.
    bool bare = options_.format.tools && options_.format.tools->bare;
    if (mode_ == Mode::content && !bare && !may_think_) {
      if (size_t n = scan_.plain(bytes); n > 0) {
        give_content(bytes.substr(0, n));
        bytes.remove_prefix(n);
        continue;
      }
    }
    feed(bytes[0]);
    bytes.remove_prefix(1);
  }
}

void OutputParser::feed(char c) {
  switch (mode_) {
    case Mode::thinking:
      return feed_thinking(c);
    case Mode::content:
      return feed_content(c);
    case Mode::block:
      return feed_block(c);
  }
}

// White space at both ends of the thinking is not part of it.
void OutputParser::give_thinking(std::string_view text) {
  for (char c : text) {
    if (is_json_space(c)) {
      if (!drop_space_ && space_.size() < kMaxSpace) space_ += c;
      continue;
    }
    writer_.text(OutputEvent::Kind::reasoning, space_);
    space_.clear();
    drop_space_ = false;
    writer_.text(OutputEvent::Kind::reasoning, {&c, 1});
  }
}

void OutputParser::feed_thinking(char c) {
  std::string text;
  int found = scan_.feed(c, text);
  give_thinking(text);
  if (found == MarkerScan::kNone) return;
  space_.clear();
  drop_space_ = true;
  may_think_ = false;
  begin_content();
}

void OutputParser::give_content(std::string_view text) {
  if (text.empty()) return;
  size_t first = at_start_ ? text.find_first_not_of(" \n\r\t") : 0;
  if (first == std::string_view::npos) {
    if (!drop_space_) space_ += text;
    if (space_.size() <= kMaxSpace) return;
    first = 0, text = "";
  }
  if (drop_space_ && at_start_) text.remove_prefix(first);
  at_start_ = drop_space_ = false;
  writer_.text(OutputEvent::Kind::content, space_);
  space_.clear();
  writer_.text(OutputEvent::Kind::content, text);
}

void OutputParser::feed_content(char c) {
  const ToolFormat* t = options_.format.tools;
  std::string text;
  int found = scan_.feed(c, text);
  if (t && t->bare && at_line_start_ && text.size() == 1 &&
      text[0] == (t->shape == CallShape::pythonic ? '[' : '{')) {
    begin_block(true, false);
    return feed_block(text[0]);
  }
  for (char x : text) {
    if (x == '\n') at_line_start_ = true;
    if (!is_json_space(x)) at_line_start_ = may_think_ = false;
  }
  give_content(text);
  if (found == MarkerScan::kNone) return;
  if (found == 0 && !may_think_) return give_content(options_.format.think->begin);
  if (found == 0) {
    mode_ = Mode::thinking;
    may_think_ = false;
    space_.clear();
    drop_space_ = true;
    scan_ = MarkerScan({options_.format.think->end});
    return;
  }
  begin_block(false, found == 2);
}

void OutputParser::begin_block(bool bare, bool second) {
  const ToolFormat& f = *options_.format.tools;
  BlockContext context{&f, options_.tools.get(), bare, second};
  marker_ = bare ? "" : trimmed(second ? f.begin2 : f.begin);
  raw_.clear();
  may_think_ = false;
  mode_ = Mode::block;
  switch (f.shape) {
    case CallShape::json:
      block_.emplace<JsonBlock>(context);
      break;
    case CallShape::named:
      block_.emplace<NamedBlock>(context);
      break;
    case CallShape::xml:
      block_.emplace<XmlBlock>(context);
      break;
    case CallShape::pythonic:
      block_.emplace<PythonicBlock>(context);
      break;
    case CallShape::braces:
      block_.emplace<BracesBlock>(context);
      break;
    case CallShape::harmony:
      break;
  }
}

void OutputParser::leave_block() {
  block_ = std::monostate();
  raw_.clear();
  marker_.clear();
  begin_content();
}

void OutputParser::feed_block(char c) {
  size_t before = writer_.changes();
  size_t unread = 0;
  Step step = std::visit(
      [&](auto& block) {
        if constexpr (std::is_same_v<std::decay_t<decltype(block)>, std::monostate>) {
          return Step::bad;
        } else {
          Step s = block.feed(c, writer_);
          unread = block.unread();
          return s;
        }
      },
      block_);
  if (writer_.changes() != before) {  // what came so far was given out as a part of a call
    raw_.clear();
    marker_.clear();
    space_.clear();
    at_start_ = drop_space_ = true;
  } else if (step != Step::bad) {
    raw_ += c;
  }
  if (step == Step::more && raw_.size() <= kMaxRaw) return;
  if (step == Step::done) {
    at_line_start_ = true;
    return leave_block();
  }
  std::string again;
  if (step == Step::done_before) {
    again = raw_.substr(raw_.size() - unread - 1);
    at_line_start_ = true;
  } else {
    if (writer_.in_call()) writer_.end_call(false);
    give_content(marker_ + raw_);
    at_line_start_ = false;
    if (step == Step::bad) again = c;
  }
  leave_block();
  for (char x : again) feed(x);
}

void OutputParser::finish(std::vector<OutputEvent>& out) {
  writer_.to(out);
  if (harmony_) return harmony_->finish(writer_);
  if (mode_ == Mode::thinking) return give_thinking(scan_.take_held());
  if (mode_ == Mode::block) {
    bool rest = std::visit(
        [](auto& block) {
          if constexpr (std::is_same_v<std::decay_t<decltype(block)>, std::monostate>) {
            return true;
          } else {
            return block.at_rest();
          }
        },
        block_);
    if (writer_.in_call()) {
      writer_.end_call(false);
    } else if (!rest) {
      give_content(marker_ + raw_);
    }
    leave_block();
  }
  give_content(scan_.take_held());
  if (num_calls() == 0) writer_.text(OutputEvent::Kind::content, space_);
  space_.clear();
}

}  // namespace sluice::dialect
