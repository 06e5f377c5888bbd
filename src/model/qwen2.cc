// Qwen2 and Qwen2.5: biases on q, k and v.
#include "model/families.h"

namespace sluice {

const DecoderTraits kQwen2{.qkv_bias = true};

}  // namespace sluice
