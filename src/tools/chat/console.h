// Input and output of a conversation: a line editor with history on a terminal, plain lines
// elsewhere. One per process; used by the main thread.
#pragma once

#include <termios.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tools/interrupt.h"
#include "tools/chat/line_editor.h"

namespace sluice {

// Input goes on after Enter when its last line ends with a backslash, which is taken away, or when
// it begins with """ and no second """ has ended it.
bool input_goes_on(std::string& text);
// The input without its quotes.
std::string unquoted_input(std::string text);

// Lines entered before, oldest first, kept in a file that only its owner may read.
class InputHistory {
 public:
  // Empty path: kept in memory only. A file that cannot be read or written is not an error.
  explicit InputHistory(std::string path);
  const std::vector<std::string>& lines() const { return lines_; }
  void add(const std::string& line);
  // $XDG_STATE_HOME/sluice/history, by default below the home folder; empty without one.
  static std::string default_path();

 private:
  void load();
  std::string path_;
  std::vector<std::string> lines_;
};

class Console {
 public:
  enum class Got { line, interrupted, end };

  Console(InputHistory history, CatchInterrupt& interrupt);
  ~Console();
  Console(const Console&) = delete;
  Console& operator=(const Console&) = delete;

  // Stdin and stdout are a terminal that can move its cursor.
  bool editing() const { return editing_; }
  // The next input; what is typed between two calls is not shown and waits. `out` is what was
  // typed, marks included.
  Got read(const std::string& prompt, std::string& out);
  void remember(const std::string& line) { history_.add(line); }

 private:
  Got read_edited(const std::string& prompt, std::string& out);
  Got read_plain(const std::string& prompt, std::string& out);
  void follow_size();
  // More bytes of stdin: false at its end, nothing when none came for a while.
  std::optional<bool> fill();

  InputHistory history_;
  CatchInterrupt& interrupt_;
  bool editing_;
  LineEditor editor_;
  std::string unread_;  // bytes of stdin beyond the line that was read
  struct sigaction before_resize_ = {};
};

}  // namespace sluice
