// Log-probabilities as the API writes them.
#pragma once

#include <string>
#include <vector>

#include "base/json.h"
#include "runtime/collect.h"
#include "text/tokenizer.h"

namespace sluice {

// The token's text as valid UTF-8: bytes that are no whole character become U+FFFD.
std::string token_text(const Tokenizer* tokenizer, Token token);
// JSON has no minus infinity.
double finite_logprob(float logprob);
// Code points, which is what clients count offsets in.
size_t num_characters(std::string_view text);

// {"content": [{token, logprob, bytes, top_logprobs}]}
json::object chat_logprobs(const Tokenizer* tokenizer, const std::vector<ScoredToken>& scores);

// {tokens, token_logprobs, top_logprobs, text_offset}. `first` is a token without a score in front
// (the first of an echoed prompt), kNoToken: none. `offset` moves on.
json::object text_logprobs(const Tokenizer* tokenizer,
                           Token first,
                           const std::vector<const ScoredToken*>& scores,
                           size_t& offset);

// vLLM's prompt_logprobs: null, then {"id": {logprob, rank, decoded_token}} per prompt token.
json::array prompt_logprobs(const Tokenizer* tokenizer, const std::vector<ScoredToken>& scores);

}  // namespace sluice
