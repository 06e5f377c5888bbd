#include "dialect/json_scanner.h"

namespace sluice::dialect {

bool JsonScanner::may_end() const {
  return depth_ == 0 && (state_ == State::zero || state_ == State::whole ||
                         state_ == State::fraction || state_ == State::exponent_digits);
}

Step JsonScanner::begin_value(char c) {
  begun_ = true;
  switch (c) {
    case '{':
    case '[':
      if (depth_ == kMaxDepth) return Step::bad;
      objects_[depth_++] = c == '{';
      state_ = c == '{' ? State::key_or_end : State::value_or_end;
      return Step::more;
    case '"':
      is_key_ = false;
      state_ = State::string;
      return Step::more;
    case 't':
    case 'f':
    case 'n':
      word_ = c == 't' ? "rue" : c == 'f' ? "alse" : "ull";
      state_ = State::word;
      return Step::more;
    case '-':
      state_ = State::minus;
      return Step::more;
    case '0':
      state_ = State::zero;
      return Step::more;
    default:
      state_ = State::whole;
      return c >= '1' && c <= '9' ? Step::more : Step::bad;
  }
}

Step JsonScanner::end_value() {
  state_ = State::comma_or_end;
  return depth_ == 0 ? Step::done : Step::more;
}

Step JsonScanner::feed_string(char c, std::string& out) {
  if (state_ == State::hex) {
    bool digit = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
    if (!digit) return Step::bad;
    if (--hex_left_ == 0) state_ = State::string;
    out += c;
    return Step::more;
  }
  if (state_ == State::escape) {
    if (std::string_view("\"\\/bfnrtu").find(c) == std::string_view::npos) return Step::bad;
    hex_left_ = 4;
    state_ = c == 'u' ? State::hex : State::string;
    out += c;
    return Step::more;
  }
  if (c == '"') {
    out += c;
    if (!is_key_) return end_value();
    state_ = State::colon;
    return Step::more;
  }
  if (c == '\\') {
    state_ = State::escape;
    out += c;
  } else {
    append_json_char(out, c);
  }
  return Step::more;
}

// Numbers end with the first byte that is not theirs.
Step JsonScanner::feed_number(char c) {
  bool digit = c >= '0' && c <= '9', e = c == 'e' || c == 'E';
  switch (state_) {
    case State::minus:
      state_ = c == '0' ? State::zero : State::whole;
      return digit ? Step::more : Step::bad;
    case State::zero:
    case State::whole:
      if (digit && state_ == State::whole) return Step::more;
      if (digit) return Step::bad;
      if (c == '.') return state_ = State::point, Step::more;
      break;
    case State::point:
      state_ = State::fraction;
      return digit ? Step::more : Step::bad;
    case State::fraction:
      if (digit) return Step::more;
      break;
    case State::exponent:
      state_ = digit ? State::exponent_digits : State::exponent_sign;
      return digit || c == '+' || c == '-' ? Step::more : Step::bad;
    case State::exponent_sign:
      state_ = State::exponent_digits;
      return digit ? Step::more : Step::bad;
    default:
      if (digit) return Step::more;
      return Step::done_before;
  }
  if (e) return state_ = State::exponent, Step::more;
  return Step::done_before;
}

Step JsonScanner::feed_punctuation(char c) {
  switch (state_) {
    case State::value_or_end:
      if (c != ']') return begin_value(c);
      --depth_;
      return end_value();
    case State::key_or_end:
      if (c == '}') {
        --depth_;
        return end_value();
      }
      [[fallthrough]];
    case State::key:
      is_key_ = true;
      state_ = State::string;
      return c == '"' ? Step::more : Step::bad;
    case State::colon:
      state_ = State::value;
      return c == ':' ? Step::more : Step::bad;
    case State::comma_or_end: {
      if (depth_ == 0) return Step::bad;
      bool object = objects_[depth_ - 1];
      if (c == ',') return state_ = object ? State::key : State::value, Step::more;
      if (c != (object ? '}' : ']')) return Step::bad;
      --depth_;
      return end_value();
    }
    default:
      return begin_value(c);
  }
}

Step JsonScanner::feed(char c, std::string& out) {
  switch (state_) {
    case State::string:
    case State::escape:
    case State::hex:
      return feed_string(c, out);
    case State::word:
      if (c != *word_) return Step::bad;
      out += c;
      return *++word_ ? Step::more : end_value();
    default:
      break;
  }
  if (state_ >= State::minus) {
    Step step = feed_number(c);
    if (step == Step::more) out += c;
    if (step != Step::done_before) return step;
    if (depth_ == 0) return step;
    state_ = State::comma_or_end;
  }
  if (is_json_space(c)) {
    if (begun_) out += c;
    return Step::more;
  }
  Step step = feed_punctuation(c);
  if (step != Step::bad) out += c;
  return step;
}

}  // namespace sluice::dialect
