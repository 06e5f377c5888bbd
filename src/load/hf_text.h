// The text files of a Hugging Face directory as metadata: tokeniser, chat template, special tokens,
// defaults of generation.
#pragma once

#include <string>

#include "base/json.h"
#include "base/result.h"
#include "tensor/checkpoint.h"

namespace sluice {

// Files that are not there are passed over. Sets, where known:
//   tokenizer.huggingface.json             the text of tokenizer.json
//   tokenizer.sentencepiece.model          the bytes of tokenizer.model
//   tokenizer.chat_template[.NAME]         its source
//   tokenizer.huggingface.{bos,eos,...}_token, tokenizer.ggml.{bos,eos,...}_token_id
//   tokenizer.ggml.add_{bos,eos}_token
//   tokenizer.huggingface.class            tokenizer_class of tokenizer_config.json
//   tokenizer.ggml.eos_token_ids           every token that ends an answer
//   general.sampling.*                     of a generation_config.json that samples
// `config` is config.json's object, or null.
Result<void> read_hf_text(const std::string& directory, const json::object* config, Meta& meta);

}  // namespace sluice
