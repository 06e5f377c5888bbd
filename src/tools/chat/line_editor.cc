#include "tools/chat/line_editor.h"

#include <algorithm>
#include <utility>

#include "text/unicode.h"
#include "tools/chat/char_width.h"
#include "tools/chat/keys.h"

namespace sluice {

namespace {

constexpr std::string_view kPasteEnd = "\x1b[201~";
constexpr size_t kMaxText = size_t{4} << 20;

bool word_char(std::string_view text, size_t pos) {
  const CodePoint c = code_point_at(text, pos);
  return c.cls == CharClass::letter || c.cls == CharClass::number || c.cls == CharClass::mark ||
         c.value == '_';
}

// What was pasted or typed as plain text: line ends as \n, no other control characters, valid
// UTF-8.
std::string clean(std::string_view bytes) {
  std::string out;
  for (size_t i = 0; i < bytes.size();) {
    const auto c = static_cast<unsigned char>(bytes[i]);
    if (c == '\r') {
      out += '\n';
      i += i + 1 < bytes.size() && bytes[i + 1] == '\n' ? 2 : 1;
    } else if (c < 0x80) {
      if (c == '\n' || c == '\t' || (c >= 0x20 && c != kDelete)) out += bytes[i];
      ++i;
    } else {
      const Utf8Step step = utf8_step(bytes.substr(i));
      if (step.size > 0) {
        out.append(bytes.substr(i, step.size));
        i += step.size;
      } else {
        append_utf8(out, 0xFFFD);
        i += std::max<uint32_t>(step.bad, 1);
      }
    }
  }
  return out;
}

}  // namespace

LineEditor::LineEditor(std::function<bool(std::string&)> goes_on) : goes_on_(std::move(goes_on)) {}

std::string LineEditor::start(std::string prompt, const std::vector<std::string>& history) {
  prompt_ = std::move(prompt);
  history_ = &history;
  at_history_ = history.size();
  text_.clear();
  draft_.clear();
  cursor_ = drawn_row_ = 0;
  searching_ = false;
  mode_ = Mode::ground;
  pending_.clear();
  return redraw();
}

void LineEditor::resize(int columns, int rows) {
  columns_ = std::max(columns, 2);
  rows_ = std::max(rows, 1);
  // Terminals break long lines anew, so the cursor is where the new width puts it.
  drawn_row_ = picture().cursor_row;
}

LineEditor::Status LineEditor::feed(char byte) {
  const auto c = static_cast<unsigned char>(byte);
  switch (mode_) {
    case Mode::paste:
      paste_byte(byte);
      return Status::editing;
    case Mode::escape:
      mode_ = Mode::ground;
      if (c == '[') {
        mode_ = Mode::csi;
      } else if (c == 'O') {
        mode_ = Mode::ss3;
      } else {
        escape_key(c);
      }
      return Status::editing;
    case Mode::csi:
      if (c >= 0x40 && c <= 0x7e) {
        mode_ = Mode::ground;
        csi_key(std::exchange(pending_, {}), byte);
      } else if (c < 0x20 || pending_.size() > 32) {  // not a sequence after all
        mode_ = Mode::ground;
        pending_.clear();
      } else {
        pending_ += byte;
      }
      return Status::editing;
    case Mode::ss3:
      mode_ = Mode::ground;
      csi_key("", byte);
      return Status::editing;
    case Mode::utf8:
      pending_ += byte;
      if (!utf8_step(pending_).truncated) {
        mode_ = Mode::ground;
        const std::string text = clean(std::exchange(pending_, {}));
        if (searching_) {
          query_ += text;
          search_again(false);
        } else {
          insert(text);
        }
      }
      return Status::editing;
    case Mode::ground:
      break;
  }
  return key(c);
}

LineEditor::Status LineEditor::key(unsigned char c) {
  if (c == kEscape) {
    if (searching_) leave_search(true);
    mode_ = Mode::escape;
    pending_.clear();
    return Status::editing;
  }
  if (c >= 0x80) {
    pending_ = static_cast<char>(c);
    mode_ = Mode::utf8;
    if (!utf8_step(pending_).truncated) {
      mode_ = Mode::ground;
      pending_.clear();
    }
    return Status::editing;
  }
  if (searching_) {
    bool taken = false;
    const Status status = search_key(c, taken);
    if (taken) return status;
  }
  if (c < 0x20 || c == kDelete) return control(c);
  const char byte = static_cast<char>(c);
  insert({&byte, 1});
  return Status::editing;
}

LineEditor::Status LineEditor::control(unsigned char c) {
  switch (c) {
    case '\r':
    case '\n':
      return enter();
    case ctrl('A'):
      cursor_ = line_begin();
      break;
    case ctrl('E'):
      cursor_ = line_end();
      break;
    case ctrl('B'):
      cursor_ = character_before(text_, cursor_);
      break;
    case ctrl('F'):
      cursor_ += character_at(text_, cursor_);
      break;
    case ctrl('C'):
      return Status::interrupted;
    case ctrl('Z'):
      return Status::suspend;
    case ctrl('D'):
      if (text_.empty()) return Status::end;
      erase(cursor_, cursor_ + character_at(text_, cursor_), false);
      break;
    case ctrl('H'):
    case kDelete:
      erase(character_before(text_, cursor_), cursor_, false);
      break;
    case ctrl('K'): {
      const size_t end = line_end();  // at the end of a line: joins the next
      erase(cursor_, end == cursor_ && end < text_.size() ? end + 1 : end, true);
      break;
    }
    case ctrl('U'):
      erase(line_begin(), cursor_, true);
      break;
    case ctrl('W'): {
      size_t begin = cursor_;
      auto space = [&](size_t at) { return code_point_at(text_, at).cls == CharClass::space; };
      while (begin > 0 && space(character_before(text_, begin)))
        begin = character_before(text_, begin);
      while (begin > 0 && !space(character_before(text_, begin)))
        begin = character_before(text_, begin);
      erase(begin, cursor_, true);
      break;
    }
    case ctrl('Y'):
      insert(killed_);
      break;
    case ctrl('L'):
      clear_screen_ = true;
      break;
    case ctrl('P'):
      move_vertically(-1);
      break;
    case ctrl('N'):
      move_vertically(1);
      break;
    case ctrl('R'):
      searching_ = true;
      before_search_ = text_;
      query_.clear();
      found_ = history_->size();
      found_any_ = true;
      break;
    case '\t':
      insert("\t");
      break;
    default:
      break;
  }
  return Status::editing;
}

LineEditor::Status LineEditor::enter() {
  if (goes_on_ && goes_on_(text_)) {
    cursor_ = text_.size();
    insert("\n");
    return Status::editing;
  }
  return Status::done;
}

void LineEditor::escape_key(unsigned char c) {
  switch (c) {
    case 'b':
    case 'B':
      cursor_ = word_left();
      break;
    case 'f':
    case 'F':
      cursor_ = word_right();
      break;
    case 'd':
    case 'D':
      erase(cursor_, word_right(), true);
      break;
    case kDelete:
    case ctrl('H'):
      erase(word_left(), cursor_, true);
      break;
    case '\r':
    case '\n':
      insert("\n");
      break;
    default:
      break;
  }
}

// "1;5" and 'C' is Ctrl-Right: the second number, less one, has the modifiers as bits.
void LineEditor::csi_key(const std::string& parameters, char final) {
  if (searching_) leave_search(true);
  const size_t semicolon = parameters.find(';');
  const std::string first = parameters.substr(0, semicolon);
  const bool modified = semicolon != std::string::npos;
  switch (final) {
    case 'A':
      move_vertically(-1);
      return;
    case 'B':
      move_vertically(1);
      return;
    case 'C':
      cursor_ = modified ? word_right() : cursor_ + character_at(text_, cursor_);
      return;
    case 'D':
      cursor_ = modified ? word_left() : character_before(text_, cursor_);
      return;
    case 'H':
      cursor_ = line_begin();
      return;
    case 'F':
      cursor_ = line_end();
      return;
    case '~':
      break;
    default:
      return;
  }
  if (first == "1" || first == "7") cursor_ = line_begin();
  if (first == "4" || first == "8") cursor_ = line_end();
  if (first == "3") erase(cursor_, cursor_ + character_at(text_, cursor_), false);
  if (first == "200") mode_ = Mode::paste;
}

void LineEditor::paste_byte(char c) {
  pending_ += c;
  if (!pending_.ends_with(kPasteEnd)) {
    if (pending_.size() > kMaxText) pending_.resize(kMaxText - kMaxText / 4);
    return;
  }
  mode_ = Mode::ground;
  pending_.resize(pending_.size() - kPasteEnd.size());
  insert(clean(std::exchange(pending_, {})));
}

void LineEditor::insert(std::string_view bytes) {
  if (text_.size() + bytes.size() > kMaxText) return;
  text_.insert(cursor_, bytes);
  cursor_ += bytes.size();
}

void LineEditor::erase(size_t begin, size_t end, bool keep) {
  if (begin >= end) return;
  if (keep) killed_ = text_.substr(begin, end - begin);
  text_.erase(begin, end - begin);
  cursor_ = begin;
}

size_t LineEditor::line_begin() const {
  const size_t at = cursor_ == 0 ? std::string::npos : text_.rfind('\n', cursor_ - 1);
  return at == std::string::npos ? 0 : at + 1;
}

size_t LineEditor::line_end() const { return std::min(text_.find('\n', cursor_), text_.size()); }

size_t LineEditor::word_left() const {
  size_t at = cursor_;
  while (at > 0 && !word_char(text_, character_before(text_, at))) at = character_before(text_, at);
  while (at > 0 && word_char(text_, character_before(text_, at))) at = character_before(text_, at);
  return at;
}

size_t LineEditor::word_right() const {
  size_t at = cursor_;
  while (at < text_.size() && !word_char(text_, at)) at += character_at(text_, at);
  while (at < text_.size() && word_char(text_, at)) at += character_at(text_, at);
  return at;
}

// Up and down go through the lines of the text first, then through the history.
void LineEditor::move_vertically(int by) {
  const size_t begin = line_begin(), end = line_end();
  size_t column = 0;  // in characters
  for (size_t at = begin; at < cursor_; at += character_at(text_, at)) ++column;
  if (by < 0 && begin > 0) {
    cursor_ = begin - 1;
    cursor_ = line_begin();
  } else if (by > 0 && end < text_.size()) {
    cursor_ = end + 1;
  } else if (by < 0 && at_history_ > 0) {
    return recall(at_history_ - 1);
  } else if (by > 0 && at_history_ < history_->size()) {
    return recall(at_history_ + 1);
  } else {
    return;
  }
  const size_t stop = line_end();
  for (; column > 0 && cursor_ < stop; --column) cursor_ += character_at(text_, cursor_);
}

void LineEditor::recall(size_t index) {
  if (at_history_ == history_->size()) draft_ = text_;
  at_history_ = index;
  text_ = index == history_->size() ? draft_ : (*history_)[index];
  cursor_ = text_.size();
}

}  // namespace sluice
