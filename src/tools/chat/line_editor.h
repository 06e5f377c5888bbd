// A line of input being edited: bytes from the keyboard in, what to write to the terminal out.
// Knows no file descriptor and no terminal mode (console.h does), so tests feed it bytes. The text
// may have several lines. Used by one thread.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace sluice {

class LineEditor {
 public:
  enum class Status {
    editing,
    done,         // Enter: text() is the input
    interrupted,  // Ctrl-C
    end,          // Ctrl-D on an empty line
    suspend,      // Ctrl-Z; go on with redraw()
  };

  // `goes_on(text)`: Enter begins a new line instead of ending the input. It may take the mark that
  // said so from the text's end.
  explicit LineEditor(std::function<bool(std::string&)> goes_on = {});

  // A new, empty line. `history` is oldest first and outlives the edit. Gives the first picture.
  std::string start(std::string prompt, const std::vector<std::string>& history);
  // The terminal's size; the next picture follows it.
  void resize(int columns, int rows);

  // One byte from the keyboard.
  Status feed(char byte);
  // What to write so that the terminal shows the present state. Call it when no input waits.
  std::string redraw();
  // After done, interrupted or end: leaves the cursor on the line below the text.
  std::string leave();

  const std::string& text() const { return text_; }
  size_t cursor() const { return cursor_; }  // in bytes
  bool searching() const { return searching_; }

 private:
  enum class Mode { ground, escape, csi, ss3, utf8, paste };

  Status key(unsigned char c);
  Status control(unsigned char c);
  Status enter();
  void escape_key(unsigned char c);
  void csi_key(const std::string& parameters, char final);
  void paste_byte(char c);
  Status search_key(unsigned char c, bool& taken);
  void search_again(bool older);
  void leave_search(bool accept);

  void insert(std::string_view bytes);
  void erase(size_t begin, size_t end, bool keep);
  void move_vertically(int by);
  void recall(size_t index);
  size_t line_begin() const;
  size_t line_end() const;
  size_t word_left() const;
  size_t word_right() const;

  struct Picture {
    std::vector<std::string> rows;
    size_t cursor_row = 0;
    int cursor_column = 0;
  };
  Picture picture() const;

  std::function<bool(std::string&)> goes_on_;
  std::string prompt_, text_, killed_;
  size_t cursor_ = 0;
  int columns_ = 80, rows_ = 24;

  Mode mode_ = Mode::ground;
  std::string pending_;  // of an escape sequence, a character or a paste

  const std::vector<std::string>* history_ = nullptr;
  size_t at_history_ = 0;  // history_->size(): the draft
  std::string draft_;

  bool searching_ = false;
  std::string query_, before_search_;
  size_t found_ = 0;
  bool found_any_ = true;

  bool clear_screen_ = false;
  size_t drawn_row_ = 0;  // of the cursor, in the picture on the screen
};

}  // namespace sluice
