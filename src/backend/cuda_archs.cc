#include "backend/cuda_archs.h"

#include <algorithm>
#include <charconv>

namespace sluice {

namespace {

// f(entry) for each, until one says true.
template <typename F>
bool any_entry(std::string_view archs, F&& f) {
  while (!archs.empty()) {
    const size_t end = std::min(archs.find(' '), archs.size());
    if (end > 0 && f(archs.substr(0, end))) return true;
    archs.remove_prefix(std::min(end + 1, archs.size()));
  }
  return false;
}

bool entry_runs_on(std::string_view entry, int major, int minor) {
  int number = 0;
  auto [rest, failed] = std::from_chars(entry.data(), entry.data() + entry.size(), number);
  if (failed != std::errc()) return false;
  const std::string_view kind(rest, static_cast<size_t>(entry.data() + entry.size() - rest));
  if (kind == "-virtual") return number <= major * 10 + minor;
  // Jetson's 8.7 and the cards' 8.x do not run each other's code.
  if (major == 8 && (minor == 7) != (number == 87)) return false;
  return number / 10 == major && (kind == "a" ? number % 10 == minor : number % 10 <= minor);
}

}  // namespace

bool arch_runs_on(std::string_view archs, int major, int minor) {
  return any_entry(archs, [&](std::string_view e) { return entry_runs_on(e, major, minor); });
}

bool has_arch(std::string_view archs, std::string_view arch) {
  return any_entry(archs, [&](std::string_view e) { return e == arch; });
}

std::string arch_of(int major, int minor) {
  return std::to_string(major * 10 + minor) + (major == 9 && minor == 0 ? "a" : "");
}

}  // namespace sluice
