#include "text/byte_level.h"

#include <iterator>

#include "text/unicode.h"

namespace sluice {

namespace {

struct Alphabet {
  uint16_t to_char[256] = {};
  int16_t to_byte[0x144] = {};
};

// Printable Latin-1 stands for itself; the other 68 bytes, in order, for U+0100 and up.
constexpr Alphabet make_alphabet() {
  Alphabet a;
  for (int16_t& b : a.to_byte) b = -1;
  uint16_t next = 0x100;
  for (uint16_t b = 0; b < 256; ++b) {
    bool self = (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
    a.to_char[b] = self ? b : next++;
    a.to_byte[a.to_char[b]] = static_cast<int16_t>(b);
  }
  return a;
}

constexpr Alphabet kAlphabet = make_alphabet();

}  // namespace

std::string byte_level_char(uint8_t byte) {
  std::string out;
  append_utf8(out, kAlphabet.to_char[byte]);
  return out;
}

std::optional<uint8_t> byte_level_byte(char32_t c) {
  if (c >= std::size(kAlphabet.to_byte) || kAlphabet.to_byte[c] < 0) return std::nullopt;
  return static_cast<uint8_t>(kAlphabet.to_byte[c]);
}

std::optional<std::string> byte_level_decode(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t pos = 0; pos < text.size();) {
    if (utf8_step(text.substr(pos)).size == 0) return std::nullopt;
    CodePoint p = code_point_at(text, pos);
    std::optional<uint8_t> byte = byte_level_byte(p.value);
    if (!byte) return std::nullopt;
    out.push_back(static_cast<char>(*byte));
    pos += p.size;
  }
  return out;
}

}  // namespace sluice
