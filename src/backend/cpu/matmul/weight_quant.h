// Kinds of quantisation at load on the CPU. Included by files of every ISA: no inline functions.
#pragma once

#include <cstdint>

namespace sluice {

enum class WeightQuant : uint8_t {
  none,  // the tensor's own format
  w8a8,  // int8 with a scale per row of the matrix; activations int8 with a scale per row
  w4,    // 4 bits in groups of 32: kW4Format (load_quant.h)
  u8,    // uint8 with a scale and a minimum per row; activations f32
};

}  // namespace sluice
