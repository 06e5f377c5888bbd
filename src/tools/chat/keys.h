// The control characters that keys send.
#pragma once

namespace sluice {

constexpr unsigned char ctrl(char c) { return static_cast<unsigned char>(c & 0x1f); }
inline constexpr unsigned char kEscape = 0x1b, kDelete = 0x7f;

}  // namespace sluice
