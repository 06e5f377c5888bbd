// The history of a console, and when an input is whole.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "base/str.h"
#include "tools/chat/console.h"

namespace sluice {

namespace {

constexpr std::string_view kQuotes = "\"\"\"";
constexpr size_t kMaxLines = 1000, kMaxLineBytes = 64 << 10;

std::string escaped(const std::string& line) {
  std::string out;
  for (char c : line) {
    if (c == '\\') {
      out += "\\\\";
    } else if (c == '\n') {
      out += "\\n";
    } else {
      out += c;
    }
  }
  return out;
}

std::string unescaped(const std::string& line) {
  std::string out;
  for (size_t i = 0; i < line.size(); ++i) {
    if (line[i] != '\\' || i + 1 == line.size()) {
      out += line[i];
    } else {
      out += line[++i] == 'n' ? '\n' : line[i];
    }
  }
  return out;
}

// Appends to, or replaces, a file of mode 0600. Failure is no news: the history is a comfort.
void write_lines(const std::string& path, const std::vector<std::string>& lines, int flags) {
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW | flags, 0600);
  if (fd < 0) return;
  static_cast<void>(fchmod(fd, 0600));
  std::string text;
  for (const std::string& line : lines) text += escaped(line) + "\n";
  size_t at = 0;
  while (at < text.size()) {
    const ssize_t n = ::write(fd, text.data() + at, text.size() - at);
    if (n <= 0) break;
    at += static_cast<size_t>(n);
  }
  close(fd);
}

}  // namespace

bool input_goes_on(std::string& text) {
  if (text.starts_with(kQuotes)) return text.find(kQuotes, kQuotes.size()) == text.npos;
  if (!text.ends_with('\\')) return false;
  text.pop_back();
  return true;
}

std::string unquoted_input(std::string text) {
  if (!text.starts_with(kQuotes)) return text;
  text.erase(0, kQuotes.size());
  if (const size_t end = text.find(kQuotes); end != text.npos) text.erase(end, kQuotes.size());
  if (text.starts_with('\n')) text.erase(0, 1);
  if (text.ends_with('\n')) text.pop_back();
  return text;
}

std::string InputHistory::default_path() {
  const char* state = std::getenv("XDG_STATE_HOME");
  if (state && *state) return std::string(state) + "/sluice/history";
  const char* home = std::getenv("HOME");
  return home && *home ? std::string(home) + "/.local/state/sluice/history" : "";
}

InputHistory::InputHistory(std::string path) : path_(std::move(path)) {
  if (path_.empty()) return;
  std::error_code ec;
  const std::filesystem::path folder = std::filesystem::path(path_).parent_path();
  if (!folder.empty() && std::filesystem::create_directories(folder, ec))
    std::filesystem::permissions(folder, std::filesystem::perms::owner_all, ec);
  load();
}

void InputHistory::load() {
  std::ifstream in(path_, std::ios::binary);
  std::string line;
  size_t num = 0;
  while (std::getline(in, line)) {
    ++num;
    if (line.empty() || line.size() > kMaxLineBytes || !valid_utf8(line)) continue;
    lines_.push_back(unescaped(line));
    if (lines_.size() >= 2 * kMaxLines)
      lines_.erase(lines_.begin(), lines_.begin() + static_cast<std::ptrdiff_t>(kMaxLines));
  }
  if (num >= 2 * kMaxLines) write_lines(path_, lines_, O_TRUNC);
}

void InputHistory::add(const std::string& line) {
  if (line.empty() || line.size() > kMaxLineBytes || (!lines_.empty() && lines_.back() == line))
    return;
  lines_.push_back(line);
  if (!path_.empty()) write_lines(path_, {line}, O_APPEND);
}

}  // namespace sluice
