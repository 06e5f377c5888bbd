// A token id, as every layer sees it: 32 bits from the tokeniser to the device.
#pragma once

#include <cstdint>

namespace sluice {
using Token = int32_t;
inline constexpr Token kNoToken = -1;
}  // namespace sluice
