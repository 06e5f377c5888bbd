// A checkpoint with random weights in the shape of a real model, for measuring speed and memory
// where the model's file is not at hand. Metadata and tensor names are those of a GGUF file of that
// model; there is no vocabulary. Data is made when asked for and freed on release.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/result.h"
#include "tensor/checkpoint.h"

namespace sluice {

// Matrices are in `format` (q8_0, then f16, where a row is no multiple of its block); the output
// matrix of a 4-bit model is q8_0. Same arguments, same bytes, whatever the number of threads.
Result<std::unique_ptr<Checkpoint>> random_checkpoint(const std::string& config_json_path,
                                                      Format format,
                                                      uint64_t seed);
// The same from the text of a config.json; `origin` names it in errors.
Result<std::unique_ptr<Checkpoint>> random_checkpoint_from_text(std::string_view config_json,
                                                                const std::string& origin,
                                                                Format format,
                                                                uint64_t seed);

}  // namespace sluice
