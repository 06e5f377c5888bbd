#include "base/str.h"

#include <cstdarg>
#include <cstdio>

namespace sluice {

std::string strf(const char* format, ...) {
  va_list args, again;
  va_start(args, format);
  va_copy(again, args);
  int n = std::vsnprintf(nullptr, 0, format, args);
  va_end(args);
  std::string out(n > 0 ? static_cast<size_t>(n) : 0, '\0');
  if (n > 0) std::vsnprintf(out.data(), out.size() + 1, format, again);
  va_end(again);
  return out;
}

std::string human_bytes(uint64_t bytes) {
  static constexpr const char* kUnits[] = {"B", "KB", "MB", "GB", "TB", "PB", "EB"};
  double v = static_cast<double>(bytes);
  int u = 0;
  while (v >= 999.5 && u < 6) v /= 1000, ++u;
  return u == 0 || v >= 99.95 ? strf("%.0f %s", v, kUnits[u]) : strf("%.1f %s", v, kUnits[u]);
}

namespace {

// Length of the well-formed sequence at s[i], 0 if there is none.
size_t utf8_length(std::string_view s, size_t i) {
  auto byte = [&](size_t k) { return static_cast<uint8_t>(s[k]); };
  auto cont = [&](size_t k) { return k < s.size() && (byte(k) & 0xC0) == 0x80; };
  uint8_t b = byte(i);
  if (b < 0x80) return 1;
  if (b >= 0xC2 && b <= 0xDF) return cont(i + 1) ? 2 : 0;
  if (b >= 0xE0 && b <= 0xEF) {
    if (!cont(i + 1) || !cont(i + 2)) return 0;
    if (b == 0xE0 && byte(i + 1) < 0xA0) return 0;
    if (b == 0xED && byte(i + 1) > 0x9F) return 0;
    return 3;
  }
  if (b >= 0xF0 && b <= 0xF4) {
    if (!cont(i + 1) || !cont(i + 2) || !cont(i + 3)) return 0;
    if (b == 0xF0 && byte(i + 1) < 0x90) return 0;
    if (b == 0xF4 && byte(i + 1) > 0x8F) return 0;
    return 4;
  }
  return 0;
}

}  // namespace

bool valid_utf8(std::string_view s) {
  for (size_t i = 0; i < s.size();) {
    size_t n = utf8_length(s, i);
    if (n == 0) return false;
    i += n;
  }
  return true;
}

std::string quote(std::string_view s, size_t max) {
  std::string out = "'";
  for (size_t i = 0; i < s.size();) {
    size_t n = utf8_length(s, i);
    if (out.size() + n > max) {
      out += "...";
      break;
    }
    auto b = static_cast<uint8_t>(s[i]);
    if (n == 0 || b < 0x20 || b == 0x7F) {
      out += strf("\\x%02x", b);
      n = 1;
    } else {
      out.append(s.substr(i, n));
    }
    i += n;
  }
  return out + "'";
}

}  // namespace sluice
