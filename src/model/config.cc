#include "model/config.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/str.h"
#include "tensor/formats/all.h"

namespace sluice {

namespace {

// Reads "<arch>.<key>" with range checks; remembers the first failure.
class Reader {
 public:
  Reader(const Meta& meta, std::string arch) : meta_(meta), arch_(std::move(arch)) {}

  int integer(const char* key, int64_t lo, int64_t hi, std::optional<int64_t> fallback = {}) {
    std::optional<int64_t> v = meta_.integer(arch_ + "." + key);
    // Per-layer arrays are accepted where all layers agree.
    if (const auto* list = meta_.integers(arch_ + "." + key); !v && list && !list->empty()) {
      if (std::ranges::all_of(*list, [&](int64_t x) { return x == list->front(); }))
        v = list->front();
    }
    if (!v && has(key)) {
      fail(strf("%s.%s is not a whole number, the same for all layers", arch_.c_str(), key));
      return static_cast<int>(lo);
    }
    if (!v) v = fallback;
    if (!v) {
      fail(strf("the model file has no %s.%s", arch_.c_str(), key));
      return static_cast<int>(lo);
    }
    if (*v < lo || *v > hi) {
      fail(strf("%s.%s is %lld, outside %lld to %lld", arch_.c_str(), key,
                static_cast<long long>(*v), static_cast<long long>(lo),
                static_cast<long long>(hi)));
      return static_cast<int>(lo);
    }
    return static_cast<int>(*v);
  }

  double number(const char* key, double lo, double hi, std::optional<double> fallback = {}) {
    std::optional<double> v = meta_.number(arch_ + "." + key);
    if (!v && !has(key)) v = fallback;
    if (!v || !(*v >= lo && *v <= hi)) {
      fail(v ? strf("%s.%s is %g, outside %g to %g", arch_.c_str(), key, *v, lo, hi)
             : strf("the model file has no number %s.%s", arch_.c_str(), key));
      return lo;
    }
    return *v;
  }

  // One flag per layer, from booleans or integers; empty when the key is none of these lists.
  std::vector<bool> flags(const char* key) const {
    std::string name = arch_ + "." + key;
    const MetaValue* v = meta_.find(name);
    if (const auto* list = v ? std::get_if<std::vector<bool>>(v) : nullptr) return *list;
    std::vector<bool> out;
    if (const auto* list = meta_.integers(name)) {
      for (int64_t x : *list) out.push_back(x != 0);
    }
    return out;
  }

  std::string string(const char* key) const {
    const std::string* s = meta_.string(arch_ + "." + key);
    return s ? *s : std::string();
  }
  bool has(const char* key) const { return meta_.has(arch_ + "." + key); }

  void fail(std::string message) {
    if (error_.empty()) error_ = std::move(message);
  }
  const std::string& error() const { return error_; }

