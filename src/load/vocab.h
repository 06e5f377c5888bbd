// The tokenizer that a model file's metadata describes: tokenizer.ggml.*, the text of a
// tokenizer.json, or a SentencePiece model.
#pragma once

#include <memory>

#include "base/result.h"
#include "tensor/checkpoint.h"
#include "text/tokenizer.h"
#include "text/vocab.h"

namespace sluice {

// From tokenizer.ggml.*. What the file leaves out gets the defaults of its tokenizer kind.
// Tokenizer::make checks the rest.
Result<VocabSpec> vocab_from_meta(const Meta& meta);

// From tokenizer.ggml.tokens where the file has them, else from tokenizer.huggingface.json, else
// from tokenizer.sentencepiece.model; with the ids that tokenizer.ggml.*_token_id and
// tokenizer.ggml.eos_token_ids name.
Result<std::unique_ptr<Tokenizer>> tokenizer_from_meta(const Meta& meta);

}  // namespace sluice
