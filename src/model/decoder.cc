#include "model/decoder.h"

#include <cmath>

#include "base/check.h"
#include "base/str.h"
#include "model/families.h"

namespace sluice {

namespace {

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
  AttentionBlock& block = layer.attention;
  block.qkv = w.projection(parts, c.hidden, traits.qkv_bias);
  if (traits.qk_norm) {
    block.q_norm = w.vector(blk + "attn_q_norm.weight", c.head_dim);
    block.k_norm = w.vector(blk + "attn_k_norm.weight", c.head_dim);
  }
  block.o = w.matrix(blk + "attn_output", c.hidden, c.q_dim());
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
  layer.mlp.in = w.projection(parts, c.hidden, false);
  layer.mlp.down = w.matrix(blk + "ffn_down", c.hidden, c.ffn);
  layer.mlp.gated = true;
  layer.mlp.activation = traits.activation;
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
  if (traits.scale_embeddings) m->embedding_scale_ = std::sqrt(static_cast<float>(c.hidden));

  WeightLoader w(source, store, options);
  m->range_ = options.layers;
  m->listener_ = options.listener;
  const bool has_last = m->range_.has_last(c.num_layers), tied = !w.has("output.weight");
  if (m->range_.has_first() || (has_last && tied))
    m->embed_ = w.matrix("token_embd", c.vocab, c.hidden);
  if (has_last) {
    if (!tied) m->output_ = w.matrix("output", c.vocab, c.hidden);
    m->output_norm_ = w.vector("output_norm.weight", c.hidden);
  }
  for (int l = m->range_.first; l < std::min(m->range_.end, c.num_layers) && w.ok(); ++l) {
    std::string blk = strf("blk.%d.", l);
    DecoderLayer& layer = m->layers_.emplace_back();
    if (options.listener) options.listener->loads(l);
    load_attention(layer, w, blk, c, traits);
    load_mlp(layer, w, blk, c, traits);
  }
  if (!w.ok()) return w.error();
  m->weight_bytes_ = w.weight_bytes();
  m->sizes_.emplace(c, true, store);
  for (const DecoderLayer& layer : m->layers_) {
    m->sizes_->add(layer.attention);
    m->sizes_->add(layer.mlp);
  }
  m->sizes_->final = m->output().act;
  return std::unique_ptr<Model>(std::move(m));
}

Decoder::Scratch Decoder::carve(std::byte* base,
                                int max_tokens,
                                int max_outputs,
                                size_t* bytes) const {
  const DecoderConfig& c = config_;
  Carver carver(base, sizes_->act_type);
  Scratch s;
  s.blocks = carve_blocks(carver, *sizes_, max_tokens, max_outputs);
  s.cos_sin = carver.f32(max_tokens, c.rope.dims).f32();
  if (c.window_rope) s.window_cos_sin = carver.f32(max_tokens, c.rope.dims).f32();
  *bytes = carver.used();
  return s;
}

size_t Decoder::scratch_bytes(int max_tokens, int max_outputs) const {
  size_t bytes = 0;
  carve(nullptr, max_tokens, max_outputs, &bytes);
  return bytes;
}

void Decoder::reserve(Backend& backend, int max_tokens, int max_outputs, int lanes) {
  size_t each = scratch_bytes(max_tokens, max_outputs), bytes = 0;
  buffer_ = backend.allocate(each * static_cast<size_t>(lanes));
  auto* base = static_cast<std::byte*>(buffer_.data());
  memory_ = {base, each};
  lanes_.clear();
  for (int lane = 0; lane < lanes; ++lane, base += each)
    lanes_.push_back(carve(base, max_tokens, max_outputs, &bytes));
  use_lane(0);
}

void Decoder::reserve_in(std::span<std::byte> memory, int max_tokens, int max_outputs) {
  size_t bytes = 0;
  buffer_ = {};
  memory_ = memory;
  lanes_.assign(1, carve(memory.data(), max_tokens, max_outputs, &bytes));
  CHECK(bytes <= memory.size());
  use_lane(0);
}

QkvSpec Decoder::qkv_of(size_t layer) const {
  const DecoderConfig& c = config_;
  QkvSpec spec;
  const int window = c.windows[layer + static_cast<size_t>(range_.first)];
  spec.attention = {c.num_heads,       c.num_kv_heads, c.head_dim,
                    c.attention_scale, window,         c.attention_softcap};
  spec.eps = c.eps;
  const bool by_window = window > 0 && c.window_rope;
  spec.rope = by_window ? &*c.window_rope : &c.rope;
  spec.cos_sin = by_window ? scratch_.window_cos_sin : scratch_.cos_sin;
  return spec;
}

void Decoder::embed(Backend& be, const BatchView& batch) {
  const Tensor x = first_rows_of(scratch_.blocks, batch.num_tokens).x;
  be.embed(x, embed_, {batch.tokens, static_cast<size_t>(batch.num_tokens)});
  if (embedding_scale_ != 1) be.scale(x, embedding_scale_);
}

bool Decoder::decode_layers(Backend& be,
                            const BatchView& batch,
                            std::span<const KvLayer> kv,
                            const BlockScratch& s) {
  if (batch.num_tokens > be.max_decode_rows() || batch.num_decode != batch.num_tokens || listener_)
    return false;
  decodes_.clear();
  for (size_t l = 0; l < layers_.size(); ++l) {
    const DecoderLayer& w = layers_[l];
    const AttentionBlock& a = w.attention;
    if (a.qkv.parts.size() != 1 || w.mlp.in.parts.size() != 1 || !w.mlp.gated ||
        !w.post_attn_norm.empty() || !w.post_ffn_norm.empty())
      return false;
    QkvSpec spec = qkv_of(l);
    spec.q_norm = a.q_norm.data(), spec.k_norm = a.k_norm.data();
    decodes_.push_back({w.attn_norm.data(), &a.qkv.parts[0], spec, kv[l], &a.o, w.ffn_norm.data(),
                        &w.mlp.in.parts[0], w.mlp.activation, &w.mlp.down});
  }
  // The MLP's inner activations have memory for the rows of a prompt.
  const Tensor& inner = scratch_.blocks.inner;
  const size_t bytes = static_cast<size_t>(inner.rows * inner.stride) * dtype_bytes(inner.type);
  return be.decode_layers({batch, s.x, {static_cast<std::byte*>(inner.data), bytes}}, decodes_);
}

void Decoder::forward(Backend& be, const BatchView& batch, std::span<const KvLayer> kv) {
  const DecoderConfig& c = config_;
  CHECK(batch.num_tokens <= scratch_.blocks.x.rows && kv.size() == layers_.size());
  const BlockScratch s = first_rows_of(scratch_.blocks, batch.num_tokens);
  auto n = static_cast<size_t>(batch.num_tokens);

  if (range_.has_first()) embed(be, batch);
  be.rope_table(scratch_.cos_sin, c.rope, {batch.positions, n});
  if (c.window_rope) be.rope_table(scratch_.window_cos_sin, *c.window_rope, {batch.positions, n});
  if (decode_layers(be, batch, kv, s)) return;
  be.rms_norm(s.normed, s.x, layers_[0].attn_norm.data(), c.eps);
  for (size_t l = 0; l < layers_.size(); ++l) {
    const DecoderLayer& w = layers_[l];
    const int number = range_.first + static_cast<int>(l);
    if (listener_) listener_->begins(number);
    run_attention(be, w.attention, qkv_of(l), batch, kv[l], s);
    if (watch_) watch_->wrote(static_cast<int>(l));
    post_norm(be, s.delta, w.post_attn_norm, c.eps);
    be.add_rms_norm(s.normed, s.x, s.delta, w.ffn_norm.data(), c.eps);
    run_mlp(be, w.mlp, s);
    if (listener_) listener_->ended(number);
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
  CHECK(n <= scratch_.blocks.final.q.rows);
  Act final = first_rows_of(scratch_.blocks.final, n);
  be.rms_norm(final, scratch_.blocks.x, output_norm_.data(), config_.eps, rows.data());
  return final;
}

void Decoder::logits(Backend& be, std::span<const int32_t> rows, Tensor out) {
  be.matmul(out, final_states(be, rows), output());
  if (config_.final_softcap > 0) be.softcap(out, config_.final_softcap);
}

void Decoder::best(Backend& be,
                   std::span<const int32_t> rows,
                   Tensor scratch,
                   std::span<Best> out) {
  if (config_.final_softcap == 0)
    return be.matmul_best(scratch, final_states(be, rows), output(), out);
  // Capped logits may be equal where the raw ones are not, and are what counts.
  logits(be, rows, scratch);
  struct Rows {
    Tensor logits;
    std::span<Best> best;
  } ctx{scratch, out};
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
  be.rms_norm(normed, scratch_.blocks.x, output_norm_.data(), config_.eps, rows.data());
}

}  // namespace sluice
