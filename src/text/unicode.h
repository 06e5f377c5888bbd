// Code points, their classes, and NFC: the part of Unicode that tokenizers need. Pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace sluice {

// \p{L}, \p{N}, \p{M}, \s (White_Space) of regular expressions; no character is in two of them.
enum class CharClass : uint8_t { other = 0, letter = 1, number = 2, mark = 3, space = 4 };

struct CodePoint {
  char32_t value = 0;
  uint32_t size = 0;  // bytes in UTF-8; 0 at the end of the text
  CharClass cls = CharClass::other;
};

CharClass char_class(char32_t c);

// The code point at byte `pos` of valid UTF-8; size 0 when pos is the end.
CodePoint code_point_at(std::string_view text, size_t pos);

void append_utf8(std::string& out, char32_t c);

// Looks at the sequence that starts s. size > 0: well-formed, that many bytes. size == 0: `bad`
// bytes are the maximal subpart of an ill-formed sequence (Unicode 3.9), or, where `truncated`, the
// beginning of a sequence that more bytes could complete.
struct Utf8Step {
  uint32_t size = 0;
  uint32_t bad = 0;
  bool truncated = false;
};
Utf8Step utf8_step(std::string_view s);

// Byte offset of the first ill-formed sequence.
std::optional<size_t> first_invalid_utf8(std::string_view s);

// Canonical composition (NFC) of valid UTF-8; nullopt where the text is NFC already, the usual
// case.
std::optional<std::string> to_nfc(std::string_view text);

}  // namespace sluice
