// Qwen3: q and k are normalised per head before rotation; heads need not divide the hidden size.
#include "model/families.h"

namespace sluice {

const DecoderTraits kQwen3{.qk_norm = true};

}  // namespace sluice
