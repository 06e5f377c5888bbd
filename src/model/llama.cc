// Llama 1, 2, 3.x, SmolLM2, Mistral. GGUF files store q and k rows permuted for interleaved
// rotation.
#include "model/families.h"

namespace sluice {

const DecoderTraits kLlama{.rope_interleaved = true};

}  // namespace sluice
