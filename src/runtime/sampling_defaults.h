// How tokens are drawn where neither a request nor a flag says: one rule for the API, the page,
// conversations and `sluice run`. Benchmarks and perplexity stay greedy. Pure functions.
#pragma once

#include <optional>
#include <string>

#include "base/json.h"
#include "base/result.h"
#include "core/request.h"
#include "runtime/options.h"
#include "tensor/checkpoint.h"

namespace sluice {

struct SamplingDefaults {
  SamplingSpec spec;   // temperature to repetition_penalty; the rest is SamplingSpec's own
  std::string source;  // "the model's files"
};

// The first that says something: the model's metadata (general.sampling.*, which also holds what a
// generation_config.json says), the makers' advice for models we know by name, our own choice.
// What the first leaves out is off: temperature 1, top_p 1, no penalty.
// GenerationConfig::none: OpenAI's defaults, which are all off.
Result<SamplingDefaults> sampling_defaults(const Meta& meta, GenerationConfig generation_config);

// What a user chose; the defaults fill in the rest.
struct SamplingChoice {
  std::optional<float> temperature, top_p, min_p;
  std::optional<float> repetition_penalty, frequency_penalty, presence_penalty;
  std::optional<int> top_k;
};

// Sets those fields of `spec` and no others.
void apply_sampling(const SamplingDefaults& defaults,
                    const SamplingChoice& choice,
                    SamplingSpec& spec);

// "temperature 0.2, top_p 0.9": what is on.
std::string describe_sampling(const SamplingSpec& spec);
// {"temperature": 0.2, "top_p": 0.9, ...}: all of them, by the names of the API.
json::object sampling_json(const SamplingSpec& spec);

}  // namespace sluice
