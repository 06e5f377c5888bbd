#include "core/request.h"

namespace sluice {

bool fits(const SamplingSpec& spec, const SamplingLimits& limits) {
  size_t num_bad = 0;
  for (const std::vector<Token>& bad : spec.bad_sequences) {
    if (bad.empty() || bad.size() > limits.bad_length) return false;
    num_bad += bad.size();
  }
  return num_bad <= limits.bad_tokens && spec.logit_bias.size() <= limits.logit_bias &&
         spec.banned_until_min.size() <= limits.banned_until_min &&
         spec.num_logprobs <= limits.num_logprobs && spec.prompt_logprobs <= limits.num_logprobs &&
         spec.logprob_ids.size() <= limits.logprob_ids;
}

const char* not_with_beams(const SamplingSpec& s) {
  if (s.repetition_penalty != 1) return "repetition_penalty";
  if (s.frequency_penalty != 0) return "frequency_penalty";
  if (s.presence_penalty != 0) return "presence_penalty";
  if (s.min_tokens != 0) return "min_tokens";
  if (s.num_logprobs >= 0) return "logprobs";
  if (s.prompt_logprobs >= 0) return "prompt_logprobs";
  if (!s.logit_bias.empty()) return "logit_bias";
  if (!s.allowed.empty()) return "allowed_token_ids";
  if (!s.bad_sequences.empty()) return "bad_words";
  return nullptr;
}

}  // namespace sluice
