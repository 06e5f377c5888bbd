// Gemma 3, its text part: Gemma 2 with q and k normalised instead of soft caps. Five layers in six
// see a window, and those rotate by a base of their own.
#include "model/families.h"

namespace sluice {

const DecoderTraits kGemma3{
    .qk_norm = true,
    .post_norms = true,
    .scale_embeddings = true,
    .activation = Activation::gelu_tanh,
    .window_period = 6,
    .window_rope = true,
    .layers_scaled_by_width = 62,  // 27B
};

}  // namespace sluice
