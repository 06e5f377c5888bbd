// Declarations behind the table of families (table.cc): each family's traits, and its loader where
// it is not the shared decoder's.
#pragma once

#include <memory>

#include "model/config.h"
#include "model/model.h"

namespace sluice {

extern const DecoderTraits kGemma2, kGemma3, kGpt2, kLlama, kPhi3, kQwen2, kQwen3;

using LoadedModel = Result<std::unique_ptr<Model>>;
LoadedModel load_decoder(const ModelSource&,
                         WeightStore&,
                         const LoadOptions&,
                         const DecoderTraits&);
LoadedModel load_gpt2(const ModelSource&, WeightStore&, const LoadOptions&, const DecoderTraits&);

}  // namespace sluice