 private:
  const Meta& meta_;
  std::string arch_;
  std::string error_;
};

// YaRN (Peng et al., 2023): low frequencies are interpolated, high ones kept, a ramp between.
void scale_yarn(RopeSpec& rope, double base, double factor, Reader& r, int max_len) {
  double original = r.integer("rope.scaling.original_context_length", 1, 1 << 30, max_len);
  double beta_fast = r.number("rope.scaling.yarn_beta_fast", 1e-3, 1e6, 32.0);
  double beta_slow = r.number("rope.scaling.yarn_beta_slow", 1e-3, 1e6, 1.0);
  auto correction = [&](double rotations) {
    return rope.dims * std::log(original / (rotations * 2 * std::numbers::pi)) /
           (2 * std::log(base));
  };
  double low = std::max(std::floor(correction(beta_fast)), 0.0);
  double high = std::min(std::ceil(correction(beta_slow)), rope.dims - 1.0);
  if (low == high) high += 0.001;
  for (size_t i = 0; i < rope.inv_freq.size(); ++i) {
    double ramp = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    double f = rope.inv_freq[i];
    rope.inv_freq[i] = static_cast<float>(f / factor * ramp + f * (1 - ramp));
  }
  double attention = factor > 1 ? 0.1 * std::log(factor) + 1 : 1;
  rope.attention_factor =
      static_cast<float>(r.number("rope.scaling.attn_factor", 0, 1e3, attention));
}

// Divides the frequencies by a tensor's values, one per rotated pair.
void divide_frequencies(RopeSpec& rope, const char* name, Reader& r, Checkpoint& data) {
  const TensorInfo* t = data.find(name);
  if (!t) return r.fail(strf("the model file has no tensor %s", name));
  if (t->format != Format::f32 || t->rows * t->cols != static_cast<int64_t>(rope.inv_freq.size()))
    return r.fail(strf("%s must be f32 with one value per rotated pair", name));
  std::vector<float> divisors(rope.inv_freq.size());
  format_info(t->format).decode(data.data(*t).data(), divisors.data(), t->cols * t->rows);
  data.release(*t);
  for (size_t i = 0; i < divisors.size(); ++i) {
    if (!(divisors[i] > 0)) return r.fail(strf("%s holds a value that is not positive", name));
    rope.inv_freq[i] /= divisors[i];
  }
}

// LongRoPE (Ding et al., 2024): one set of divisors for sequences within the context the model was
// first trained for, one for longer ones. A sequence cannot change sets, so the longest decides.
void scale_longrope(RopeSpec& rope, Reader& r, Checkpoint* data, int trained_len, int max_len) {
  int original = r.integer("rope.scaling.original_context_length", 2, 1 << 30, trained_len);
  double factor = static_cast<double>(trained_len) / original;
  double attention = factor > 1 ? std::sqrt(1 + std::log(factor) / std::log(original)) : 1;
  rope.attention_factor =
      static_cast<float>(r.number("rope.scaling.attn_factor", 0, 1e3, attention));
  if (!data) return;
  bool is_long = (max_len > 0 ? max_len : trained_len) > original;
  divide_frequencies(rope, is_long ? "rope_factors_long.weight" : "rope_factors_short.weight", r,
                     *data);
}

void set_frequencies(RopeSpec& rope, double base) {
  rope.inv_freq.resize(static_cast<size_t>(rope.dims / 2));
  for (size_t i = 0; i < rope.inv_freq.size(); ++i) {
    rope.inv_freq[i] =
        static_cast<float>(1.0 / std::pow(base, 2.0 * static_cast<double>(i) / rope.dims));
  }
}

void read_rope(RopeSpec& rope, Reader& r, Checkpoint* data, int trained_len, int max_len) {
  double base = r.number("rope.freq_base", 1, 1e12, 10000.0);
  set_frequencies(rope, base);
  std::string type = r.string("rope.scaling.type");
  // GGUF files need not name this one: its tensors are there.
  if (data && (data->find("rope_factors_long.weight") || data->find("rope_factors_short.weight")))
    type = "longrope";
  double factor = 1;
  if (!type.empty() && type != "none") factor = r.number("rope.scaling.factor", 1e-3, 1e6, 1.0);
  if (type == "linear") {
    for (float& f : rope.inv_freq) f = static_cast<float>(f / factor);
  } else if (type == "yarn") {
    scale_yarn(rope, base, factor, r, trained_len);
  } else if (type == "longrope") {
    scale_longrope(rope, r, data, trained_len, max_len);
  } else if (!type.empty() && type != "none") {
    r.fail(strf("RoPE scaling %s is not supported: linear, yarn, llama3 and longrope are",
                quote(type).c_str()));
  }
  // Llama 3's scaling comes as a tensor of divisors.
  if (data && data->find("rope_freqs.weight")) {
    divide_frequencies(rope, "rope_freqs.weight", r, *data);
  }
}

// Which layers see a window: the metadata's own pattern, a period or a flag per layer, or the
// family's.
std::vector<int> read_windows(Reader& r, const DecoderTraits& traits, int num_layers) {
  int window = r.integer("attention.sliding_window", 0, 1 << 30, traits.window);
  std::vector<int> windows(static_cast<size_t>(num_layers), window);
  if (window == 0) return windows;
  std::vector<bool> flags = r.flags("attention.sliding_window_pattern");
  int period = traits.window_period;
  if (flags.empty()) {
    period = r.integer("attention.sliding_window_pattern", 0, 1024, period);
  } else if (flags.size() != windows.size()) {
    r.fail(strf("attention.sliding_window_pattern has %zu entries for %d layers", flags.size(),
                num_layers));
    return windows;
  }
  for (size_t l = 0; l < windows.size(); ++l) {
    bool sees_all =
        flags.empty() ? period > 0 && (static_cast<int>(l) + 1) % period == 0 : !flags[l];
    if (sees_all) windows[l] = 0;
  }
  return windows;
}

// What is done to q·k before the softmax, and to the logits.
void read_scales(DecoderConfig& c, Reader& r, const DecoderTraits& traits) {
  double width = c.num_layers == traits.layers_scaled_by_width
                     ? static_cast<double>(c.hidden) / c.num_heads
                     : c.head_dim;
  c.attention_scale =
      static_cast<float>(r.number("attention.scale", 1e-6, 1e6, 1 / std::sqrt(width)));
  c.attention_softcap =
      static_cast<float>(r.number("attn_logit_softcapping", 0, 1e6, traits.attention_softcap));
  c.final_softcap =
      static_cast<float>(r.number("final_logit_softcapping", 0, 1e6, traits.final_softcap));
}

void check_heads(const DecoderConfig& c, Reader& r) {
  if (c.num_heads % c.num_kv_heads != 0) {
    r.fail(strf("%d attention heads cannot share %d kv heads evenly", c.num_heads, c.num_kv_heads));
  }
  if (c.head_dim % 8 != 0) r.fail(strf("head dimension %d is not a multiple of 8", c.head_dim));
  if (c.rope.dims % 2 != 0 || c.rope.dims > c.head_dim) {
    r.fail(strf("rotary dimensions %d do not fit head dimension %d", c.rope.dims, c.head_dim));
  }
  if (r.has("attention.value_length") &&
      r.integer("attention.value_length", 1, 4096) != c.head_dim) {
    r.fail("keys and values of different length are not supported");
  }
}

}  // namespace

Result<DecoderConfig> read_decoder_config(const Checkpoint& checkpoint,
                                          Checkpoint* data,
                                          const DecoderTraits& traits,
                                          int max_len) {
  const std::string* arch = checkpoint.meta().string("general.architecture");
  if (!arch)
    return Error{400, "the model file does not say its architecture (general.architecture)"};
  Reader r(checkpoint.meta(), *arch);
  DecoderConfig c;
  c.arch = *arch;
  c.num_layers = r.integer("block_count", 1, 1024);
  c.hidden = r.integer("embedding_length", 8, 1 << 17);
  c.ffn = r.integer("feed_forward_length", 8, 1 << 20);
  c.num_heads = r.integer("attention.head_count", 1, 4096);
  c.num_kv_heads = r.integer("attention.head_count_kv", 1, 4096, c.num_heads);
  c.head_dim = r.integer("attention.key_length", 8, 256, c.hidden / c.num_heads);
  c.max_len = r.integer("context_length", 1, 1 << 30);
  c.windows = read_windows(r, traits, c.num_layers);
  c.eps = static_cast<float>(r.number(
      traits.layer_norm ? "attention.layer_norm_epsilon" : "attention.layer_norm_rms_epsilon", 0,
      1));
  read_scales(c, r, traits);
  if (traits.rotary) {
    c.rope.interleaved = traits.rope_interleaved;
    c.rope.dims = r.integer("rope.dimension_count", 2, 256, c.head_dim);
  }
  check_heads(c, r);
  if (r.error().empty() && traits.rotary) {
    if (traits.window_rope) {
      c.window_rope = c.rope;
      set_frequencies(*c.window_rope, r.number("rope.freq_base_swa", 1, 1e12, 10000.0));
    }
    read_rope(c.rope, r, data, c.max_len, max_len);
  }
  const TensorInfo* embed = checkpoint.find("token_embd.weight");
  if (!embed) r.fail("the model file has no tensor token_embd.weight (a vocabulary-only file?)");
  if (!r.error().empty()) return Error{400, r.error()};
  if (embed->rows < 1 || embed->rows > (1 << 24))
    return Error{400, "token_embd.weight has an impossible shape"};
  c.vocab = static_cast<int>(embed->rows);
  return c;
}

}  // namespace sluice
