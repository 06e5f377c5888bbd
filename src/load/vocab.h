// The tokenizer.ggml.* metadata of a model file as a VocabSpec.
#pragma once

#include "base/result.h"
#include "tensor/checkpoint.h"
#include "text/vocab.h"

namespace sluice {

// What the file leaves out gets the defaults of its tokenizer kind. Tokenizer::make checks the
// rest.
Result<VocabSpec> vocab_from_meta(const Meta& meta);

}  // namespace sluice
