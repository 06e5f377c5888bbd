#include "tools/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <sstream>

#include "base/str.h"
#include "core/policy.h"
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

namespace {

int columns_of(int fd) {
  struct winsize size = {};
  if (isatty(fd) != 1 || terminal_is_dumb()) return 0;
  return ioctl(fd, TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
}

}  // namespace

int stdout_columns() { return columns_of(STDOUT_FILENO); }

std::string dim(const std::string& text) {
  if (!stderr_is_terminal() || terminal_is_dumb() || std::getenv("NO_COLOR")) return text;
  return "\033[2m" + text + "\033[0m";
}

std::string broken_lines(const std::string& text, int columns) {
  if (columns <= 0) return text;
  std::string out;
  size_t column = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find(' ', at), text.size());
    const size_t width = end - at;
    if (column > 0 && column + 1 + width > static_cast<size_t>(columns)) {
      out += '\n';
      column = 0;
    } else if (at > 0) {
      out += ' ';
      ++column;
    }
    out.append(text, at, width);
    column += width;
    at = end + 1;
  }
  return out;
}

void tell(const std::string& text) {
  std::fprintf(stderr, "%s\n", dim(broken_lines(text, columns_of(STDERR_FILENO))).c_str());
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
  const int columns = columns_of(STDERR_FILENO);
  const bool cut = columns > 0 && static_cast<int>(text.size()) >= columns &&
                   text.find('\033') == text.npos;  // a second line would stay
  std::fprintf(stderr, "\r\033[K%.*s", cut ? columns - 1 : static_cast<int>(text.size()),
               text.c_str());
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

namespace {

Result<EngineOptions> located_options(const EngineOptions& given) {
  EngineOptions options = given;
  if (auto ok = check_policies(options.scheduler, options.has_accounts); !ok) return ok.error();
  Result<std::string> path = locate_model(options.model, options.quiet);
  if (!path) return path.error();
  options.model = *path;
  return options;
}

}  // namespace

Result<std::unique_ptr<Session>> open_simulated(const EngineOptions& given, const StepCost& cost) {
  Result<EngineOptions> options = located_options(given);
  if (!options) return options.error();
  return Session::simulate(*options, cost);
}

Result<std::unique_ptr<Session>> open_session(const EngineOptions& given) {
  Result<EngineOptions> located = located_options(given);
  if (!located) return located.error();
  const EngineOptions& options = *located;
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
  std::string text =
      strf("%s: %s used, %s reserved for %d x %d tokens; loaded in %.2f s",
           name_of_model(options.model).c_str(), human_bytes(l.weights + l.workspace).c_str(),
           human_bytes(l.kv).c_str(), l.full_sequences, l.ctx, s.load_seconds());
  if (const HostLedger& h = l.host; h.layers > 0)
    text += strf("; %d of %d layers on the CPU: %s used, %s reserved", h.layers,
                 s.model().shape().num_layers, human_bytes(h.weights + h.workspace).c_str(),
                 human_bytes(h.kv).c_str()) +
            (h.streamed > 0 ? strf(", %s to stream prompts", human_bytes(h.streamed).c_str()) : "");
  if (l.ctx < s.model().shape().max_len && !options.ctx) {
    text += strf(" (the model could hold %d: memory is the limit)", s.model().shape().max_len);
  }
  tell(text);
  text = "device: " + s.backend().describe();
  if (s.host_backend()) text += "; " + s.host_backend()->describe();
  if (!s.why_no_gpu().empty()) text += "; no GPU: " + s.why_no_gpu();
  if (const auto& rates = s.copy_rates())
    text += strf("; KV moves at %.1f GB/s out, %.1f GB/s in", rates->out / 1e9, rates->in / 1e9);
  tell(text);
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
