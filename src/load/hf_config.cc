#include "load/hf_config.h"

#include <cmath>
#include <optional>

#include "load/hf_fields.h"

namespace sluice {
namespace {

constexpr int kMaxContext = 1 << 30;

void read_longrope(HfRope& rope, HfFields f, HfFields& top, int context) {
  const auto pairs = static_cast<size_t>(rope.dims / 2);
  rope.short_factor = f.positives("short_factor", pairs);
  rope.long_factor = f.positives("long_factor", pairs);
  const int old = f.integer("original_max_position_embeddings", 2, kMaxContext,
                            top.integer("original_max_position_embeddings", 2, kMaxContext, 4096));
  rope.original_context = old;
  const double scale = static_cast<double>(context) / old;
  const double usual = scale > 1 ? std::sqrt(1 + std::log(scale) / std::log(old)) : 1;
  rope.attention_factor = f.number("attention_factor", 1e-3, 1e3, usual);
}

void read_scaling(HfRope& rope, HfFields f, HfFields& top, int context) {
  std::string type = f.string("rope_type");
  if (type.empty()) type = f.string("type");
  if (type.empty() || type == "default") return;
  const bool phi3 = top.string("model_type") == "phi3";
  if (phi3 && (type == "su" || type == "yarn")) type = "longrope";  // its older names
  rope.scaling = type;
  if (type == "longrope" && phi3) return read_longrope(rope, f, top, context);
  if (type != "linear" && type != "llama3" && type != "yarn") {
    f.fail(
        strf("rope scaling %s is not supported: linear, llama3 and yarn are", quote(type).c_str()));
    return;
  }
  rope.factor = f.number("factor", 1, 1e6);
  if (type == "linear") return;
  rope.original_context = f.integer("original_max_position_embeddings", 1, kMaxContext,
                                    type == "yarn" ? std::optional<int>(context) : std::nullopt);
  if (type == "llama3") {
    rope.low_freq_factor = f.number("low_freq_factor", 1e-3, 1e6);
    rope.high_freq_factor = f.number("high_freq_factor", 1e-3, 1e6);
    if (rope.high_freq_factor <= rope.low_freq_factor) {
      f.fail("high_freq_factor must be above low_freq_factor");
    }
  } else {
    rope.attention_factor = f.number("attention_factor", 0, 1e3, 0.0);
    rope.beta_fast = f.number("beta_fast", 1e-3, 1e6, 32.0);
    rope.beta_slow = f.number("beta_slow", 1e-3, 1e6, 1.0);
  }
}

// Newer files hold all of it in rope_parameters (gemma3: one for each kind of layer), older ones in
// rope_theta and rope_scaling.
void read_rope(HfConfig& c, HfFields& f, std::string& error) {
  HfRope& rope = c.rope;
  const bool gemma3 = c.arch == "gemma3";
  const json::object* scaling = f.object("rope_parameters");
  rope.theta = f.number("rope_theta", 1, 1e12, gemma3 ? 1e6 : 10000.0);
  double partial = f.number("partial_rotary_factor", 0.01, 1, 1.0);
  double local = f.number("rope_local_base_freq", 1, 1e12, 10000.0);
  if (scaling && gemma3 && scaling->contains("full_attention")) {
    HfFields kinds(*scaling, error);
    if (const json::object* sliding = kinds.object("sliding_attention")) {
      HfFields s(*sliding, error);
      local = s.number("rope_theta", 1, 1e12, local);
      if (s.string("rope_type", "default") != "default") {
        s.fail("sliding_attention: rope scaling of the local layers is not supported");
      }
    }
    scaling = kinds.object("full_attention");
  }
  if (scaling) {
    HfFields s(*scaling, error);
    rope.theta = s.number("rope_theta", 1, 1e12, rope.theta);
    partial = s.number("partial_rotary_factor", 0.01, 1, partial);
  } else {
    scaling = f.object("rope_scaling");
  }
  rope.dims = static_cast<int>(c.head_dim * partial);
  if (partial != 1 && c.arch != "phi3") f.fail("partial_rotary_factor must be 1 for this family");
  if (rope.dims < 2 || rope.dims % 2 != 0) f.fail("partial_rotary_factor leaves an odd rotation");
  if (gemma3) c.extra["rope.freq_base_swa"] = local;
  if (scaling) read_scaling(rope, HfFields(*scaling, error), f, c.context);
}

void check_activation(HfFields& f, const char* key, const std::string& expected) {
  const std::string given = f.string(key, expected);
  if (given != expected) {
    f.fail(strf("%s %s is not supported: %s is", key, quote(given).c_str(), expected.c_str()));
  }
}

// The window of the qwen families is for the layers from max_window_layers on.
void read_window(HfConfig& c, HfFields& f) {
  const bool qwen = c.arch == "qwen2" || c.arch == "qwen3";
  c.window = f.integer("sliding_window", 0, kMaxContext, 0);
  if (!f.boolean("use_sliding_window", !qwen)) c.window = 0;
  if (!qwen || c.window == 0) return;
  const int first = f.integer("max_window_layers", 0, 1 << 20, 0);
  if (first >= c.num_layers) {
    c.window = 0;
  } else if (first > 0) {
    f.fail("a sliding window in some layers only (max_window_layers) is not supported");
  }
}

// gemma: every `pattern`-th layer attends to all positions, the others to a window.
void check_layer_types(const HfConfig& c, HfFields& f, int pattern) {
  if (f.integer("sliding_window_pattern", 1, 1024, pattern) != pattern) {
    f.fail(strf("sliding_window_pattern must be %d for %s", pattern, c.arch.c_str()));
  }
  const json::value* v = f.find("layer_types");
  if (!v) return;
  const json::array* types = v->if_array();
  bool usual = types && types->size() == static_cast<size_t>(c.num_layers);
  for (size_t i = 0; usual && i < types->size(); ++i) {
    const bool full = (i + 1) % static_cast<size_t>(pattern) == 0;
    usual = (*types)[i] == json::value(full ? "full_attention" : "sliding_attention");
  }
  if (!usual) {
    f.fail(strf("layer_types other than full attention in every %d%s layer are not supported",
                pattern, pattern == 2 ? "nd" : "th"));
  }
}

void read_gemma(HfConfig& c, HfFields& f) {
  const bool gemma2 = c.arch == "gemma2";
  check_layer_types(c, f, gemma2 ? 2 : 6);
  c.window = f.integer("sliding_window", 1, kMaxContext, 4096);
  if (f.boolean("use_bidirectional_attention", false)) {
    f.fail("use_bidirectional_attention: this is an embedding model, not a language model");
  }
  c.extra["attention.scale"] = 1 / std::sqrt(f.number("query_pre_attn_scalar", 1e-3, 1e6, 256.0));
  // A null means none; absent means the family's own.
  const struct {
    const char *key, *gguf;
    double usual;
  } caps[] = {{"attn_logit_softcapping", "attn_logit_softcapping", 50},
              {"final_logit_softcapping", "final_logit_softcapping", 30}};
  for (const auto& cap : caps) {
    const bool usual = gemma2 && !f.has(cap.key);
    if (usual) c.extra[cap.gguf] = cap.usual;
    if (f.find(cap.key)) c.extra[cap.gguf] = f.number(cap.key, 1e-3, 1e6);
  }
  if (!gemma2 && c.extra.contains("attn_logit_softcapping")) {
    f.fail("attn_logit_softcapping is not supported for gemma3");
  }
  check_activation(f, "hidden_activation", "gelu_pytorch_tanh");
}

void read_family(HfConfig& c, HfFields& f) {
  const std::string type = f.string("model_type");
  if (type == "llama" || type == "mistral") {
    c.arch = "llama";
  } else if (type == "gemma3_text" || type == "gemma3") {
    c.arch = "gemma3";
  } else if (type == "qwen2" || type == "qwen3" || type == "phi3" || type == "gemma2" ||
             type == "gpt2") {
    c.arch = type;
  } else {
    f.fail(
        strf("model_type %s is not supported: llama, mistral, qwen2, qwen3, phi3, gemma2, "
             "gemma3 and gpt2 are",
             quote(type).c_str()));
  }
  c.qkv_bias = type == "qwen2";
  c.qk_norm = c.arch == "qwen3" || c.arch == "gemma3";
  if (f.boolean("attention_bias", c.qkv_bias) != c.qkv_bias) {
    f.fail(strf("attention_bias must be %s for %s", c.qkv_bias ? "true" : "false", type.c_str()));
  }
  if (f.boolean("mlp_bias", false)) f.fail("mlp_bias must be false");
}

void read_heads(HfConfig& c, HfFields& f) {
  const bool gemma = c.arch == "gemma2" || c.arch == "gemma3";
  const std::optional<int> usual = gemma ? std::optional<int>(8) : std::nullopt;
  c.num_heads = f.integer("num_attention_heads", 1, 4096, usual);
  c.num_kv_heads = f.integer("num_key_value_heads", 1, 4096, gemma ? 4 : c.num_heads);
  if (c.num_heads % c.num_kv_heads != 0) {
    f.fail(strf("num_attention_heads (%d) must be a multiple of num_key_value_heads (%d)",
                c.num_heads, c.num_kv_heads));
  }
  if (f.find("head_dim")) {
    c.head_dim = f.integer("head_dim", 8, 256);
  } else if (c.arch == "qwen3" || gemma) {
    c.head_dim = gemma ? 256 : 128;
  } else if (c.hidden % c.num_heads == 0) {
    c.head_dim = c.hidden / c.num_heads;
  } else {
    f.fail(strf("hidden_size (%d) must be a multiple of num_attention_heads (%d)", c.hidden,
                c.num_heads));
  }
  if (c.head_dim < 8 || c.head_dim > 256 || c.head_dim % 2 != 0) {
    f.fail(
        strf("a head dimension of %d is not supported: even ones from 8 to 256 are", c.head_dim));
  }
}

void read_gpt2(HfConfig& c, HfFields& f) {
  c.num_layers = f.integer("n_layer", 1, 1024);
  c.hidden = f.integer("n_embd", 8, 1 << 17);
  c.ffn = f.integer("n_inner", 8, 1 << 20, 4 * c.hidden);
  c.vocab = f.integer("vocab_size", 1, 1 << 24);
  c.context = f.integer("n_positions", 1, kMaxContext);
  c.eps = f.number("layer_norm_epsilon", 0, 1, 1e-5);
  c.tied = f.boolean("tie_word_embeddings", true);
  c.num_heads = c.num_kv_heads = f.integer("n_head", 1, 4096);
  c.head_dim = c.hidden / c.num_heads;
  if (c.hidden % c.num_heads != 0 || c.head_dim < 8 || c.head_dim > 256) {
    f.fail(strf("n_embd (%d) must be n_head (%d) times 8 to 256", c.hidden, c.num_heads));
  }
  check_activation(f, "activation_function", "gelu_new");
  if (!f.boolean("scale_attn_weights", true) ||
      f.boolean("scale_attn_by_inverse_layer_idx", false)) {
    f.fail("other scales of attention than 1 / sqrt(head dimension) are not supported");
  }
}

// gemma3 files leave out what equals the family's defaults.
void read_decoder(HfConfig& c, HfFields& f, std::string& error) {
  auto usual = [&](int value) {
    return c.arch == "gemma3" ? std::optional<int>(value) : std::nullopt;
  };
  const bool gemma = c.arch == "gemma2" || c.arch == "gemma3";
  c.num_layers = f.integer("num_hidden_layers", 1, 1024, usual(26));
  c.hidden = f.integer("hidden_size", 8, 1 << 17, usual(2304));
  c.ffn = f.integer("intermediate_size", 8, 1 << 20, usual(9216));
  c.vocab = f.integer("vocab_size", 1, 1 << 24, usual(262208));
  c.context = f.integer("max_position_embeddings", 1, kMaxContext, usual(131072));
  c.eps = f.number("rms_norm_eps", 0, 1, c.arch == "phi3" ? 1e-5 : 1e-6);
  c.tied = f.boolean("tie_word_embeddings", gemma);
  if (gemma) {
    read_gemma(c, f);
  } else {
    read_window(c, f);
    check_activation(f, "hidden_act", "silu");
  }
  read_heads(c, f);
  read_rope(c, f, error);
}

}  // namespace

Result<HfConfig> parse_hf_config(std::string_view json_text) {
  auto parsed = parse_json(json_text);
  if (!parsed) return parsed.error();
  const json::object* object = parsed->if_object();
  if (!object) return Error{400, "must be a JSON object: a model's config.json"};
  HfConfig c;
  std::string error;
  // The language model within a multimodal one.
  if (const json::value* text = object->if_contains("text_config");
      text && text->is_object() && HfFields(*object, error).string("model_type") == "gemma3") {
    object = text->if_object();
    c.arch = "gemma3";
  }
  HfFields f(*object, error);
  if (!(c.arch == "gemma3" && !f.find("model_type"))) read_family(c, f);
  c.qk_norm = c.qk_norm || c.arch == "gemma3";
  if (c.arch == "gpt2") {
    read_gpt2(c, f);
  } else {
    read_decoder(c, f, error);
  }
  if (!error.empty()) return Error{400, error};
  return c;
}

}  // namespace sluice
