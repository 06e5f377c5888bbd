// Breaks lines between words so that streamed text fits a terminal. A word is shown as it comes;
// one that turns out too long for its line is erased there and written again on the next. Styles
// take no columns. Used by one thread.
#pragma once

#include <string>
#include <string_view>

namespace sluice {

class WordWrap {
 public:
  // Of the terminal; 0, or too few for words: text passes unchanged. The last column stays empty:
  // terminals differ in where the cursor is behind it.
  void set_width(int columns);
  // False for lines that must stay whole, such as code.
  void set_breaks(bool breaks) { breaks_ = breaks; }

  // UTF-8 without control characters other than \n and \t, cut anywhere; appends to `out`.
  void text(std::string_view text, std::string& out);
  // `sequence` brings the terminal from one style to another; `style` sets that one from none.
  void style(std::string_view sequence, std::string_view style, std::string& out);

 private:
  void character(std::string_view bytes, int width, std::string& out);
  void next_line(std::string& out);
  void begin_word();

  int width_ = 0;  // columns to fill
  bool breaks_ = true;
  int column_ = 0;
  std::string partial_;     // the first bytes of a character
  std::string word_;        // since the last place to break, styles included
  int word_columns_ = 0;    // of word_
  std::string word_style_;  // before word_
  std::string style_;       // now
};

}  // namespace sluice
