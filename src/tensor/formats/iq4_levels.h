// The sixteen uneven levels of IQ4_NL.
#pragma once

#include <cstdint>

namespace sluice {

inline constexpr int8_t kIq4Levels[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                          1,    13,   25,  38,  53,  69,  89,  113};

}  // namespace sluice
