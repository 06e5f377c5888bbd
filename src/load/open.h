// From the name a user gives to an open model file, its tokeniser and its chat template.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "base/result.h"
#include "tensor/checkpoint.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace sluice {

// `name`: smollm2 (fetched into the user's cache on first use), a path to a GGUF file, a Hugging
// Face model directory, or random:SHAPE for random weights, SHAPE being a shipped shape's name or a
// config.json.
// `format` and `seed` are for random weights.
Result<std::unique_ptr<Checkpoint>> open_model(const std::string& name,
                                               const std::string& format,
                                               uint64_t seed);

// For what needs only the text side: also a vocabulary-only GGUF file, or a directory that holds
// only tokeniser files. The checkpoint may be without tensors.
Result<std::unique_ptr<Checkpoint>> open_text(const std::string& name);

bool has_vocabulary(const Checkpoint& checkpoint);
Result<std::unique_ptr<Tokenizer>> load_tokenizer(const Checkpoint& checkpoint);
// Nothing when the file has none.
Result<std::optional<ChatTemplate>> load_chat_template(const Checkpoint& checkpoint);

// Where the default model is kept: $SLUICE_CACHE or the user's cache directory.
std::string default_model_path();

}  // namespace sluice
