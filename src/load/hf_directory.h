// A Hugging Face model directory (config.json, safetensors, tokeniser files) as a Checkpoint with
// the names, metadata and layouts of a GGUF file of that model. Tensors that are the same in both
// are read from the mapped files; the others are made when asked for and freed on release.
#pragma once

#include <memory>
#include <string>

#include "base/result.h"
#include "tensor/checkpoint.h"

namespace sluice {

Result<std::unique_ptr<Checkpoint>> open_hf_directory(const std::string& directory);

// Only its text files: a checkpoint without tensors. Weights and config.json may be absent.
Result<std::unique_ptr<Checkpoint>> open_hf_text(const std::string& directory);

}  // namespace sluice
