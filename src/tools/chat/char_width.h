// How many columns text takes on a terminal. Pure functions.
#pragma once

#include <cstddef>
#include <string_view>

namespace sluice {

// 0 for combining marks and joiners, 2 for wide East Asian characters and emoji, else 1.
int char_width(char32_t c);

// Bytes of the character that the user sees at `pos`: a code point with the marks, variation
// selectors and joined emoji that follow it. 0 at the end. `text` is valid UTF-8.
size_t character_at(std::string_view text, size_t pos);
// Where the character that ends at `pos` begins; 0 at the beginning.
size_t character_before(std::string_view text, size_t pos);
// Columns of that one character.
int character_width(std::string_view character);

}  // namespace sluice
