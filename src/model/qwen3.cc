// Qwen3: q and k are normalised per head before rotation; heads need not divide the hidden size.
#include "model/decoder.h"
#include "model/families.h"

namespace sluice {

Result<std::unique_ptr<Model>> load_qwen3(Checkpoint& checkpoint,
                                          Backend& backend,
                                          const LoadOptions& options) {
  return Decoder::load(checkpoint, backend, options, {.qk_norm = true});
}

}  // namespace sluice
