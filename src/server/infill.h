// Prompts of /v1/completions with a suffix: the model fills the gap before it. Io threads.
#pragma once

#include <vector>

#include "server/service.h"

namespace sluice {

// Each prompt with a gap and fields.suffix behind it, as tokens.
Refusal encode_gaps(const Service& service,
                    const CompletionFields& fields,
                    std::vector<std::vector<Token>>& out);

}  // namespace sluice
