// What a router wants to know of a request's JSON body without parsing it: where the prompt is,
// whose session it is, whether the answer is a stream. Pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/keyed_hash.h"

namespace sluice {

// Views of the body, raw JSON; empty where the field is not. Of equal keys the last one counts.
struct RequestShape {
  std::string_view tools, system, prompt;  // prompt: messages, prompt or input
  std::string_view session;                // `user` or `prompt_cache_key`
  std::string_view salt;                   // `cache_salt`
  bool stream = false;
  bool complete = false;       // the object was read to its end, and no key has escapes
  bool scores_prompt = false;  // `echo` or `prompt_logprobs`: every position is computed
  bool transfers = false;      // `kv_transfer_params`: somebody else hands the prompt over
};
// Looks at the fields of the outermost object only. What is no JSON gives an empty shape or a part
// of one: the worker says what is wrong with it.
RequestShape read_shape(std::string_view body);

// One prompt that a worker may compute for another one.
bool can_split(const RequestShape& shape);
// A complete object without these fields, and with `added` (`"name":value`) at its end.
std::string replace_fields(std::string_view body,
                           std::span<const std::string_view> dropped,
                           std::string_view added);
// The value of a field of the outermost object, raw; empty: there is none.
std::string_view find_field(std::string_view body, std::string_view name);

inline constexpr size_t kShapeBlockBytes = 512;
inline constexpr int kShapeBlockTokens = 128;  // of text, at four bytes a token
inline constexpr size_t kMostShapeBlocks = 4096;

// Tokens of a prompt: counted where it is token ids, about a quarter of the bytes of text.
int64_t shape_tokens(const RequestShape& shape);
// Tokens of one block, at the prompt's own number of bytes per token.
int shape_block_tokens(const RequestShape& shape);
// A hash of each full block of tools, system and prompt and of all before it. At most
// kMostShapeBlocks.
std::vector<uint64_t> shape_blocks(const RequestShape& shape, const HashKey& key);

}  // namespace sluice
