#include "dialect/call_blocks.h"

#include "base/json.h"

namespace sluice::dialect {

namespace {

bool is_name_char(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' ||
         c == '-' || c == '.' || c == ':' || (c & 0x80) != 0;
}

void append_json_string(std::string& out, std::string_view text) {
  out += '"';
  for (char c : text) append_json_char(out, c);
  out += '"';
}

}  // namespace

NamedBlock::NamedBlock(BlockContext context) : context_(context) { enter(State::call_begin); }

// States whose string is empty are passed over.
void NamedBlock::enter(State state) {
  const ToolFormat& f = *context_.format;
  state_ = state;
  switch (state) {
    case State::call_begin:
      expect_.set({f.call_begin});
      if (expect_.nothing()) enter(State::before_name);
      break;
    case State::before_name:
      name_.clear();
      expect_.set({f.before_name});
      if (expect_.nothing()) enter(State::name);
      break;
    case State::after_name:
      expect_.set({f.after_name, f.id_mark});
      break;
    case State::after_args:
      expect_.set({f.after_args});
      if (expect_.nothing()) enter(State::call_end);
      break;
    case State::call_end:
      expect_.set({f.call_end});
      if (expect_.nothing()) enter(State::next);
      break;
    case State::next:
      expect_.set({f.call_begin, context_.end()});
      break;
    default:
      expect_.set({});
  }
}

Step NamedBlock::feed_name(char c) {
  if (name_.empty() && is_json_space(c)) return Step::more;
  if (is_name_char(c)) {
    name_ += c;
    return name_.size() > kMaxCallName ? Step::bad : Step::more;
  }
  if (!context_.takes(name_)) return Step::bad;
  enter(State::after_name);
  return Step::done_before;
}

// What stands between name and arguments may be left out.
Step NamedBlock::feed_after_name(char c, EventWriter& out) {
  if (expect_.matched() == 0 && c == '{') {
    out.begin_call(name_);
    scanner_ = {};
    enter(State::args);
    return feed_args(c, out);
  }
  switch (expect_.feed(c)) {
    case 0:
      out.begin_call(name_);
      scanner_ = {};
      enter(State::args);
      return Step::more;
    case 1:
      enter(State::id);
      return Step::more;
    case Expect::kMore:
      return Step::more;
    default:
      return Step::bad;
  }
}

Step NamedBlock::feed_args(char c, EventWriter& out) {
  if (!scanner_.begun() && !is_json_space(c) && c != '{') return Step::bad;
  std::string piece;
  Step step = scanner_.feed(c, piece);
  if (step == Step::bad) return step;
  out.arguments(piece);
  if (step == Step::more) return step;
  out.end_call();
  enter(State::after_args);
  return state_ == State::next && expect_.nothing() ? Step::done : Step::more;
}

Step NamedBlock::feed(char c, EventWriter& out) {
  switch (state_) {
    case State::name:
      if (Step step = feed_name(c); step != Step::done_before) return step;
      [[fallthrough]];
    case State::after_name:
      return feed_after_name(c, out);
    case State::id:
      if (c != '[') return is_name_char(c) || is_json_space(c) ? Step::more : Step::bad;
      enter(State::after_name);
      return feed_after_name(c, out);
    case State::args:
      return feed_args(c, out);
    default:
      break;
  }
  int found = expect_.feed(c);
  if (found == Expect::kMore) return Step::more;
  if (found == Expect::kNone)
    return state_ == State::next || state_ == State::call_end ? Step::done_before : Step::bad;
  switch (state_) {
    case State::call_begin:
      enter(State::before_name);
      return Step::more;
    case State::before_name:
      enter(State::name);
      return Step::more;
    case State::after_args:
      enter(State::call_end);
      return Step::more;
    case State::call_end:
      enter(State::next);
      return expect_.nothing() ? Step::done : Step::more;
    default:
      if (found == 1) return Step::done;
      enter(State::before_name);
      return Step::more;
  }
}

XmlBlock::XmlBlock(BlockContext context)
    : context_(context), state_(context.second ? State::name : State::function) {
  expect_.set({context.format->before_name});
}

Step XmlBlock::feed(char c, EventWriter& out) {
  const ToolFormat& f = *context_.format;
  switch (state_) {
    case State::function:
    case State::tail: {
      int found = expect_.feed(c);
      if (found == Expect::kMore) return Step::more;
      if (found == Expect::kNone) return state_ == State::tail ? Step::done_before : Step::bad;
      if (found == 1) return Step::done;
      name_.clear();
      state_ = State::name;
      return Step::more;
    }
    case State::name:
      if (is_name_char(c) && name_.size() < kMaxCallName) return name_ += c, Step::more;
      if (c != '>' || name_.empty()) return Step::bad;
      out.begin_call(name_);
      out.arguments("{");
      tool_ = context_.tools->find(name_);
      first_ = true;
      state_ = State::parameter;
      expect_.set({"<parameter=", f.after_args});
      return Step::more;
    case State::parameter: {
      int found = expect_.feed(c);
      if (found == Expect::kMore) return Step::more;
      if (found == Expect::kNone) return Step::bad;
      if (found == 0) {
        key_.clear();
        state_ = State::key;
        return Step::more;
      }
      out.arguments("}");
      out.end_call();
      state_ = State::tail;
      expect_.set({f.before_name, context_.second ? trimmed(f.end) : f.end});
      return Step::more;
    }
    case State::key:
      if (c == '>') return key_.empty() ? Step::bad : begin_value(out);
      key_ += c;
      return key_.size() > kMaxCallName ? Step::bad : Step::more;
    case State::value:
      return feed_value(c, out);
  }
  return Step::bad;
}

Step XmlBlock::begin_value(EventWriter& out) {
  std::string key = first_ ? "" : ", ";
  first_ = false;
  append_json_string(key, key_);
  key += ": ";
  Tool::Type type = tool_ ? tool_->type_of(key_) : Tool::Type::any;
  streams_ = type == Tool::Type::text;
  if (streams_) key += '"';
  out.arguments(key);
  value_.clear();
  value_began_ = line_break_ = false;
  scan_ = MarkerScan({"</parameter>"});
  state_ = State::value;
  return Step::more;
}

// The line breaks next to the tags are not the value's.
void XmlBlock::give_value(std::string_view text, EventWriter& out) {
  std::string piece;
  for (char c : text) {
    if (!std::exchange(value_began_, true) && c == '\n') continue;
    if (std::exchange(line_break_, c == '\n')) append_json_char(piece, '\n');
    if (c != '\n') append_json_char(piece, c);
  }
  if (streams_) {
    out.arguments(piece);
  } else {
    value_ += piece;
  }
}

Step XmlBlock::feed_value(char c, EventWriter& out) {
  std::string text;
  int found = scan_.feed(c, text);
  give_value(text, out);
  if (value_.size() > kMaxValue) return Step::bad;
  if (found == MarkerScan::kNone) return Step::more;
  end_value(out);
  state_ = State::parameter;
  expect_.set({"<parameter=", context_.format->after_args});
  return Step::more;
}

// Text that is JSON counts as such, unless the schema asks for a string.
void XmlBlock::end_value(EventWriter& out) {
  if (streams_) return out.arguments("\"");
  Result<json::value> text = parse_json('"' + value_ + '"');
  std::string plain(text && text->is_string() ? std::string_view(text->get_string()) : "");
  Tool::Type type = tool_ ? tool_->type_of(key_) : Tool::Type::any;
  if (type == Tool::Type::boolean && (plain == "True" || plain == "False"))
    plain[0] = plain[0] == 'T' ? 't' : 'f';
  if (plain == "None") plain = "null";
  if (text && parse_json(plain)) {
    out.arguments(trimmed(plain));
  } else {
    out.arguments('"' + value_ + '"');
  }
}

Step PythonicBlock::end_call(EventWriter& out) {
  out.arguments("}");
  out.end_call();
  state_ = State::after_call;
  return Step::more;
}

Step PythonicBlock::feed_name(char c, EventWriter& out) {
  if (name_.empty() && is_json_space(c)) return Step::more;
  if (is_name_char(c) && name_.size() < kMaxCallName) return name_ += c, Step::more;
  if (c != '(' || !context_.takes(name_)) return Step::bad;
  out.begin_call(name_);
  out.arguments("{");
  first_ = true;
  key_.clear();
  state_ = State::key_or_end;
  return Step::more;
}

Step PythonicBlock::feed_key(char c, EventWriter& out) {
  if (key_.empty() && is_json_space(c)) return Step::more;
  if (c == ')' && key_.empty()) return end_call(out);  // a comma may come before
  if (is_name_char(c) && key_.size() < kMaxCallName) {
    state_ = State::key;
    return key_ += c, Step::more;
  }
  if (is_json_space(c)) return Step::more;
  if (c != '=' || key_.empty()) return Step::bad;
  std::string text = std::exchange(first_, false) ? "" : ", ";
  append_json_string(text, key_);
  out.arguments(text + ": ");
  value_ = LooseValue({});
  state_ = State::value;
  return Step::more;
}

Step PythonicBlock::feed_value(char c, EventWriter& out) {
  std::string piece;
  Step step = value_.feed(c, piece);
  if (step == Step::bad) return step;
  out.arguments(piece);
  if (step == Step::more) return step;
  state_ = State::after_value;
  return step == Step::done ? Step::more : Step::done_before;
}

Step PythonicBlock::feed(char c, EventWriter& out) {
  switch (state_) {
    case State::name:
      return feed_name(c, out);
    case State::key_or_end:
    case State::key:
      return feed_key(c, out);
    case State::value:
      if (Step step = feed_value(c, out); step != Step::done_before) return step;
      break;
    case State::tail: {
      if (expect_.matched() == 0 && is_json_space(c)) return Step::more;
      int found = expect_.feed(c);
      return found == Expect::kMore ? Step::more : found == 0 ? Step::done : Step::done_before;
    }
    default:
      break;
  }
  if (is_json_space(c)) return Step::more;
  switch (state_) {
    case State::open:
      state_ = State::name;
      name_.clear();
      return c == '[' ? Step::more : Step::bad;
    case State::after_value:
      if (c == ')') return end_call(out);
      key_.clear();
      state_ = State::key_or_end;
      return c == ',' ? Step::more : Step::bad;
    case State::after_call:
      if (c == ',') {
        name_.clear();
        state_ = State::name;
        return Step::more;
      }
      if (c != ']') return Step::bad;
      state_ = State::tail;
      expect_.set({context_.end()});
      return Step::more;
    default:
      return Step::bad;
  }
}

BracesBlock::BracesBlock(BlockContext context)
    : context_(context), value_({context.format->quote, true}) {
  expect_.set({context.format->before_name});
}

Step BracesBlock::feed(char c, EventWriter& out) {
  std::string piece;
  switch (state_) {
    case State::before_name:
    case State::tail: {
      int found = expect_.feed(c);
      if (found == Expect::kMore) return Step::more;
      if (found == Expect::kNone) return state_ == State::tail ? Step::done_before : Step::bad;
      if (state_ == State::tail) return Step::done;
      state_ = State::name;
      return Step::more;
    }
    case State::name:
      if (is_name_char(c) && name_.size() < kMaxCallName) return name_ += c, Step::more;
      if (c != '{' || !context_.takes(name_)) return Step::bad;
      out.begin_call(name_);
      value_.begin_object(piece);
      out.arguments(piece);
      state_ = State::args;
      return Step::more;
    case State::args: {
      Step step = value_.feed(c, piece);
      if (step == Step::bad) return step;
      out.arguments(piece);
      if (step == Step::more) return step;
      out.end_call();
      state_ = State::tail;
      expect_.set({context_.end()});
      return Step::more;
    }
  }
  return Step::bad;
}

}  // namespace sluice::dialect
