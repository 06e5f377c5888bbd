// The sixteen levels of MXFP4 (e2m1 floats), doubled so that they are whole.
#pragma once

#include <cstdint>

namespace sluice {

inline constexpr int8_t kMxfp4Levels[16] = {0, 1,  2,  3,  4,  6,  8,  12,
                                            0, -1, -2, -3, -4, -6, -8, -12};

}  // namespace sluice
