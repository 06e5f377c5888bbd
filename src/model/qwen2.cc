// Qwen2 and Qwen2.5: biases on q, k and v.
#include "model/decoder.h"
#include "model/families.h"

namespace sluice {

Result<std::unique_ptr<Model>> load_qwen2(Checkpoint& checkpoint,
                                          Backend& backend,
                                          const LoadOptions& options) {
  return Decoder::load(checkpoint, backend, options, {.qkv_bias = true});
}

}  // namespace sluice
