#include "exec/row_spec.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/check.h"
#include "exec/sampler.h"

namespace sluice {

namespace {

int32_t size_of(const auto& v) { return static_cast<int32_t>(v.size()); }

void append(std::vector<int32_t>& words, std::span<const Token> tokens) {
  words.insert(words.end(), tokens.begin(), tokens.end());
}

// Entries of one id keep their order: biases add up in it.
void append_bias(const SamplingSpec& spec, std::vector<int32_t>& words) {
  std::vector<std::pair<Token, float>> bias = spec.logit_bias;
  std::stable_sort(bias.begin(), bias.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  for (auto [t, value] : bias) words.push_back(t);
  for (auto [t, value] : bias) words.push_back(std::bit_cast<int32_t>(value));
}

// Returns the number of tokens before the last ones.
int32_t append_bad(const SamplingSpec& spec, std::vector<int32_t>& words) {
  std::vector<const std::vector<Token>*> bad;
  for (const std::vector<Token>& b : spec.bad_sequences) bad.push_back(&b);
  std::stable_sort(bad.begin(), bad.end(),
                   [](const auto* a, const auto* b) { return a->back() < b->back(); });
  for (const auto* b : bad) words.push_back(b->back());
  int32_t end = 0;
  for (const auto* b : bad) words.push_back(end += size_of(*b) - 1);
  for (const auto* b : bad) append(words, std::span(*b).first(b->size() - 1));
  return end;
}

}  // namespace

RowSpec make_row_spec(const SamplingSpec& spec,
                      const RowStart& start,
                      std::vector<int32_t>& words) {
  static_assert(kMaxBadLength == kMaxBadSequence);
  CHECK(fits_device(spec) && start.num_prompt <= start.history.size());
  RowSpec r{};
  r.seed = spec.seed;
  r.slot = start.slot;
  r.choice = start.choice;
  r.inv_temperature = spec.temperature >= kGreedyTemperature ? 1.0f / spec.temperature : -1.0f;
  r.x_min = spec.min_p > 0 ? std::clamp(std::log(spec.min_p), -60.0f, 0.0f) : -60.0f;
  r.top_k = std::max(spec.top_k, 0);
  r.top_p = spec.top_p < 1 ? spec.top_p : 1.0f;
  r.repetition_penalty = spec.repetition_penalty;
  r.frequency_penalty = spec.frequency_penalty;
  r.presence_penalty = spec.presence_penalty;
  r.min_tokens = spec.min_tokens;
  r.lists_at = static_cast<uint32_t>(words.size());

  append_bias(spec, words);
  r.num_bias = size_of(spec.logit_bias);
  std::vector<Token> banned = spec.banned_until_min;
  std::sort(banned.begin(), banned.end());
  append(words, banned);
  r.num_banned = size_of(banned);
  append(words, spec.allowed);
  r.num_allowed = size_of(spec.allowed);
  r.num_bad_earlier = append_bad(spec, words);
  r.num_bad = size_of(spec.bad_sequences);

  std::span<const Token> prompt = start.history.first(start.num_prompt);
  std::span<const Token> output = start.history.subspan(start.num_prompt);
  r.num_generated = size_of(output);
  bool penalised =
      spec.repetition_penalty != 1 || spec.frequency_penalty != 0 || spec.presence_penalty != 0;
  if (spec.repetition_penalty == 1) prompt = {};
  if (!penalised) {
    size_t tail = spec.bad_sequences.empty() ? 0 : size_t{kMaxBadLength};
    output = output.last(std::min(output.size(), tail));
  }
  append(words, prompt);
  append(words, output);
  r.num_prompt = size_of(prompt);
  r.num_output = size_of(output);
  return r;
}

}  // namespace sluice
