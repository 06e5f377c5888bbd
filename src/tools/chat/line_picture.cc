// What a LineEditor shows: the text broken into the terminal's rows.
#include <algorithm>

#include "tools/chat/char_width.h"
#include "tools/chat/line_editor.h"

namespace sluice {

namespace {

// Fills rows of `columns`, remembering where the cursor falls.
class Rows {
 public:
  explicit Rows(int columns) : columns_(columns) { rows.emplace_back(); }

  std::vector<std::string> rows;
  int column = 0;

  void put(std::string_view shown, int width) {
    if (column + width > columns_) new_row();
    rows.back().append(shown);
    column += width;
  }
  void new_row() {
    rows.emplace_back();
    column = 0;
  }
  // Makes `column` the place of a next character of that width.
  void settle(int width) {
    if (column + width > columns_) new_row();
  }

 private:
  int columns_;
};

void put_text(Rows& out, std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    const size_t n = character_at(text, at);
    out.put(text.substr(at, n), character_width(text.substr(at, n)));
    at += n;
  }
}

}  // namespace

LineEditor::Picture LineEditor::picture() const {
  Rows out(columns_);
  if (searching_) {
    put_text(out, found_any_ ? "(search) " : "(not found) ");
    put_text(out, query_);
    put_text(out, ": ");
  } else {
    put_text(out, prompt_);
  }
  const int indent = std::min(out.column, columns_ / 2);
  Picture p;
  auto note_cursor = [&](size_t at, int width) {
    if (at != cursor_) return;
    out.settle(width);
    p.cursor_row = out.rows.size() - 1;
    p.cursor_column = std::min(out.column, columns_ - 1);
  };
  for (size_t at = 0; at < text_.size();) {
    const size_t n = character_at(text_, at);
    const std::string_view c = std::string_view(text_).substr(at, n);
    const int width = text_[at] == '\n' ? 0 : character_width(c);
    note_cursor(at, width);
    if (text_[at] == '\n') {
      out.new_row();
      for (int i = 0; i < indent; ++i) out.put(" ", 1);
    } else if (text_[at] == '\t') {
      for (int i = 0; i < 4; ++i) out.put(" ", 1);
    } else {
      out.put(c, width);
    }
    at += n;
  }
  note_cursor(text_.size(), 1);
  p.rows = std::move(out.rows);
  // Of a text taller than the screen, the part around the cursor.
  const auto height = static_cast<size_t>(rows_);
  if (p.rows.size() > height) {
    const size_t first = p.cursor_row < height ? 0 : p.cursor_row - height + 1;
    p.rows.erase(p.rows.begin(), p.rows.begin() + static_cast<std::ptrdiff_t>(first));
    p.rows.resize(std::min(p.rows.size(), height));
    p.cursor_row -= first;
  }
  return p;
}

std::string LineEditor::redraw() {
  const Picture p = picture();
  std::string out;
  if (clear_screen_) {
    out += "\033[H\033[2J";
    clear_screen_ = false;
  } else {
    if (drawn_row_ > 0) out += "\033[" + std::to_string(drawn_row_) + "A";
    out += "\r\033[J";
  }
  for (size_t i = 0; i < p.rows.size(); ++i) {
    if (i > 0) out += "\r\n";
    out += p.rows[i];
  }
  const size_t up = p.rows.size() - 1 - p.cursor_row;
  if (up > 0) out += "\033[" + std::to_string(up) + "A";
  out += "\r";
  if (p.cursor_column > 0) out += "\033[" + std::to_string(p.cursor_column) + "C";
  drawn_row_ = p.cursor_row;
  return out;
}

std::string LineEditor::leave() {
  searching_ = false;
  cursor_ = text_.size();
  std::string out = redraw() + "\r\n";
  drawn_row_ = 0;
  return out;
}

}  // namespace sluice
