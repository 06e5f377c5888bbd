#include "tools/chat/answer_view.h"

#include <unistd.h>

#include <cstdio>
#include <string>

#include "tools/terminal.h"

namespace sluice {

AnswerView::AnswerView()
    : terminal_(isatty(STDOUT_FILENO) == 1),
      colour_(stdout_has_colour()),
      markdown_(stdout_has_colour()) {}

void AnswerView::show(std::string_view piece) {
  std::string out;
  if (!terminal_) {
    out = piece;
  } else {
    const int columns = stdout_columns();  // the window may have changed
    markdown_.set_width(columns);
    wrap_.set_width(columns);
    if (colour_) {
      out = markdown_.feed(piece);
    } else {
      wrap_.text(without_controls(piece), out);
    }
  }
  std::fwrite(out.data(), 1, out.size(), stdout);
  std::fflush(stdout);
}

void AnswerView::show_thoughts(std::string_view piece) const {
  if (!terminal_ || piece.empty()) return;
  std::fprintf(stdout, "%s%s%s", colour_ ? "\x1b[2m" : "", without_controls(piece).c_str(),
               colour_ ? "\x1b[0m" : "");
  std::fflush(stdout);
}

void AnswerView::finish() {
  const std::string out = markdown_.finish();
  std::fwrite(out.data(), 1, out.size(), stdout);
  std::fflush(stdout);
}

}  // namespace sluice
