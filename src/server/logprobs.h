// Log-probabilities as the API writes them.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "base/json.h"
#include "runtime/collect.h"
#include "server/piece_writer.h"
#include "text/tokenizer.h"

namespace sluice {

// The token's text as valid UTF-8: bytes that are no whole character become U+FFFD.
std::string token_text(const Tokenizer* tokenizer, Token token);
// What log-probabilities call a token: its text, or with `as_ids` "token_id:7".
struct TokenNames {
  const Tokenizer* tokenizer;
  bool as_ids = false;
  std::string operator()(Token token) const;
};
// JSON has no minus infinity.
double finite_logprob(float logprob);
// Code points, which is what clients count offsets in.
size_t num_characters(std::string_view text);

// All below append to `out`; what they are given outlives them.

// {"content": [{token, logprob, bytes, top_logprobs}]}
PieceWriter chat_logprobs(std::string& out,
                          TokenNames names,
                          const std::vector<ScoredToken>& scores);

// Tokens of an echoed prompt, then generated ones. `first` is a token without a score in front (the
// first of an echoed prompt), kNoToken: none.
struct TextScores {
  Token first = kNoToken;
  std::span<const ScoredToken> prompt, output;
};
// {tokens, token_logprobs, top_logprobs, text_offset}; `offset` moves on.
PieceWriter text_logprobs(std::string& out, TokenNames names, TextScores scores, size_t& offset);

// vLLM's prompt_logprobs: null, then {"id": {logprob, rank, decoded_token}} per prompt token.
PieceWriter prompt_logprobs(std::string& out,
                            const Tokenizer* tokenizer,
                            const std::vector<ScoredToken>& scores);

}  // namespace sluice
