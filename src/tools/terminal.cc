#include "tools/terminal.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <sstream>

#include "base/str.h"
#include "tools/commands.h"
#include "tools/locate_model.h"

namespace sluice {

bool stdin_is_terminal() { return isatty(STDIN_FILENO) == 1; }

bool stderr_is_terminal() { return isatty(STDERR_FILENO) == 1; }

bool terminal_is_dumb() {
  const char* term = std::getenv("TERM");
  return !term || !*term || std::string_view(term) == "dumb";
}

bool stdout_has_colour() {
  return isatty(STDOUT_FILENO) == 1 && !std::getenv("NO_COLOR") && !terminal_is_dumb();
}

std::string dim(const std::string& text) {
  if (!stderr_is_terminal() || terminal_is_dumb() || std::getenv("NO_COLOR")) return text;
  return "\033[2m" + text + "\033[0m";
}

std::string progress_bar(double fraction, int width) {
  int full = static_cast<int>(fraction * width + 0.5);
  std::string bar = "[";
  for (int i = 0; i < width; ++i) bar += i < full ? '#' : '.';
  return bar + "]";
}

StatusLine::StatusLine(bool enabled)
    : enabled_(enabled && stderr_is_terminal() && !terminal_is_dumb()) {}

void StatusLine::show(const std::string& text, bool force) {
  if (!enabled_) return;
  auto now = std::chrono::steady_clock::now();
  if (!force && shown_ && now - last_ < std::chrono::milliseconds(100)) return;
  last_ = now;
  shown_ = true;
  std::fprintf(stderr, "\r\033[K%s", text.c_str());
  std::fflush(stderr);
}

void StatusLine::clear() {
  if (!shown_) return;
  std::fprintf(stderr, "\r\033[K");
  std::fflush(stderr);
  shown_ = false;
}

int report(const Error& error) {
  std::string line = error.message;  // foreign text in it (a template's) may have several
  std::replace(line.begin(), line.end(), '\n', ' ');
  std::fprintf(stderr, "sluice: %s\n", line.c_str());
  return error.code == 500 ? kExitFailure : kExitUsage;
}

Result<std::unique_ptr<Session>> open_session(const EngineOptions& given) {
  EngineOptions options = given;
  Result<std::string> path = locate_model(options.model, options.quiet);
  if (!path) return path.error();
  options.model = *path;
  StatusLine line(!options.quiet);
  auto begin = std::chrono::steady_clock::now();
  auto session = Session::open(options, [&](size_t done, size_t total) {
    std::chrono::duration<double> t = std::chrono::steady_clock::now() - begin;
    double fraction = total > 0 ? static_cast<double>(done) / static_cast<double>(total) : 1;
    line.show(strf("loading %s %3.0f%% %s of %s, %.1f GB/s", progress_bar(fraction).c_str(),
                   fraction * 100, human_bytes(done).c_str(), human_bytes(total).c_str(),
                   static_cast<double>(done) / 1e9 / std::max(t.count(), 1e-3)));
  });
  line.clear();
  return session;
}

void show_ledger(const Session& s) {
  const EngineOptions& options = s.options();
  if (options.quiet) return;
  const Ledger& l = s.ledger();
  std::string text = strf(
      "%s: %s, weights %s + KV %s + workspace %s of %s free; %d sequences of %d tokens; loaded in "
      "%.2f s",
      name_of_model(options.model).c_str(), s.backend().describe().c_str(),
      human_bytes(l.weights).c_str(), human_bytes(l.kv).c_str(), human_bytes(l.workspace).c_str(),
      human_bytes(l.available).c_str(), l.full_sequences, l.ctx, s.load_seconds());
  if (l.ctx < s.model().shape().max_len && options.ctx == 0) {
    text += strf(" (the model could hold %d: memory is the limit)", s.model().shape().max_len);
  }
  std::fprintf(stderr, "%s\n", dim(text).c_str());
}

Result<std::string> read_text(const std::string& path) {
  std::stringstream text;
  if (path == "-") {
    text << std::cin.rdbuf();
  } else {
    std::ifstream in(path, std::ios::binary);
    // A folder opens, and then reads as empty.
    if (!in || std::filesystem::is_directory(path))
      return Error{404, strf("cannot read %s: no such file, not allowed, or a folder",
                             quote(path, 400).c_str())};
    text << in.rdbuf();
  }
  std::string s = text.str();
  if (!valid_utf8(s)) return Error{400, strf("%s is not valid UTF-8", quote(path, 400).c_str())};
  return s;
}

}  // namespace sluice
