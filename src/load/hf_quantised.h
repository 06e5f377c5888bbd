// Finds the tensors that hold a quantised matrix in a Hugging Face checkpoint, and checks them:
// what it returns fits the model and can be converted. No state.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "load/hf_codes.h"
#include "load/hf_quant.h"
#include "load/hf_shards.h"
#include "load/hf_tensors.h"

namespace sluice {

struct HfQuantised {
  CodeSource source;  // views the files
  std::vector<const HfEntry*> entries;
};

// True if the files hold the codes of this matrix, by any method.
bool has_codes(const HfShards& shards, const HfTensor& tensor);

// A matrix that has_codes().
Result<HfQuantised> find_quantised(const HfShards& shards,
                                   const HfTensor& tensor,
                                   const HfQuant& quant);

// Scales of activations, and of K and V: ours are found as they are computed.
bool is_activation_scale(std::string_view name);

// "'FILE': tensor 'NAME' WHAT"
Error tensor_error(const HfShards& shards, const HfEntry& e, const std::string& what);
Result<void> check_tensor_shape(const HfShards& shards,
                                const HfEntry& e,
                                const std::vector<int64_t>& shape);

}  // namespace sluice
