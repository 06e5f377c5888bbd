#include "tools/chat/char_width.h"

#include <algorithm>
#include <cstdint>

#include "text/unicode.h"

namespace sluice {

namespace {

struct Range {
  char32_t first, last;
};

// East Asian Wide and Fullwidth, and what terminals show as emoji. Ascending.
constexpr Range kWide[] = {
    {0x1100, 0x115F},   {0x231A, 0x231B},   {0x2329, 0x232A},   {0x23E9, 0x23EC},
    {0x23F0, 0x23F0},   {0x23F3, 0x23F3},   {0x25FD, 0x25FE},   {0x2614, 0x2615},
    {0x2648, 0x2653},   {0x267F, 0x267F},   {0x2693, 0x2693},   {0x26A1, 0x26A1},
    {0x26AA, 0x26AB},   {0x26BD, 0x26BE},   {0x26C4, 0x26C5},   {0x26CE, 0x26CE},
    {0x26D4, 0x26D4},   {0x26EA, 0x26EA},   {0x26F2, 0x26F3},   {0x26F5, 0x26F5},
    {0x26FA, 0x26FA},   {0x26FD, 0x26FD},   {0x2705, 0x2705},   {0x270A, 0x270B},
    {0x2728, 0x2728},   {0x274C, 0x274C},   {0x274E, 0x274E},   {0x2753, 0x2755},
    {0x2757, 0x2757},   {0x2795, 0x2797},   {0x27B0, 0x27B0},   {0x27BF, 0x27BF},
    {0x2B1B, 0x2B1C},   {0x2B50, 0x2B50},   {0x2B55, 0x2B55},   {0x2E80, 0x303E},
    {0x3041, 0x33FF},   {0x3400, 0x4DBF},   {0x4E00, 0x9FFF},   {0xA000, 0xA4CF},
    {0xA960, 0xA97F},   {0xAC00, 0xD7A3},   {0xF900, 0xFAFF},   {0xFE10, 0xFE19},
    {0xFE30, 0xFE6F},   {0xFF01, 0xFF60},   {0xFFE0, 0xFFE6},   {0x16FE0, 0x18AFF},
    {0x1B000, 0x1B2FF}, {0x1F004, 0x1F004}, {0x1F0CF, 0x1F0CF}, {0x1F18E, 0x1F18E},
    {0x1F191, 0x1F19A}, {0x1F200, 0x1F320}, {0x1F32D, 0x1F335}, {0x1F337, 0x1F37C},
    {0x1F37E, 0x1F393}, {0x1F3A0, 0x1F3CA}, {0x1F3CF, 0x1F3D3}, {0x1F3E0, 0x1F3F0},
    {0x1F3F4, 0x1F3F4}, {0x1F3F8, 0x1F43E}, {0x1F440, 0x1F440}, {0x1F442, 0x1F4FC},
    {0x1F4FF, 0x1F53D}, {0x1F54B, 0x1F567}, {0x1F57A, 0x1F57A}, {0x1F595, 0x1F596},
    {0x1F5A4, 0x1F5A4}, {0x1F5FB, 0x1F64F}, {0x1F680, 0x1F6C5}, {0x1F6CC, 0x1F6CC},
    {0x1F6D0, 0x1F6D2}, {0x1F6D5, 0x1F6DF}, {0x1F6EB, 0x1F6EC}, {0x1F6F4, 0x1F6FC},
    {0x1F7E0, 0x1F7EB}, {0x1F90C, 0x1F9FF}, {0x1FA70, 0x1FAFF}, {0x20000, 0x3FFFD}};

constexpr char32_t kJoiner = 0x200D;

bool zero_width(char32_t c) {
  if (c < 0x300) return false;
  return char_class(c) == CharClass::mark || (c >= 0x200B && c <= 0x200F) || c == 0xFEFF ||
         (c >= 0xFE00 && c <= 0xFE0F) || (c >= 0x1F3FB && c <= 0x1F3FF) ||
         (c >= 0xE0000 && c <= 0xE01EF) || (c >= 0x1160 && c <= 0x11FF);
}

}  // namespace

int char_width(char32_t c) {
  if (c < 0x300) return 1;
  if (zero_width(c)) return 0;
  const Range* r = std::lower_bound(std::begin(kWide), std::end(kWide), c,
                                    [](const Range& a, char32_t v) { return a.last < v; });
  return r != std::end(kWide) && c >= r->first ? 2 : 1;
}

size_t character_at(std::string_view text, size_t pos) {
  CodePoint c = code_point_at(text, pos);
  size_t end = pos + c.size;
  bool joined = c.value == kJoiner;
  while (c.size > 0 && c.value != '\n') {  // a line's end joins nothing
    c = code_point_at(text, end);
    if (c.size == 0 || c.value == '\n' || !(joined || zero_width(c.value))) break;
    joined = c.value == kJoiner;
    end += c.size;
  }
  return end - pos;
}

size_t character_before(std::string_view text, size_t pos) {
  auto step_back = [&](size_t at) {
    do {
      --at;
    } while (at > 0 && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80);
    return at;
  };
  if (pos == 0) return 0;
  size_t at = step_back(pos);
  while (at > 0 && text[at] != '\n' && text[at - 1] != '\n' &&
         (zero_width(code_point_at(text, at).value) ||
          code_point_at(text, step_back(at)).value == kJoiner)) {
    at = step_back(at);
  }
  return at;
}

int character_width(std::string_view character) {
  const CodePoint c = code_point_at(character, 0);
  const int width = std::max(char_width(c.value), 1);
  // A variation selector asks for the emoji.
  return character.find("\xEF\xB8\x8F") != std::string_view::npos ? 2 : width;
}

}  // namespace sluice
