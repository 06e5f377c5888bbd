#include <algorithm>

#include "base/json.h"
#include "dialect/call_blocks.h"

namespace sluice::dialect {

namespace {

constexpr size_t kMaxKey = 64;

bool is_arguments_key(const ToolFormat& f, std::string_view key) {
  return key == f.args_key || key == "arguments" || key == "parameters";
}

}  // namespace

Step JsonBlock::begin_object() {
  name_.clear(), args_.clear();
  has_args_ = args_null_ = called_ = false;
  state_ = State::key_or_end;
  return Step::more;
}

Step JsonBlock::feed(char c, EventWriter& out) {
  switch (state_) {
    case State::in_key:
      if (c == '"') return end_key();
      if (key_.size() == kMaxKey || c == '\\') return Step::bad;
      key_ += c;
      return Step::more;
    case State::name: {
      if (name_.size() > kMaxCallName) return Step::bad;
      if (!scanner_.begun() && !is_json_space(c) && c != '"') return Step::bad;
      Step step = scanner_.feed(c, name_);
      return step == Step::done ? end_name(out) : step;
    }
    case State::args:
      return feed_arguments(c, out);
    case State::args_text: {
      Step step = scanner_.feed(c, args_);
      return step == Step::done ? end_text(out) : step;
    }
    case State::other: {
      std::string ignored;
      Step step = scanner_.feed(c, ignored);
      if (step == Step::bad || step == Step::more) return step;
      state_ = State::after_value;
      if (step == Step::done) return Step::more;
      break;
    }
    case State::tail:
      return feed_tail(c);
    default:
      break;
  }
  if (is_json_space(c)) return Step::more;
  switch (state_) {
    case State::open:
      if (c == '[') {
        list_ = true;
        state_ = State::item;
        return Step::more;
      }
      return c == '{' ? begin_object() : Step::bad;
    case State::item:
      return c == '{' ? begin_object() : Step::bad;
    case State::key_or_end:
    case State::key:
      key_.clear();
      state_ = State::in_key;
      return c == '"' ? Step::more : Step::bad;
    case State::colon:
      if (c != ':') return Step::bad;
      scanner_ = {};
      state_ = key_ == context_.format->name_key          ? State::name
               : is_arguments_key(*context_.format, key_) ? State::args_start
                                                          : State::other;
      return Step::more;
    case State::args_start:
      return begin_arguments(c, out);
    case State::after_value:
      if (c == ',') return state_ = State::key, Step::more;
      return c == '}' ? end_object(out) : Step::bad;
    case State::after_object:
      if (c == ',') return state_ = State::item, Step::more;
      if (c != ']') return Step::bad;
      state_ = State::tail;
      expect_.set({context_.end()});
      return expect_.nothing() ? Step::done : Step::more;
    default:
      return Step::bad;
  }
}

// A bare block is a call only if its keys say so.
Step JsonBlock::end_key() {
  constexpr std::string_view kKnown[] = {"name", "arguments", "parameters", "type", "id"};
  if (context_.bare && std::find(std::begin(kKnown), std::end(kKnown), key_) == std::end(kKnown))
    return Step::bad;
  if (key_ == context_.format->name_key && !name_.empty()) return Step::bad;
  if (is_arguments_key(*context_.format, key_) && has_args_) return Step::bad;
  state_ = State::colon;
  return Step::more;
}

Step JsonBlock::end_name(EventWriter& out) {
  Result<json::value> text = parse_json(name_);
  if (!text || !text->is_string()) return Step::bad;
  name_ = std::string(text->get_string());
  if (!context_.takes(name_)) return Step::bad;
  state_ = State::after_value;
  if (has_args_ && !args_null_) give_call(out);
  return Step::more;
}

// A call whose arguments are complete.
void JsonBlock::give_call(EventWriter& out) {
  out.begin_call(name_);
  out.arguments(args_);
  out.end_call();
  called_ = true;
}

Step JsonBlock::begin_arguments(char c, EventWriter& out) {
  has_args_ = true;
  if (c == '{') {
    state_ = State::args;
    if (!name_.empty()) out.begin_call(name_);
    return feed_arguments(c, out);
  }
  args_null_ = c == 'n';
  state_ = c == '"' ? State::args_text : State::other;
  if (c != '"' && c != 'n') return Step::bad;
  std::string ignored;
  return scanner_.feed(c, c == '"' ? args_ : ignored);
}

Step JsonBlock::feed_arguments(char c, EventWriter& out) {
  std::string piece;
  Step step = scanner_.feed(c, out.in_call() ? piece : args_);
  if (step != Step::bad && out.in_call()) out.arguments(piece);
  if (step != Step::done) return step;
  state_ = State::after_value;
  if (out.in_call()) {
    out.end_call();
    called_ = true;
  }
  return Step::more;
}

// Some models write the arguments as a string: the JSON in it counts.
Step JsonBlock::end_text(EventWriter& out) {
  Result<json::value> text = parse_json(args_);
  if (!text || !text->is_string()) return Step::bad;
  args_ = std::string(text->get_string());
  Result<json::value> value = parse_json(args_);
  if (!value || !value->is_object()) return Step::bad;
  state_ = State::after_value;
  if (!name_.empty()) give_call(out);
  return Step::more;
}

Step JsonBlock::end_object(EventWriter& out) {
  if (name_.empty() || !has_args_) return Step::bad;
  if (!called_) {  // null
    args_ = "{}";
    give_call(out);
  }
  state_ = list_ ? State::after_object : State::tail;
  expect_.set({context_.end(), context_.format->between});
  return Step::more;
}

Step JsonBlock::feed_tail(char c) {
  if (expect_.matched() == 0) {
    if (is_json_space(c)) return Step::more;
    if (c == '{' && !list_) return begin_object();
  }
  if (expect_.nothing()) return Step::done_before;
  switch (expect_.feed(c)) {
    case 0:
      return Step::done;
    case 1:
      state_ = State::item;
      return Step::more;
    case Expect::kMore:
      return Step::more;
    default:
      return Step::done_before;
  }
}

}  // namespace sluice::dialect
