// The loaders behind the table of families, one file each.
#pragma once

#include <memory>

#include "model/model.h"

namespace sluice {

Result<std::unique_ptr<Model>> load_llama(Checkpoint&, Backend&, const LoadOptions&);
Result<std::unique_ptr<Model>> load_qwen2(Checkpoint&, Backend&, const LoadOptions&);
Result<std::unique_ptr<Model>> load_qwen3(Checkpoint&, Backend&, const LoadOptions&);

}  // namespace sluice
