// Encodes a row's sampling parameters for a device's packet. Pure: no state, any thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backend/device.h"
#include "base/token.h"
#include "core/request.h"

namespace sluice {

// Which row, and what is known of it so far: the first num_prompt tokens of `history` are prompt.
struct RowStart {
  int32_t slot = 0;
  uint32_t choice = 0;
  std::span<const Token> history;
  size_t num_prompt = 0;
};

// What a device can sample by, as backend/device.h has it.
inline constexpr SamplingLimits kDeviceSampling = {.logit_bias = kMaxLogitBias,
                                                   .banned_until_min = kMaxBanned,
                                                   .bad_length = kMaxBadLength,
                                                   .bad_tokens = kMaxBadTokens,
                                                   .num_logprobs = kMaxTopLogprobs,
                                                   .logprob_ids = 0};
inline bool fits_device(const SamplingSpec& spec) { return fits(spec, kDeviceSampling); }

// Appends the row's lists to `words`, the words of the packet. The spec fits the device.
RowSpec make_row_spec(const SamplingSpec& spec, const RowStart& start, std::vector<int32_t>& words);

}  // namespace sluice
