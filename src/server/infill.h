// Prompts of /v1/completions with a suffix: the model fills the gap before it. Io threads.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "server/service.h"

namespace sluice {

// What follows the gap; nothing where none is asked for. An empty suffix asks for none, as in other
// servers. `body` has been parsed.
std::optional<std::string> gap_suffix(const json::value& body);
// Each prompt with a gap and `suffix` behind it, as tokens.
Refusal encode_gaps(const Service& service,
                    const CompletionFields& fields,
                    const std::string& suffix,
                    std::vector<std::vector<Token>>& out);

}  // namespace sluice
