#include "tools/chat/markdown.h"

#include <algorithm>
#include <utility>
#include <cctype>

namespace sluice {

namespace {

bool is_space(char c) { return c == ' ' || c == '\n' || c == '\t'; }
// Bytes of other scripts count as letters: marks stand beside them as beside ours.
bool is_word(char c) {
  const auto u = static_cast<unsigned char>(c);
  return u >= 0x80 || std::isalnum(u);
}
bool is_mark(char c) { return c == '*' || c == '_' || c == '`'; }

size_t run_length(std::string_view s, char c) {
  const size_t n = s.find_first_not_of(c);
  return n == s.npos ? s.size() : n;
}

// "- ", "* ", "+ ", "1. ", "12) ": its length without the space; 0: no list item.
size_t bullet(std::string_view s) {
  if (s.size() >= 2 && (s[0] == '-' || s[0] == '*' || s[0] == '+') && s[1] == ' ') return 1;
  const size_t digits = std::min(s.find_first_not_of("0123456789"), s.size());
  if (digits == 0 || digits > 9 || s.size() < digits + 2) return 0;
  return (s[digits] == '.' || s[digits] == ')') && s[digits + 1] == ' ' ? digits + 1 : 0;
}

bool is_heading(std::string_view s) {
  const size_t n = run_length(s, '#');
  return n >= 1 && n <= 6 && s.size() > n && s[n] == ' ';
}

bool is_fence(std::string_view s) { return s.starts_with("```") || s.starts_with("~~~"); }

}  // namespace

std::string MarkdownStream::feed(std::string_view text) {
  if (!colour_) return std::string(text);
  for (char c : text) take(c);
  return std::exchange(out_, {});
}

std::string MarkdownStream::finish() {
  if (!colour_) return {};
  if (at_start_ && !start_.empty()) begin_line();
  close_marks('\n');
  bold_ = italic_ = dim_ = in_fence_ = false;
  code_ = 0;
  line_ = Span::none;
  restyle();
  return std::exchange(out_, {});
}

void MarkdownStream::take(char c) {
  if (!at_start_) return take_inline(c);
  start_ += c;
  if (c == '\n' || !line_start_may_grow()) begin_line();
}

// Can more characters still change what kind of line this is?
bool MarkdownStream::line_start_may_grow() const {
  const size_t indent = std::min(start_.find_first_not_of(' '), start_.size());
  if (indent > 12) return false;
  const std::string_view s = std::string_view(start_).substr(indent);
  if (s.empty()) return true;
  if (in_fence_) return s.size() < fence_.size() && run_length(s, fence_[0]) == s.size();
  if (s[0] == '#') return run_length(s, '#') == s.size() && s.size() <= 6;
  if (s[0] == '`' || s[0] == '~') return run_length(s, s[0]) == s.size() && s.size() < 3;
  if (s[0] == '-' || s[0] == '*' || s[0] == '+') return s.size() < 2;
  const size_t digits = std::min(s.find_first_not_of("0123456789"), s.size());
  return digits > 0 && digits <= 9 && (s.size() == digits || s.size() == digits + 1) &&
         (s.size() == digits || s[digits] == '.' || s[digits] == ')');
}

// The kind of the line is known: its first characters go out.
void MarkdownStream::begin_line() {
  at_start_ = false;
  const std::string start = std::exchange(start_, {});
  const size_t indent = std::min(start.find_first_not_of(' '), start.size());
  const std::string_view s = std::string_view(start).substr(indent);
  put(start.substr(0, indent));
  size_t marked = 0;  // bytes of s that are the list item's mark
  if (in_fence_) {
    line_ = s.starts_with(fence_) ? Span::fence_mark : Span::fence;
  } else if (is_fence(s)) {
    line_ = Span::fence_mark;
  } else if (is_heading(s)) {
    line_ = Span::heading;
  } else {
    marked = bullet(s);
  }
  if (line_ == Span::fence_mark) {
    in_fence_ = !in_fence_;
    fence_ = in_fence_ ? std::string(3, s[0]) : "";
  }
  restyle();
  dim_ = marked > 0;
  restyle();
  put(s.substr(0, marked));
  dim_ = false;
  restyle();
  for (char c : s.substr(marked)) take_inline(c);
}

void MarkdownStream::take_inline(char c) {
  const bool plain = line_ == Span::fence || line_ == Span::fence_mark;
  if (c == '\n') {
    close_marks(c);
    return end_line();
  }
  if (plain) return put({&c, 1});
  if (is_mark(c) && (code_ == 0 || c == '`')) {
    if (!marks_.empty() && marks_[0] != c) close_marks(c);
    marks_ += c;
    return;
  }
  close_marks(c);
  put({&c, 1});
  before_ = c;
}

// A run of marks is over; `next` is what follows it.
void MarkdownStream::close_marks(char next) {
  if (marks_.empty()) return;
  if (marks_[0] == '`') {
    const std::string marks = std::exchange(marks_, {});
    const bool closes = code_ == marks.size();
    if (code_ > 0 && !closes) return put(marks);
    code_ = closes ? 0 : marks.size();
    dim_ = true;
    restyle();
    put(marks);
    dim_ = false;
    restyle();
    before_ = '`';
    return;
  }
  emphasis(next);
}

void MarkdownStream::emphasis(char next) {
  const std::string marks = std::exchange(marks_, {});
  const bool underscore = marks[0] == '_';
  const bool opens = !is_space(next) && !(underscore && is_word(before_));
  const bool closes = !is_space(before_) && !(underscore && is_word(next));
  const bool bold = marks.size() >= 2, italic = marks.size() == 1 || marks.size() == 3;
  auto flip = [&](bool& style, bool wanted) {
    if (!wanted) return;
    if (style ? closes : opens) style = !style;
  };
  const bool was_bold = bold_, was_italic = italic_;
  if (marks.size() <= 3) {
    flip(bold_, bold);
    flip(italic_, italic);
  }
  const bool styled = was_bold != bold_ || was_italic != italic_;
  dim_ = styled;
  restyle();
  put(marks);
  dim_ = false;
  restyle();
  before_ = marks[0];
}

// Styles end with the line: a mark that is never closed colours no more than that.
void MarkdownStream::end_line() {
  bold_ = italic_ = dim_ = false;
  code_ = 0;
  line_ = Span::none;
  restyle();
  wrap_.text("\n", out_);
  before_ = '\n';
  at_start_ = true;
}

void MarkdownStream::put(std::string_view text) {
  wrap_.set_breaks(line_ != Span::fence && line_ != Span::fence_mark);
  wrap_.text(without_controls(text), out_);
}

// Brings the terminal's style in line with the state.
void MarkdownStream::restyle() {
  std::string style;
  auto add = [&](const char* code) { style += (style.empty() ? "" : ";") + std::string(code); };
  if (bold_ || line_ == Span::heading) add("1");
  if (dim_ || line_ == Span::fence_mark) add("2");
  if (italic_) add("3");
  if (code_ > 0 || line_ == Span::fence) add("36");
  if (style == style_) return;
  const std::string set = style.empty() ? "" : "\033[" + style + "m";
  wrap_.style((style.empty() || !style_.empty() ? "\033[0m" : "") + set, set, out_);
  style_ = style;
}

std::string without_controls(std::string_view text) {
  std::string out;
  for (char c : text) {
    const auto u = static_cast<unsigned char>(c);
    if (u == 0x7f) {
      out += "\xe2\x90\xa1";  // SYMBOL FOR DELETE
    } else if (u >= 0x20 || c == '\n' || c == '\t') {
      out += c;
    } else {
      out += {'\xe2', '\x90', static_cast<char>(0x80 + u)};  // SYMBOL FOR NULL and on
    }
  }
  return out;
}

}  // namespace sluice
