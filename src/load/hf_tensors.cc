#include "load/hf_tensors.h"

#include <span>

#include "base/str.h"

namespace sluice {
namespace {

enum class Dim : uint8_t { one, hidden, ffn, two_ffn, q, kv, qkv, head, vocab, context };
enum class When : uint8_t { always, qkv_bias, qk_norm, untied };

struct Row {
  const char *hf, *gguf;
  Dim rows, cols;  // rows one: a vector
  When when = When::always;
  HfChange change = HfChange::none;
};

// interleave is for llama alone; see hf_tensors().
constexpr Row kDecoderLayer[] = {
    {"input_layernorm.weight", "attn_norm.weight", Dim::one, Dim::hidden},
    {"self_attn.q_proj.weight", "attn_q.weight", Dim::q, Dim::hidden, When::always,
     HfChange::interleave},
    {"self_attn.k_proj.weight", "attn_k.weight", Dim::kv, Dim::hidden, When::always,
     HfChange::interleave},
    {"self_attn.v_proj.weight", "attn_v.weight", Dim::kv, Dim::hidden},
    {"self_attn.q_proj.bias", "attn_q.bias", Dim::one, Dim::q, When::qkv_bias},
    {"self_attn.k_proj.bias", "attn_k.bias", Dim::one, Dim::kv, When::qkv_bias},
    {"self_attn.v_proj.bias", "attn_v.bias", Dim::one, Dim::kv, When::qkv_bias},
    {"self_attn.q_norm.weight", "attn_q_norm.weight", Dim::one, Dim::head, When::qk_norm},
    {"self_attn.k_norm.weight", "attn_k_norm.weight", Dim::one, Dim::head, When::qk_norm},
    {"self_attn.o_proj.weight", "attn_output.weight", Dim::hidden, Dim::q},
    {"post_attention_layernorm.weight", "ffn_norm.weight", Dim::one, Dim::hidden},
    {"mlp.gate_proj.weight", "ffn_gate.weight", Dim::ffn, Dim::hidden},
    {"mlp.up_proj.weight", "ffn_up.weight", Dim::ffn, Dim::hidden},
    {"mlp.down_proj.weight", "ffn_down.weight", Dim::hidden, Dim::ffn},
};
constexpr Row kDecoder[] = {
    {"embed_tokens.weight", "token_embd.weight", Dim::vocab, Dim::hidden},
    {"norm.weight", "output_norm.weight", Dim::one, Dim::hidden},
    {"lm_head.weight", "output.weight", Dim::vocab, Dim::hidden, When::untied},
};

constexpr Row kPhi3Layer[] = {
    {"input_layernorm.weight", "attn_norm.weight", Dim::one, Dim::hidden},
    {"self_attn.qkv_proj.weight", "attn_qkv.weight", Dim::qkv, Dim::hidden},
    {"self_attn.o_proj.weight", "attn_output.weight", Dim::hidden, Dim::q},
    {"post_attention_layernorm.weight", "ffn_norm.weight", Dim::one, Dim::hidden},
    {"mlp.gate_up_proj.weight", "ffn_up.weight", Dim::two_ffn, Dim::hidden},
    {"mlp.down_proj.weight", "ffn_down.weight", Dim::hidden, Dim::ffn},
};

constexpr HfChange kPlusOne = HfChange::plus_one;
constexpr Row kGemmaLayer[] = {
    {"input_layernorm.weight", "attn_norm.weight", Dim::one, Dim::hidden, When::always, kPlusOne},
    {"self_attn.q_proj.weight", "attn_q.weight", Dim::q, Dim::hidden},
    {"self_attn.k_proj.weight", "attn_k.weight", Dim::kv, Dim::hidden},
    {"self_attn.v_proj.weight", "attn_v.weight", Dim::kv, Dim::hidden},
    {"self_attn.q_norm.weight", "attn_q_norm.weight", Dim::one, Dim::head, When::qk_norm, kPlusOne},
    {"self_attn.k_norm.weight", "attn_k_norm.weight", Dim::one, Dim::head, When::qk_norm, kPlusOne},
    {"self_attn.o_proj.weight", "attn_output.weight", Dim::hidden, Dim::q},
    {"post_attention_layernorm.weight", "post_attention_norm.weight", Dim::one, Dim::hidden,
     When::always, kPlusOne},
    {"pre_feedforward_layernorm.weight", "ffn_norm.weight", Dim::one, Dim::hidden, When::always,
     kPlusOne},
    {"mlp.gate_proj.weight", "ffn_gate.weight", Dim::ffn, Dim::hidden},
    {"mlp.up_proj.weight", "ffn_up.weight", Dim::ffn, Dim::hidden},
    {"mlp.down_proj.weight", "ffn_down.weight", Dim::hidden, Dim::ffn},
    {"post_feedforward_layernorm.weight", "post_ffw_norm.weight", Dim::one, Dim::hidden,
     When::always, kPlusOne},
};
constexpr Row kGemma[] = {
    {"embed_tokens.weight", "token_embd.weight", Dim::vocab, Dim::hidden},
    {"norm.weight", "output_norm.weight", Dim::one, Dim::hidden, When::always, kPlusOne},
    {"lm_head.weight", "output.weight", Dim::vocab, Dim::hidden, When::untied},
};

constexpr HfChange kTranspose = HfChange::transpose;
constexpr Row kGpt2Layer[] = {
    {"ln_1.weight", "attn_norm.weight", Dim::one, Dim::hidden},
    {"ln_1.bias", "attn_norm.bias", Dim::one, Dim::hidden},
    {"attn.c_attn.weight", "attn_qkv.weight", Dim::qkv, Dim::hidden, When::always, kTranspose},
    {"attn.c_attn.bias", "attn_qkv.bias", Dim::one, Dim::qkv},
    {"attn.c_proj.weight", "attn_output.weight", Dim::hidden, Dim::q, When::always, kTranspose},
    {"attn.c_proj.bias", "attn_output.bias", Dim::one, Dim::hidden},
    {"ln_2.weight", "ffn_norm.weight", Dim::one, Dim::hidden},
    {"ln_2.bias", "ffn_norm.bias", Dim::one, Dim::hidden},
    {"mlp.c_fc.weight", "ffn_up.weight", Dim::ffn, Dim::hidden, When::always, kTranspose},
    {"mlp.c_fc.bias", "ffn_up.bias", Dim::one, Dim::ffn},
    {"mlp.c_proj.weight", "ffn_down.weight", Dim::hidden, Dim::ffn, When::always, kTranspose},
    {"mlp.c_proj.bias", "ffn_down.bias", Dim::one, Dim::hidden},
};
constexpr Row kGpt2[] = {
    {"wte.weight", "token_embd.weight", Dim::vocab, Dim::hidden},
    {"wpe.weight", "position_embd.weight", Dim::context, Dim::hidden},
    {"ln_f.weight", "output_norm.weight", Dim::one, Dim::hidden},
    {"ln_f.bias", "output_norm.bias", Dim::one, Dim::hidden},
    {"lm_head.weight", "output.weight", Dim::vocab, Dim::hidden, When::untied},
};

struct Family {
  const char* arch;
  std::span<const Row> top, layer;
  const char* layers;  // what the layers' names begin with
};
constexpr Family kFamilies[] = {
    {"llama", kDecoder, kDecoderLayer, "layers."},
    {"qwen2", kDecoder, kDecoderLayer, "layers."},
    {"qwen3", kDecoder, kDecoderLayer, "layers."},
    {"phi3", kDecoder, kPhi3Layer, "layers."},
    {"gemma2", kGemma, kGemmaLayer, "layers."},
    {"gemma3", kGemma, kGemmaLayer, "layers."},
    {"gpt2", kGpt2, kGpt2Layer, "h."},
};

int64_t size_of(const HfConfig& c, Dim dim) {
  const int64_t head = c.head_dim;
  switch (dim) {
    case Dim::one:
      return 1;
    case Dim::hidden:
      return c.hidden;
    case Dim::ffn:
      return c.ffn;
    case Dim::two_ffn:
      return 2 * int64_t{c.ffn};
    case Dim::q:
      return head * c.num_heads;
    case Dim::kv:
      return head * c.num_kv_heads;
    case Dim::qkv:
      return head * (c.num_heads + 2 * c.num_kv_heads);
    case Dim::head:
      return head;
    case Dim::vocab:
      return c.vocab;
    case Dim::context:
      return c.context;
  }
  return 0;
}

bool applies(const HfConfig& c, When when) {
  switch (when) {
    case When::always:
      return true;
    case When::qkv_bias:
      return c.qkv_bias;
    case When::qk_norm:
      return c.qk_norm;
    case When::untied:
      return !c.tied;
  }
  return false;
}

void add(const HfConfig& c,
         std::span<const Row> rows,
         const std::string& hf,
         const std::string& gguf,
         std::vector<HfTensor>& out) {
  for (const Row& r : rows) {
    if (!applies(c, r.when)) continue;
    HfTensor t;
    t.name = hf + r.hf;
    t.gguf = gguf + r.gguf;
    t.vector = r.rows == Dim::one;
    t.rows = size_of(c, r.rows);
    t.cols = size_of(c, r.cols);
    t.change = r.change;
    if (r.change == HfChange::interleave) {
      if (c.arch != "llama") t.change = HfChange::none;
      t.heads = r.rows == Dim::q ? c.num_heads : c.num_kv_heads;
    }
    out.push_back(std::move(t));
  }
}

}  // namespace

std::vector<HfTensor> hf_tensors(const HfConfig& c) {
  std::vector<HfTensor> out;
  for (const Family& family : kFamilies) {
    if (c.arch != family.arch) continue;
    add(c, family.top, "", "", out);
    for (int i = 0; i < c.num_layers; ++i) {
      add(c, family.layer, strf("%s%d.", family.layers, i), strf("blk.%d.", i), out);
    }
  }
  return out;
}

std::vector<std::pair<std::string, std::vector<float>>> hf_rope_tensors(const HfConfig& c) {
  if (c.rope.scaling == "llama3") return {{"rope_freqs.weight", llama3_divisors(c.rope)}};
  if (c.rope.scaling == "longrope") {
    return {{"rope_factors_long.weight", c.rope.long_factor},
            {"rope_factors_short.weight", c.rope.short_factor}};
  }
  return {};
}

std::string_view strip_prefix(std::string_view name) {
  for (std::string_view prefix : {"model.language_model.", "language_model.model.",
                                  "language_model.", "model.", "transformer."}) {
    if (name.starts_with(prefix)) return name.substr(prefix.size());
  }
  return name;
}

bool is_harmless(std::string_view name) {
  for (std::string_view tail :
       {".rotary_emb.inv_freq", ".attn.bias", ".attn.masked_bias", ".position_ids"}) {
    if (name.ends_with(tail)) return true;
  }
  const std::string_view plain = strip_prefix(name);
  return plain.starts_with("vision_tower.") || plain.starts_with("vision_model.") ||
         plain.starts_with("multi_modal_projector.");
}

}  // namespace sluice
