#include "model/decoder.h"

#include <cmath>

#include "base/check.h"
#include "base/str.h"
#include "model/families.h"
#include "model/scratch.h"

namespace sluice {

namespace {

void project(Backend& backend, Tensor out, const Act& x, const Projection& p) {
  int64_t column = 0;
  for (const Weight& w : p.parts) {
    backend.matmul(out.columns(column, w.rows), x, w);
    column += w.rows;
  }
}

// Norms in place; families without such a norm have no weights for it.
void post_norm(Backend& backend, Tensor x, const DeviceVector& weight, float eps) {
  if (weight.empty()) return;
  Act out;
  out.f = x;
  backend.rms_norm(out, x, weight.data(), eps);
}

void load_attention(DecoderLayer& layer,
                    WeightLoader& w,
                    const std::string& blk,
                    const DecoderConfig& c,
                    const DecoderTraits& traits) {
  layer.attn_norm = w.vector(blk + "attn_norm.weight", c.hidden);
  std::vector<TensorPart> parts{
      {blk + "attn_q", c.q_dim()}, {blk + "attn_k", c.kv_dim()}, {blk + "attn_v", c.kv_dim()}};
  // Some converters take fused tensors apart.
  if (traits.fused_tensors && !w.has(blk + "attn_q.weight"))
    parts = {{blk + "attn_qkv", c.q_dim() + 2 * c.kv_dim()}};
  layer.qkv = w.projection(parts, c.hidden, traits.qkv_bias);
  if (traits.qk_norm) {
    layer.q_norm = w.vector(blk + "attn_q_norm.weight", c.head_dim);
    layer.k_norm = w.vector(blk + "attn_k_norm.weight", c.head_dim);
  }
  layer.o = w.matrix(blk + "attn_output", c.hidden, c.q_dim());
  if (traits.post_norms)
    layer.post_attn_norm = w.vector(blk + "post_attention_norm.weight", c.hidden);
}

void load_mlp(DecoderLayer& layer,
              WeightLoader& w,
              const std::string& blk,
              const DecoderConfig& c,
              const DecoderTraits& traits) {
  layer.ffn_norm = w.vector(blk + "ffn_norm.weight", c.hidden);
  std::vector<TensorPart> parts{{blk + "ffn_gate", c.ffn}, {blk + "ffn_up", c.ffn}};
  if (traits.fused_tensors) parts = {{blk + "ffn_up", 2 * c.ffn}};
  layer.gate_up = w.projection(parts, c.hidden, false);
  layer.down = w.matrix(blk + "ffn_down", c.hidden, c.ffn);
  if (traits.post_norms) layer.post_ffn_norm = w.vector(blk + "post_ffw_norm.weight", c.hidden);
}

}  // namespace

LoadedModel load_decoder(const ModelSource& source,
                         WeightStore& store,
                         const LoadOptions& options,
                         const DecoderTraits& traits) {
  return Decoder::load(source, store, options, traits);
}

Result<std::unique_ptr<Model>> Decoder::load(const ModelSource& source,
                                             WeightStore& store,
                                             const LoadOptions& options,
                                             const DecoderTraits& traits) {
  Result<DecoderConfig> config =
      read_decoder_config(source.headers, source.data, traits, options.max_len);
  if (!config) return config.error();
  auto m = std::make_unique<Decoder>();
  m->config_ = *config;
  const DecoderConfig& c = m->config_;
  m->shape_ = c.shape();
  m->act_type_ = store.activation_type();
  m->out_type_ = store.output_type();
  m->activation_ = traits.activation;
  if (traits.scale_embeddings) m->embedding_scale_ = std::sqrt(static_cast<float>(c.hidden));

  WeightLoader w(source, store, options);
  m->embed_ = w.matrix("token_embd", c.vocab, c.hidden);
  if (w.has("output.weight")) m->output_ = w.matrix("output", c.vocab, c.hidden);
  m->output_norm_ = w.vector("output_norm.weight", c.hidden);
  for (int l = 0; l < c.num_layers && w.ok(); ++l) {
    std::string blk = strf("blk.%d.", l);
    DecoderLayer& layer = m->layers_.emplace_back();
    load_attention(layer, w, blk, c, traits);
    load_mlp(layer, w, blk, c, traits);
  }
  if (!w.ok()) return w.error();
  m->weight_bytes_ = w.weight_bytes();
  return std::unique_ptr<Model>(std::move(m));
}

Decoder::Scratch Decoder::carve(std::byte* base,
                                int max_tokens,
                                int max_outputs,
                                size_t* bytes) const {
  const DecoderConfig& c = config_;
  uint8_t normed = 0, attended = 0, gated = 0;
  for (const DecoderLayer& l : layers_) {
    normed |= static_cast<uint8_t>(l.qkv.act() | l.gate_up.act());
    attended |= l.o.act;
    gated |= l.down.act;
  }
  Carver carver(base, act_type_);
  Scratch s;
  s.x = carver.f32(max_tokens, c.hidden);
  s.normed = carver.act(max_tokens, c.hidden, normed);
  s.qkv = carver.of(out_type_, max_tokens, c.q_dim() + 2 * c.kv_dim());
  s.q = s.qkv.columns(0, c.q_dim());
  if (out_type_ != act_type_) s.q = carver.tensor(max_tokens, c.q_dim());
  s.attended = carver.act(max_tokens, c.q_dim(), attended);
  s.delta = carver.of(out_type_, max_tokens, c.hidden);
  s.gate_up = carver.of(out_type_, max_tokens, 2 * c.ffn);
  s.gated = carver.act(max_tokens, c.ffn, gated);
  s.cos_sin = carver.f32(max_tokens, c.rope.dims).f32();
  if (c.window_rope) s.window_cos_sin = carver.f32(max_tokens, c.rope.dims).f32();
  s.final = carver.act(max_outputs, c.hidden, (output_ ? *output_ : embed_).act);
  *bytes = carver.used();
  return s;
}

size_t Decoder::scratch_bytes(int max_tokens, int max_outputs) const {
  size_t bytes = 0;
  carve(nullptr, max_tokens, max_outputs, &bytes);
  return bytes;
}

void Decoder::reserve(Backend& backend, int max_tokens, int max_outputs) {
  buffer_ = backend.allocate(scratch_bytes(max_tokens, max_outputs));
  size_t bytes = 0;
  scratch_ = carve(static_cast<std::byte*>(buffer_.data()), max_tokens, max_outputs, &bytes);
}

Decoder::Scratch Decoder::first_rows(int64_t n) const {
  Scratch s = scratch_;
  s.x.rows = s.qkv.rows = s.q.rows = s.delta.rows = s.gate_up.rows = n;
  s.normed = first_rows_of(s.normed, n);
  s.attended = first_rows_of(s.attended, n);
  s.gated = first_rows_of(s.gated, n);
  return s;
}

AttentionSpec Decoder::attention_of(size_t layer) const {
  const DecoderConfig& c = config_;
  return {c.num_heads,       c.num_kv_heads,   c.head_dim,
          c.attention_scale, c.windows[layer], c.attention_softcap};
}

void Decoder::forward(Backend& be, const BatchView& batch, std::span<const KvLayer> kv) {
  const DecoderConfig& c = config_;
  int64_t n = batch.num_tokens;
  CHECK(n <= scratch_.x.rows);
  Scratch s = first_rows(n);
  auto num = static_cast<size_t>(n);

  be.embed(s.x, embed_, {batch.tokens, num});
  if (embedding_scale_ != 1) be.scale(s.x, embedding_scale_);
  be.rope_table(s.cos_sin, c.rope, {batch.positions, num});
  if (c.window_rope) be.rope_table(s.window_cos_sin, *c.window_rope, {batch.positions, num});
  be.rms_norm(s.normed, s.x, layers_[0].attn_norm.data(), c.eps);
  for (size_t l = 0; l < layers_.size(); ++l) {
    const DecoderLayer& w = layers_[l];
    AttentionSpec attention = attention_of(l);
    QkvSpec qkv{attention, &c.rope, s.cos_sin, w.q_norm.data(), w.k_norm.data(), c.eps, s.q};
    if (attention.window > 0 && c.window_rope) {
      qkv.rope = &*c.window_rope;
      qkv.cos_sin = s.window_cos_sin;
    }
    project(be, s.qkv, s.normed, w.qkv);
    be.finish_qkv(s.qkv, qkv, batch, kv[l]);
    be.attention(s.attended, s.q, attention, batch, kv[l]);
    be.matmul(s.delta, s.attended, w.o);
    post_norm(be, s.delta, w.post_attn_norm, c.eps);
    be.add_rms_norm(s.normed, s.x, s.delta, w.ffn_norm.data(), c.eps);
    project(be, s.gate_up, s.normed, w.gate_up);
    be.activate_gated(s.gated, s.gate_up, activation_);
    be.matmul(s.delta, s.gated, w.down);
    post_norm(be, s.delta, w.post_ffn_norm, c.eps);
    if (l + 1 < layers_.size()) {
      be.add_rms_norm(s.normed, s.x, s.delta, layers_[l + 1].attn_norm.data(), c.eps);
    } else {
      be.add(s.x, s.delta);
    }
  }
}

// The input of the output matrix.
Act Decoder::final_states(Backend& be, std::span<const int32_t> rows) {
  auto n = static_cast<int64_t>(rows.size());
  CHECK(n <= scratch_.final.q.rows);
  Act final = first_rows_of(scratch_.final, n);
  be.rms_norm(final, scratch_.x, output_norm_.data(), config_.eps, rows.data());
  return final;
}

void Decoder::logits(Backend& be, std::span<const int32_t> rows, Tensor out) {
  be.matmul(out, final_states(be, rows), output_ ? *output_ : embed_);
  if (config_.final_softcap > 0) be.softcap(out, config_.final_softcap);
}

void Decoder::best(Backend& be, std::span<const int32_t> rows, Tensor room, std::span<Best> out) {
  if (config_.final_softcap == 0)
    return be.matmul_best(room, final_states(be, rows), output_ ? *output_ : embed_, out);
  // Capped logits may be equal where the raw ones are not, and are what counts.
  logits(be, rows, room);
  struct Rows {
    Tensor logits;
    std::span<Best> best;
  } ctx{room, out};
  be.parallel(
      static_cast<int>(rows.size()),
      [](void* p, int i) {
        auto* r = static_cast<Rows*>(p);
        r->best[static_cast<size_t>(i)] = better({}, r->logits.row(i), r->logits.cols);
      },
      &ctx);
}

void Decoder::hidden(Backend& be, std::span<const int32_t> rows, Tensor out) {
  Act normed;
  normed.f = out;
  be.rms_norm(normed, scratch_.x, output_norm_.data(), config_.eps, rows.data());
}

}  // namespace sluice
