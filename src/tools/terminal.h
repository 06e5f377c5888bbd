// What people see while they wait: one line on stderr, rewritten in place, only on a terminal.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "base/result.h"
#include "runtime/session.h"

namespace sluice {

class StatusLine {
 public:
  explicit StatusLine(bool enabled = true);
  ~StatusLine() { clear(); }
  // At most ten times a second, unless `force`.
  void show(const std::string& text, bool force = false);
  void clear();
  bool enabled() const { return enabled_; }

 private:
  bool enabled_;
  bool shown_ = false;
  std::chrono::steady_clock::time_point last_{};
};

bool stdin_is_terminal();
bool stderr_is_terminal();
// TERM says that it cannot move its cursor.
bool terminal_is_dumb();
// Stdout is a terminal that shows colours, and NO_COLOR is unset.
bool stdout_has_colour();
// Columns of stdout; 0: not a terminal, or one that cannot move its cursor.
int stdout_columns();
std::string dim(
    const std::string& text);  // on stderr, when that is a terminal and NO_COLOR is unset
// A line for the person on stderr: dim, and broken between words where the terminal ends.
void tell(const std::string& text);
// Breaks lines at spaces so that they fit so many columns; 0: nowhere.
std::string broken_lines(const std::string& text, int columns);
std::string progress_bar(double fraction, int width = 24);

// Opens a session with a loading bar.
Result<std::unique_ptr<Session>> open_session(const EngineOptions& options);
// One that computes nothing (Session::simulate).
Result<std::unique_ptr<Session>> open_simulated(const EngineOptions& options, const StepCost& cost);
// The memory in use and reserved, and the device with the reason why it is not a GPU: two lines on
// stderr unless quiet; after all input is known to be good.
void show_ledger(const Session& session);

// The whole of a file, or of stdin for "-". Invalid UTF-8 is an error.
Result<std::string> read_text(const std::string& path);

}  // namespace sluice
