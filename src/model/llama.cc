// Llama 1, 2, 3.x, SmolLM2, Mistral. GGUF files store q and k rows permuted for interleaved
// rotation.
#include "model/decoder.h"
#include "model/families.h"

namespace sluice {

Result<std::unique_ptr<Model>> load_llama(Checkpoint& checkpoint,
                                          Backend& backend,
                                          const LoadOptions& options) {
  return Decoder::load(checkpoint, backend, options, {.rope_interleaved = true});
}

}  // namespace sluice
