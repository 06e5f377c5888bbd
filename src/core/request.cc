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

}  // namespace sluice
