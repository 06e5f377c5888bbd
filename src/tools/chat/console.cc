#include "tools/chat/console.h"

#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>

#include "tools/terminal.h"

namespace sluice {

namespace {

// The terminal's own settings, for signals that end the program while they are changed.
struct termios own_settings;
volatile std::sig_atomic_t resized = 0;

void on_resize(int) { resized = 1; }

void on_end(int signal) {
  tcsetattr(STDIN_FILENO, TCSANOW, &own_settings);
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

void put(std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = ::write(STDOUT_FILENO, text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return;  // the terminal is gone; reading will say so
    text.remove_prefix(static_cast<size_t>(n));
  }
}

// Keys as they are pressed, nothing echoed; `signals`: Ctrl-C still is one.
void set_raw(bool signals) {
  struct termios raw = own_settings;
  raw.c_lflag &= ~static_cast<tcflag_t>(ECHO | ICANON | IEXTEN);
  if (!signals) {
    raw.c_lflag &= ~static_cast<tcflag_t>(ISIG);
    raw.c_iflag &= ~static_cast<tcflag_t>(ICRNL | INLCR | IXON);
  }
  raw.c_cc[VMIN] = 1;
  raw.c_cc[VTIME] = 0;
  tcsetattr(STDIN_FILENO, TCSADRAIN, &raw);
}

void set_own() { tcsetattr(STDIN_FILENO, TCSADRAIN, &own_settings); }

// Between two prompts keys stay raw but for signals: in the terminal's own mode a Ctrl-D typed just
// then would be taken as the end of a line that nobody reads.
class RawKeys {
 public:
  RawKeys() { enter(); }
  ~RawKeys() { leave(); }
  void suspend() {
    leave();
    set_own();
    std::raise(SIGTSTP);
    enter();
  }

 private:
  static void enter() {
    set_raw(false);
    put("\033[?2004h");  // pastes come marked
  }
  static void leave() {
    put("\033[?2004l");
    set_raw(true);
  }
};

bool can_edit() {
  return isatty(STDIN_FILENO) == 1 && isatty(STDOUT_FILENO) == 1 && !terminal_is_dumb() &&
         tcgetattr(STDIN_FILENO, &own_settings) == 0;
}

}  // namespace

Console::Console(InputHistory history, CatchInterrupt& interrupt)
    : history_(std::move(history)),
      interrupt_(interrupt),
      editing_(can_edit()),
      editor_(input_goes_on) {
  if (!editing_) return;
  struct sigaction action = {};
  action.sa_handler = on_resize;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  sigaction(SIGWINCH, &action, &before_resize_);
  std::signal(SIGTERM, on_end);
  std::signal(SIGHUP, on_end);
  set_raw(true);
  follow_size();
}

Console::~Console() {
  if (!editing_) return;
  set_own();
  sigaction(SIGWINCH, &before_resize_, nullptr);
  std::signal(SIGTERM, SIG_DFL);
  std::signal(SIGHUP, SIG_DFL);
}

void Console::follow_size() {
  resized = 0;
  struct winsize size = {};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0)
    editor_.resize(size.ws_col, size.ws_row);
}

std::optional<bool> Console::fill() {
  // The wait ends now and then, so that a signal between two waits is not missed for long.
  struct pollfd ready = {STDIN_FILENO, POLLIN, 0};
  if (poll(&ready, 1, 200) <= 0) return std::nullopt;
  char bytes[4096];
  const ssize_t n = ::read(STDIN_FILENO, bytes, sizeof(bytes));
  if (n < 0 && (errno == EINTR || errno == EAGAIN)) return std::nullopt;
  if (n <= 0) return false;
  unread_.append(bytes, static_cast<size_t>(n));
  return true;
}

Console::Got Console::read(const std::string& prompt, std::string& out) {
  std::fflush(stdout);
  return editing_ ? read_edited(prompt, out) : read_plain(prompt, out);
}

Console::Got Console::read_edited(const std::string& prompt, std::string& out) {
  RawKeys keys;
  follow_size();
  put(editor_.start(prompt, history_.lines()));
  for (;;) {
    size_t used = 0;
    auto status = LineEditor::Status::editing;
    while (used < unread_.size() && status == LineEditor::Status::editing)
      status = editor_.feed(unread_[used++]);
    unread_.erase(0, used);
    switch (status) {
      case LineEditor::Status::editing:
        break;
      case LineEditor::Status::suspend:
        put(editor_.leave());
        keys.suspend();
        put(editor_.redraw());
        continue;
      case LineEditor::Status::done:
        put(editor_.leave());
        out = editor_.text();
        return Got::line;
      case LineEditor::Status::interrupted:
        put(editor_.leave());
        out = editor_.text();
        return Got::interrupted;
      case LineEditor::Status::end:
        put(editor_.leave());
        return Got::end;
    }
    if (used > 0) put(editor_.redraw());
    const std::optional<bool> more = fill();
    if (more == false) return Got::end;
    if (resized) {
      follow_size();
      put(editor_.redraw());
    }
  }
}

Console::Got Console::read_plain(const std::string& prompt, std::string& out) {
  if (isatty(STDIN_FILENO) == 1) {
    std::fputs(prompt.c_str(), stderr);
    std::fflush(stderr);
  }
  out.clear();
  for (;;) {
    for (size_t end; (end = unread_.find('\n')) != std::string::npos;) {
      out.append(unread_, 0, end);
      unread_.erase(0, end + 1);
      if (out.ends_with('\r')) out.pop_back();
      if (!input_goes_on(out)) return Got::line;
      out += '\n';
    }
    const std::optional<bool> more = fill();
    if (interrupt_.seen()) {
      interrupt_.clear();
      if (isatty(STDIN_FILENO) == 1) std::fputs("\n", stderr);
      out += unread_;
      unread_.clear();
      return Got::interrupted;
    }
    if (more == false) {
      out += unread_;
      unread_.clear();
      return out.empty() ? Got::end : Got::line;
    }
  }
}

}  // namespace sluice
