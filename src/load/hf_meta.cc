#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

#include "load/hf_config.h"

namespace sluice {
namespace {

void write_rope(const HfConfig& c, const std::string& arch, Meta& meta) {
  const HfRope& rope = c.rope;
  meta.set(arch + "rope.dimension_count", static_cast<uint64_t>(rope.dims));
  meta.set(arch + "rope.freq_base", rope.theta);
  const std::string scaling = arch + "rope.scaling.";
  if (rope.scaling == "linear" || rope.scaling == "yarn") {  // the others come as tensors
    meta.set(scaling + "type", rope.scaling);
    meta.set(scaling + "factor", rope.factor);
  }
  if (rope.scaling == "yarn" || rope.scaling == "longrope") {
    meta.set(scaling + "original_context_length", static_cast<uint64_t>(rope.original_context));
  }
  if (rope.scaling == "yarn") {
    meta.set(scaling + "yarn_beta_fast", rope.beta_fast);
    meta.set(scaling + "yarn_beta_slow", rope.beta_slow);
  }
  if (rope.attention_factor > 0) meta.set(scaling + "attn_factor", rope.attention_factor);
}

}  // namespace

void write_meta(const HfConfig& c, Meta& meta) {
  meta.set("general.architecture", c.arch);
  const std::string arch = c.arch + ".";
  const std::pair<const char*, int> counts[] = {
      {"block_count", c.num_layers},
      {"context_length", c.context},
      {"embedding_length", c.hidden},
      {"feed_forward_length", c.ffn},
      {"vocab_size", c.vocab},
      {"attention.head_count", c.num_heads},
      {"attention.head_count_kv", c.num_kv_heads},
      {"attention.key_length", c.head_dim},
      {"attention.value_length", c.head_dim},
  };
  for (const auto& [key, value] : counts) meta.set(arch + key, static_cast<uint64_t>(value));
  const bool rms = c.arch != "gpt2";
  meta.set(arch + (rms ? "attention.layer_norm_rms_epsilon" : "attention.layer_norm_epsilon"),
           c.eps);
  if (c.window) meta.set(arch + "attention.sliding_window", static_cast<uint64_t>(c.window));
  if (c.rope.dims) write_rope(c, arch, meta);
  for (const auto& [key, value] : c.extra) meta.set(arch + key, value);
}

std::vector<float> llama3_divisors(const HfRope& rope) {
  std::vector<float> divisors(static_cast<size_t>(rope.dims / 2));
  const double original = rope.original_context;
  for (size_t i = 0; i < divisors.size(); ++i) {
    const double frequency = std::pow(rope.theta, -2.0 * static_cast<double>(i) / rope.dims);
    const double turns = original * frequency / (2 * std::numbers::pi);  // within the old context
    double smooth = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor);
    smooth = std::clamp(smooth, 0.0, 1.0);
    divisors[i] = static_cast<float>(1 / ((1 - smooth) / rope.factor + smooth));
  }
  return divisors;
}

}  // namespace sluice
