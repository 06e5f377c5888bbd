// Gemma 2: norms before and after attention and MLP, GELU, scaled embeddings, soft-capped scores
// and logits; even layers see a window, odd ones everything. Norm weights in GGUF files have their
// 1 added.
#include "model/families.h"

namespace sluice {

const DecoderTraits kGemma2{
    .post_norms = true,
    .scale_embeddings = true,
    .activation = Activation::gelu_tanh,
    .window = 4096,
    .attention_softcap = 50,
    .final_softcap = 30,
    .window_period = 2,
    .layers_scaled_by_width = 46,  // 27B
};

}  // namespace sluice
