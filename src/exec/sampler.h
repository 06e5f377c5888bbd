// From one row of logits to one token. Pure: the result depends on that row's logits, spec, history
// and (seed, choice, position), never on other rows, threads or earlier calls.
// Rows may be sampled in parallel, each thread with its own SampleScratch.
//
// Order: log-probabilities are taken from the raw logits (log-softmax before anything below), then
// masks (grammar, allowed, banned before min_tokens, bad sequences), logit_bias, repetition penalty
// (prompt and output; divides positive, multiplies negative logits), frequency and presence penalty
// (output), temperature (below kGreedyTemperature: argmax here), min_p (relative to the most likely
// token), top_k, top_p (the smallest set of most likely tokens whose share of what is left reaches
// p), and one draw by inverse distribution function in id order. Equal logits rank by lower id,
// everywhere. NaN counts as -inf. A row without any finite logit gives the lowest allowed id.
//
// A grammar mask is never left: where it allows nothing but ids that are banned before min_tokens,
// those are allowed, and where the masks together leave nothing, kNoToken is the result.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backend/best.h"
#include "base/token.h"
#include "core/request.h"
#include "core/step_plan.h"

namespace sluice {

inline constexpr float kGreedyTemperature = 1e-5f;
inline constexpr size_t kMaxBadSequence = 32;   // tokens
inline constexpr float kMinLogprob = -9999.0f;  // reported for probability 0: JSON has no infinity

// What sampling remembers of one row. Owned by the executor, one per slot.
class RowState {
 public:
  // `history` is what is known so far; its first `num_prompt` tokens are the prompt. Reuses memory.
  void open(const SamplingSpec& spec, std::span<const Token> history, size_t num_prompt);
  // A token was sampled. O(1); allocates only when the set of distinct tokens doubles, and never
  // without penalties.
  void add(Token token);
  // Grammar mask, in force until set again: bit t%32 of word t/32 allows token t; tokens past its
  // end are forbidden. Empty: no mask. The caller keeps the memory alive while it is in force.
  void set_mask(std::span<const uint32_t> mask) { mask_ = mask; }

  const SamplingSpec& spec() const { return spec_; }
  int num_generated() const { return num_generated_; }

  // Everything that changes logits; false when nothing does and the raw row can be used.
  bool adjusts() const;
  void adjust(std::span<float> logits) const;
  // Where to fall back when no logit is finite. Nothing is allowed: kNoToken with a grammar mask,
  // else 0.
  Token lowest_allowed(int vocab) const;

 private:
  struct Seen {
    Token token;
    int32_t num_generated;  // 0: in the prompt only
  };
  Seen& seen(Token token);
  void grow();
  void apply_masks(std::span<float> logits) const;
  bool bans_ends(int vocab) const;
  Token first_allowed(int vocab, bool ban_ends) const;
  bool is_bad(Token token) const;
  void apply_penalties(std::span<float> logits) const;

  SamplingSpec spec_;
  std::span<const uint32_t> mask_;
  int num_generated_ = 0;
  bool penalised_ = false;
  std::vector<Token> allowed_;  // the spec's, sorted
  std::vector<Token> tail_;     // the last tokens of the output: what bad sequences look back on
  std::vector<Seen> seen_;      // distinct tokens, in order of first appearance
  std::vector<int32_t> table_;  // open addressing over seen_, power of two; -1 empty
};

// Memory of one sampling thread; grows to the vocabulary on first use, then stays.
struct SampleScratch {
  // `weight` is an integer held in a double: sums are exact, whatever their order.
  struct Candidate {
    float logit;
    Token id;
    double weight;
  };
  std::vector<Candidate> candidates;
  std::vector<float> block_max, order;
  std::vector<double> block_sum, histogram;
  std::vector<float> weight, raw;
  bool full_sort = false;  // put all tokens in order for top_k and top_p: slower, the same result
};

// Whether the largest logit is all that sample_row would look at: then pick() does.
bool is_plain_greedy(const RowState& row);
Token pick(const Best& best, const RowState& row, int vocab);

// logits [vocab], overwritten. `position` is the position the new token will have.
// With spec.num_logprobs >= 0 and `top` not null, appends the chosen token's TopLogprob and then
// those of logprob_ids, or without any the num_logprobs most likely ones.
Token sample_row(float* logits,
                 int vocab,
                 const RowState& row,
                 int choice,
                 int64_t position,
                 std::vector<TopLogprob>* top,
                 SampleScratch& scratch);

// Which tokens are reported beside the one that is scored: `ids`, each below vocab, or without any
// the num_top most likely ones.
struct ReportedTokens {
  int num_top = 0;
  std::span<const Token> ids = {};
};

// Scores the known token `actual` at `position` under the raw logits [vocab] of its predecessor:
// appends its TopLogprob and then those of `report`.
void score_row(const float* logits,
               int vocab,
               Token actual,
               int64_t position,
               const ReportedTokens& report,
               std::vector<TopLogprob>& out,
               SampleScratch& scratch);

}  // namespace sluice
