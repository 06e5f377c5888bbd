// The search through a LineEditor's history (Ctrl-R).
#include <algorithm>

#include "tools/chat/char_width.h"
#include "tools/chat/keys.h"
#include "tools/chat/line_editor.h"

namespace sluice {

LineEditor::Status LineEditor::search_key(unsigned char c, bool& taken) {
  taken = true;
  switch (c) {
    case ctrl('R'):
      search_again(true);
      return Status::editing;
    case ctrl('C'):
    case ctrl('G'):
      leave_search(false);
      return Status::editing;
    case ctrl('H'):
    case kDelete:
      query_.resize(character_before(query_, query_.size()));
      found_ = history_->size();
      search_again(false);
      return Status::editing;
    default:
      break;
  }
  if (c >= 0x20) {
    query_ += static_cast<char>(c);
    search_again(false);
    return Status::editing;
  }
  leave_search(true);  // any other key ends the search and then does what it does
  taken = false;
  return Status::editing;
}

void LineEditor::search_again(bool older) {
  size_t from = std::min(found_ + (older ? 0 : 1), history_->size());
  found_any_ = query_.empty();
  while (!query_.empty() && from > 0) {
    --from;
    if ((*history_)[from].find(query_) != std::string::npos) {
      found_ = from;
      found_any_ = true;
      text_ = (*history_)[from];
      cursor_ = text_.size();
      return;
    }
  }
}

void LineEditor::leave_search(bool accept) {
  searching_ = false;
  if (accept) {
    if (found_ < history_->size()) at_history_ = found_;
    return;
  }
  text_ = before_search_;
  cursor_ = text_.size();
}

}  // namespace sluice
