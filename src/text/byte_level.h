// The alphabet of byte-level BPE: every byte is spelled as one printable character (space as
// U+0120).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace sluice {

std::string byte_level_char(uint8_t byte);
std::optional<uint8_t> byte_level_byte(char32_t c);

// The bytes a vocabulary entry spells; nullopt where it has a character outside the alphabet.
std::optional<std::string> byte_level_decode(std::string_view text);

}  // namespace sluice
