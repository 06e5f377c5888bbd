// Markdown made readable on a terminal while it streams: bold, italic, code, headings, lists and
// fences get colours; the text itself stays as it is, marks included, so that what is copied is
// what the model wrote. Holds back only what decides a style: a run of marks, a line's first few
// characters. Used by one thread.
#pragma once

#include <string>
#include <string_view>

#include "tools/chat/word_wrap.h"

namespace sluice {

class MarkdownStream {
 public:
  // Without colour the text passes through unchanged.
  explicit MarkdownStream(bool colour) : colour_(colour) {}
  // Lines are broken between words at so many columns, but for code; 0: nowhere.
  void set_width(int columns) { wrap_.set_width(columns); }

  // What to write now.
  std::string feed(std::string_view text);
  // What was held back, and the terminal's own style again.
  std::string finish();

 private:
  enum class Span { none, heading, fence_mark, fence };

  void take(char c);
  bool line_start_may_grow() const;
  void begin_line();
  void take_inline(char c);
  void close_marks(char next);
  void emphasis(char next);
  void end_line();
  void put(std::string_view text);
  void restyle();

  bool colour_;
  WordWrap wrap_;
  std::string out_;
  std::string style_;  // as the terminal has it
  std::string start_;  // of the line, until its kind is known
  bool at_start_ = true;
  Span line_ = Span::none;  // of the whole line
  bool in_fence_ = false;
  std::string fence_;   // the marks that opened it
  char before_ = '\n';  // the last character outside of marks
  std::string marks_;   // a run of one of * _ `
  bool bold_ = false, italic_ = false, dim_ = false;
  size_t code_ = 0;  // backticks that opened the code span; 0: none
};

// Control characters, which would move the cursor or change the terminal, as visible ones.
std::string without_controls(std::string_view text);

}  // namespace sluice
