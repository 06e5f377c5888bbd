// Helpers shared by the readers of tokenizer.json. Used only by the tokenizer_json_*.cc files.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "text/tokenizer_spec.h"

namespace sluice {

// A member that is there and not null, else nullptr.
const json::value* json_field(const json::object& object, std::string_view name);
Result<bool> json_bool(const json::object& object, std::string_view name, bool otherwise);
// The member must be there.
Result<std::string> json_text(const json::object& object, std::string_view name);
Result<std::string> json_text(const json::object& object,
                              std::string_view name,
                              std::string_view otherwise);
Result<size_t> json_count(const json::object& object, std::string_view name, size_t otherwise);
// A token id: an integer from 0 to 2^24.
Result<Token> json_token(const json::value& value, std::string_view what);
// The object's "type", and an error for what is no object.
Result<std::string> json_type(const json::value& value, std::string_view what);

// Nested sequences are flattened; their depth is that of the JSON text, which is bounded.
Result<void> read_normalizer(const json::value& value, std::vector<NormalizerStep>& steps);
Result<void> read_pre_tokenizer(const json::value& value, std::vector<PreTokenizerStep>& steps);
Result<void> read_post_processor(const json::value& value, TokenizerSpec& spec);
Result<void> read_decoder(const json::value& value, bool& fused, TokenizerSpec& spec);

}  // namespace sluice
