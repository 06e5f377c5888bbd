#include "dialect/loose_value.h"

namespace sluice::dialect {

namespace {

void append_utf8(std::string& out, uint32_t code) {
  auto byte = [&](uint32_t b) { out += static_cast<char>(b); };
  if (code < 0x80) {
    append_json_char(out, static_cast<char>(code));
  } else if (code < 0x800) {
    byte(0xC0 | code >> 6), byte(0x80 | (code & 63));
  } else if (code < 0x10000) {
    byte(0xE0 | code >> 12), byte(0x80 | (code >> 6 & 63)), byte(0x80 | (code & 63));
  } else {
    byte(0xF0 | code >> 18), byte(0x80 | (code >> 12 & 63));
    byte(0x80 | (code >> 6 & 63)), byte(0x80 | (code & 63));
  }
}

bool ends_word(char c) { return c == ',' || c == ']' || c == '}' || c == ')'; }

bool is_number(std::string_view word) {
  JsonScanner scanner;
  std::string out;
  if (word.empty() || !(word[0] == '-' || (word[0] >= '0' && word[0] <= '9'))) return false;
  for (char c : word) {
    if (scanner.feed(c, out) != Step::more) return false;
  }
  return scanner.may_end();
}

}  // namespace

void LooseValue::begin_object(std::string& out) {
  out += '{';
  objects_[depth_++] = true;
  state_ = State::key_or_end;
}

void LooseValue::begin_quoted(char quote, bool key, std::string& out) {
  quote_ = quote;
  is_key_ = key;
  state_ = State::quoted;
  out += '"';
}

Step LooseValue::end_value() {
  state_ = State::comma_or_end;
  return depth_ == 0 ? Step::done : Step::more;
}

Step LooseValue::end_container(std::string& out) {
  --depth_;
  out += objects_[depth_] ? '}' : ']';
  return end_value();
}

Step LooseValue::begin_value(char c, std::string& out) {
  if (c == '{' || c == '[') {
    if (depth_ == JsonScanner::kMaxDepth) return Step::bad;
    objects_[depth_++] = c == '{';
    state_ = c == '{' ? State::key_or_end : State::value_or_end;
    out += c;
    return Step::more;
  }
  if (c == '"' || c == '\'') return begin_quoted(c, false, out), Step::more;
  if (ends_word(c)) return Step::bad;
  word_.assign(1, c);
  state_ = State::word;
  return Step::more;
}

// A complete word becomes a literal, a number or, where bare text is allowed, a string.
Step LooseValue::finish_word(std::string& out) {
  while (!word_.empty() && is_json_space(word_.back())) word_.pop_back();
  if (word_ == "True" || word_ == "true") {
    out += "true";
  } else if (word_ == "False" || word_ == "false") {
    out += "false";
  } else if (word_ == "None" || word_ == "null") {
    out += "null";
  } else if (is_number(word_)) {
    out += word_;
  } else if (style_.bare) {
    out += '"';
    for (char c : word_) append_json_char(out, c);
    out += '"';
  } else {
    return Step::bad;
  }
  return end_value();
}

Step LooseValue::feed_escape(char c, std::string& out) {
  if (state_ == State::hex) {
    int digit = c >= '0' && c <= '9'   ? c - '0'
                : c >= 'a' && c <= 'f' ? c - 'a' + 10
                : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                       : -1;
    if (digit < 0) return Step::bad;
    code_ = code_ << 4 | static_cast<uint32_t>(digit);
    if (--hex_left_ > 0) return Step::more;
    if (code_ > 0x10FFFF) return Step::bad;
    if (code_ >= 0xD800 && code_ < 0xE000) {  // half of a pair: JSON spells it alike
      constexpr char kHex[] = "0123456789abcdef";
      out += "\\u";
      for (int shift = 12; shift >= 0; shift -= 4) out += kHex[code_ >> shift & 15];
    } else {
      append_utf8(out, code_);
    }
    state_ = State::quoted;
    return Step::more;
  }
  state_ = State::quoted;
  switch (c) {
    case 'n':
      out += "\\n";
      break;
    case 't':
      out += "\\t";
      break;
    case 'r':
      out += "\\r";
      break;
    case 'b':
      out += "\\b";
      break;
    case 'f':
      out += "\\f";
      break;
    case '\n':  // a line that goes on
      break;
    case '\\':
    case '"':
      out += '\\';
      out += c;
      break;
    case '\'':
    case '/':
      out += c;
      break;
    case 'x':
    case 'u':
    case 'U':
      hex_left_ = c == 'x' ? 2 : c == 'u' ? 4 : 8;
      code_ = 0;
      state_ = State::hex;
      break;
    default:  // Python keeps a backslash that escapes nothing
      out += "\\\\";
      append_json_char(out, c);
  }
  return Step::more;
}

Step LooseValue::feed_quoted(char c, std::string& out) {
  if (c == quote_) {
    out += '"';
    if (!is_key_) return end_value();
    state_ = State::colon;
    return Step::more;
  }
  if (c == '\\') {
    state_ = State::escape;
  } else {
    append_json_char(out, c);
  }
  return Step::more;
}

Step LooseValue::feed_marked(char c, std::string& out) {
  if (c == style_.quote[matched_]) {
    if (++matched_ < style_.quote.size()) return Step::more;
    matched_ = 0;
    out += '"';
    return end_value();
  }
  // Quotes are "<...>": a prefix of one begins again only at its first byte.
  for (char held : style_.quote.substr(0, matched_)) append_json_char(out, held);
  matched_ = 0;
  if (c == style_.quote[0]) {
    matched_ = 1;
  } else {
    append_json_char(out, c);
  }
  return Step::more;
}

Step LooseValue::feed_key(char c, std::string& out) {
  if (state_ == State::bare_key) {
    if (c == ':') {
      while (!word_.empty() && is_json_space(word_.back())) word_.pop_back();
      out += '"';
      for (char k : word_) append_json_char(out, k);
      out += "\":";
      state_ = State::value;
      return Step::more;
    }
    if (word_.size() == kMaxWord || c == ',' || c == '{' || c == '}') return Step::bad;
    word_ += c;
    return Step::more;
  }
  if (c == '"' || c == '\'') return begin_quoted(c, true, out), Step::more;
  if (!style_.bare || c == ':' || c == ',' || c == '{') return Step::bad;
  word_.assign(1, c);
  state_ = State::bare_key;
  return Step::more;
}

Step LooseValue::feed(char c, std::string& out) {
  switch (state_) {
    case State::quoted:
      return feed_quoted(c, out);
    case State::escape:
    case State::hex:
      return feed_escape(c, out);
    case State::marked:
      return feed_marked(c, out);
    case State::bare_key:
      return feed_key(c, out);
    case State::word: {
      if (word_ == style_.quote.substr(0, word_.size()) && word_.size() < style_.quote.size() &&
          c == style_.quote[word_.size()]) {
        word_ += c;
        if (word_ != style_.quote) return Step::more;
        matched_ = 0;
        out += '"';
        state_ = State::marked;
        return Step::more;
      }
      if (!ends_word(c)) {
        if (word_.size() == kMaxWord) return Step::bad;
        word_ += c;
        return Step::more;
      }
      Step step = finish_word(out);
      if (step == Step::bad) return step;
      if (step == Step::done) return Step::done_before;
      break;  // c belongs to the container
    }
    default:
      break;
  }
  if (is_json_space(c)) return Step::more;
  switch (state_) {
    case State::value_or_end:
      if (c == ']') return end_container(out);
      [[fallthrough]];
    case State::value:
      return begin_value(c, out);
    case State::key_or_end:
      if (c == '}') return end_container(out);
      [[fallthrough]];
    case State::key:
      return feed_key(c, out);
    case State::colon:
      if (c != ':') return Step::bad;
      out += ':';
      state_ = State::value;
      return Step::more;
    case State::comma_or_end: {
      if (depth_ == 0) return Step::bad;
      bool object = objects_[depth_ - 1];
      if (c == (object ? '}' : ']')) return end_container(out);
      if (c != ',') return Step::bad;
      out += ',';
      state_ = object ? State::key : State::value;
      return Step::more;
    }
    default:
      return Step::bad;
  }
}

}  // namespace sluice::dialect
