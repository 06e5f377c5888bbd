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

void read_rope(
    RopeSpec& rope, Reader& r, Checkpoint* data, const Checkpoint& checkpoint, int max_len) {
  double base = r.number("rope.freq_base", 1, 1e12, 10000.0);
  rope.inv_freq.resize(static_cast<size_t>(rope.dims / 2));
  for (size_t i = 0; i < rope.inv_freq.size(); ++i) {
    rope.inv_freq[i] =
        static_cast<float>(1.0 / std::pow(base, 2.0 * static_cast<double>(i) / rope.dims));
  }
  std::string type = r.string("rope.scaling.type");
  double factor = 1;
  if (!type.empty() && type != "none") factor = r.number("rope.scaling.factor", 1e-3, 1e6, 1.0);
  if (type == "linear") {
    for (float& f : rope.inv_freq) f = static_cast<float>(f / factor);
  } else if (type == "yarn") {
    scale_yarn(rope, base, factor, r, max_len);
  } else if (!type.empty() && type != "none") {
    r.fail(
        strf("RoPE scaling %s is not supported: linear, yarn and llama3 are", quote(type).c_str()));
  }
  // Llama 3's scaling comes as a tensor of divisors.
  if (const TensorInfo* t = checkpoint.find("rope_freqs.weight"); t && data) {
    if (t->format != Format::f32 ||
        t->rows * t->cols != static_cast<int64_t>(rope.inv_freq.size())) {
      r.fail("rope_freqs.weight must be f32 with one value per rotated pair");
      return;
    }
    std::vector<float> divisors(rope.inv_freq.size());
    format_info(t->format).decode(data->data(*t).data(), divisors.data(), t->cols * t->rows);
    data->release(*t);
    for (size_t i = 0; i < divisors.size(); ++i) {
      if (!(divisors[i] > 0)) {
        r.fail("rope_freqs.weight holds a value that is not positive");
        return;
      }
      rope.inv_freq[i] /= divisors[i];
    }
  }
}

}  // namespace

Result<DecoderConfig> read_decoder_config(const Checkpoint& checkpoint,
                                          Checkpoint* data,
                                          bool interleaved) {
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
  c.window = r.integer("attention.sliding_window", 0, 1 << 30, 0);
  c.eps = static_cast<float>(r.number("attention.layer_norm_rms_epsilon", 0, 1));
  c.rope.interleaved = interleaved;
  c.rope.dims = r.integer("rope.dimension_count", 2, 256, c.head_dim);
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
  if (r.error().empty()) read_rope(c.rope, r, data, checkpoint, c.max_len);
  const TensorInfo* embed = checkpoint.find("token_embd.weight");
  if (!embed) r.fail("the model file has no tensor token_embd.weight (a vocabulary-only file?)");
  if (!r.error().empty()) return Error{400, r.error()};
  if (embed->rows < 1 || embed->rows > (1 << 24))
    return Error{400, "token_embd.weight has an impossible shape"};
  c.vocab = static_cast<int>(embed->rows);
  return c;
}

}  // namespace sluice
