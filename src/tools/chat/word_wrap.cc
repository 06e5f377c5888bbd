#include "tools/chat/word_wrap.h"

#include "base/str.h"
#include "text/unicode.h"
#include "tools/chat/char_width.h"

namespace sluice {

namespace {

constexpr int kFewest = 20;  // columns
constexpr int kTab = 8;

size_t length_of(char first) {
  const auto u = static_cast<unsigned char>(first);
  return u < 0xC0 ? 1 : u < 0xE0 ? 2 : u < 0xF0 ? 3 : 4;
}

bool continues(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }

}  // namespace

void WordWrap::set_width(int columns) { width_ = columns >= kFewest ? columns - 1 : 0; }

void WordWrap::begin_word() {
  word_.clear();
  word_columns_ = 0;
  word_style_ = style_;
}

void WordWrap::next_line(std::string& out) {
  out += '\n';
  column_ = 0;
}

void WordWrap::text(std::string_view text, std::string& out) {
  if (width_ == 0) {
    out += text;
    return;
  }
  for (char c : text) {
    if (!partial_.empty() && !continues(c)) {  // not UTF-8: shown as it is
      character(partial_, 1, out);
      partial_.clear();
    }
    partial_ += c;
    if (partial_.size() < length_of(partial_[0])) continue;
    character(partial_, char_width(code_point_at(partial_, 0).value), out);
    partial_.clear();
  }
}

void WordWrap::style(std::string_view sequence, std::string_view style, std::string& out) {
  out += sequence;
  word_ += sequence;
  style_ = style;
}

void WordWrap::character(std::string_view bytes, int width, std::string& out) {
  if (bytes == "\n") {
    next_line(out);
    return begin_word();
  }
  if (!breaks_) {
    out += bytes;
    return;
  }
  if (bytes == " " || bytes == "\t") {
    width = bytes == " " ? 1 : kTab - column_ % kTab;
    if (column_ + width > width_) {  // the break stands for it
      next_line(out);
    } else {
      out += bytes;
      column_ += width;
    }
    return begin_word();
  }
  if (column_ + width > width_) {
    if (word_columns_ > 0 && word_columns_ < column_) {
      out += strf("\033[%dD\033[K", word_columns_);
      next_line(out);
      if (!style_.empty() || !word_style_.empty()) out += "\033[0m" + word_style_;
      out += word_;
      column_ = word_columns_;
    } else {  // wider than a line, or at its end
      next_line(out);
      begin_word();
    }
  }
  out += bytes;
  column_ += width;
  if (width == 2) return begin_word();  // these scripts break anywhere
  word_ += bytes;
  word_columns_ += width;
}

}  // namespace sluice
