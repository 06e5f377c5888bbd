// printf-style std::string, and the few string functions the standard library lacks.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace sluice {

[[gnu::format(printf, 1, 2)]] std::string strf(const char* format, ...);

// "1.5 GB", "312 MB", "17 KB": decimal units, for people.
std::string human_bytes(uint64_t bytes);

// True when `s` is well-formed UTF-8 (no overlong forms, surrogates or values above U+10FFFF).
bool valid_utf8(std::string_view s);

// Control characters and invalid UTF-8 escaped, cut at `max` bytes: for quoting foreign text in a
// message.
std::string quote(std::string_view s, size_t max = 80);

}  // namespace sluice
