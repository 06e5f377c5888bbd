// Phi-3, Phi-3.5, Phi-4-mini: fused tensors, and for long contexts two sets of divisors of the
// rotary frequencies (longrope). Phi-4-mini rotates only some dimensions of a head.
#include "model/families.h"

namespace sluice {

const DecoderTraits kPhi3{.fused_tensors = true};

}  // namespace sluice
