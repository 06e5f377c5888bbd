#include "model/decoder.h"

#include <cmath>

#include "base/check.h"
#include "base/str.h"

namespace sluice {

namespace {

// Hands out aligned pieces of one buffer; with a null base it only counts.
class Carver {
 public:
  explicit Carver(std::byte* base) : base_(base) {}
  void* take(size_t bytes) {
    size_t at = used_;
    used_ += (bytes + 63) & ~size_t{63};
    return base_ ? base_ + at : nullptr;
  }
  Tensor tensor(int64_t rows, int64_t cols) {
    return {take(static_cast<size_t>(rows * cols) * 4), DType::f32, rows, cols, cols};
  }
  Act act(int64_t rows, int64_t cols, uint8_t needs) {
    Act a;
    a.f = {nullptr, DType::f32, rows, cols, cols};
    a.q.rows = rows;
    a.q.cols = cols;
    if (needs & kActF32) a.f.data = take(static_cast<size_t>(rows * cols) * 4);
    if (needs & kActQ8) {
      auto blocks = static_cast<size_t>(rows * (cols / kActBlock));
      a.q.q = static_cast<int8_t*>(take(static_cast<size_t>(rows * cols)));
      a.q.scale = static_cast<float*>(take(blocks * 4));
      a.q.sum = static_cast<int32_t*>(take(blocks * 4));
    }
    return a;
  }
  size_t used() const { return used_; }

 private:
  std::byte* base_;
  size_t used_ = 0;
};

Act first_rows_of(Act a, int64_t n) {
  a.f.rows = a.q.rows = n;
  return a;
}

void project(Backend& backend, Tensor out, const Act& x, const Projection& p) {
  int64_t column = 0;
  for (const Weight& w : p.parts) {
    backend.matmul(out.columns(column, w.rows), x, w);
    column += w.rows;
  }
}

const float* data_or_null(const std::vector<float>& v) { return v.empty() ? nullptr : v.data(); }

}  // namespace

Result<std::unique_ptr<Model>> Decoder::load(Checkpoint& checkpoint,
                                             Backend& backend,
                                             const LoadOptions& options,
                                             DecoderTraits traits) {
  Result<DecoderConfig> config =
      read_decoder_config(checkpoint, &checkpoint, traits.rope_interleaved);
  if (!config) return config.error();
  auto m = std::make_unique<Decoder>();
  m->config_ = *config;
  const DecoderConfig& c = m->config_;
  m->shape_ = {c.arch,      c.num_layers,   c.hidden,   c.vocab,
               c.num_heads, c.num_kv_heads, c.head_dim, c.max_len};

  WeightLoader w(checkpoint, backend, options);
  m->embed_ = w.matrix("token_embd", c.vocab, c.hidden);
  if (w.has("output.weight")) m->output_ = w.matrix("output", c.vocab, c.hidden);
  m->output_norm_ = w.vector("output_norm.weight", c.hidden);
  for (int l = 0; l < c.num_layers && w.ok(); ++l) {
    std::string blk = strf("blk.%d.", l);
    DecoderLayer& layer = m->layers_.emplace_back();
    layer.attn_norm = w.vector(blk + "attn_norm.weight", c.hidden);
    layer.qkv = w.projection(
        {{blk + "attn_q", c.q_dim()}, {blk + "attn_k", c.kv_dim()}, {blk + "attn_v", c.kv_dim()}},
        c.hidden, traits.qkv_bias);
    if (traits.qk_norm) {
      layer.q_norm = w.vector(blk + "attn_q_norm.weight", c.head_dim);
      layer.k_norm = w.vector(blk + "attn_k_norm.weight", c.head_dim);
    }
    layer.o = w.matrix(blk + "attn_output", c.hidden, c.q_dim());
    layer.ffn_norm = w.vector(blk + "ffn_norm.weight", c.hidden);
    layer.gate_up =
        w.projection({{blk + "ffn_gate", c.ffn}, {blk + "ffn_up", c.ffn}}, c.hidden, false);
    layer.down = w.matrix(blk + "ffn_down", c.hidden, c.ffn);
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
  Carver carver(base);
  Scratch s;
  s.x = carver.tensor(max_tokens, c.hidden);
  s.normed = carver.act(max_tokens, c.hidden, normed);
  s.qkv = carver.tensor(max_tokens, c.q_dim() + 2 * c.kv_dim());
  s.attended = carver.act(max_tokens, c.q_dim(), attended);
  s.delta = carver.tensor(max_tokens, c.hidden);
  s.gate_up = carver.tensor(max_tokens, 2 * c.ffn);
  s.gated = carver.act(max_tokens, c.ffn, gated);
  s.cos_sin = static_cast<float*>(
      carver.take(static_cast<size_t>(max_tokens) * static_cast<size_t>(c.rope.dims) * 4));
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
  s.x.rows = s.qkv.rows = s.delta.rows = s.gate_up.rows = n;
  s.normed = first_rows_of(s.normed, n);
  s.attended = first_rows_of(s.attended, n);
  s.gated = first_rows_of(s.gated, n);
  return s;
}

void Decoder::forward(Backend& be, const BatchView& batch, std::span<const KvLayer> kv) {
  const DecoderConfig& c = config_;
  int64_t n = batch.num_tokens;
  CHECK(n <= scratch_.x.rows);
  Scratch s = first_rows(n);
  AttentionSpec attention{c.num_heads, c.num_kv_heads, c.head_dim,
                          1.0f / std::sqrt(static_cast<float>(c.head_dim)), c.window};
  QkvSpec qkv{attention, &c.rope, s.cos_sin, nullptr, nullptr, c.eps};
  auto num = static_cast<size_t>(n);

  be.embed(s.x, embed_, {batch.tokens, num});
  be.rope_table(s.cos_sin, c.rope, {batch.positions, num});
  be.rms_norm(s.normed, s.x, layers_[0].attn_norm.data(), c.eps);
  for (size_t l = 0; l < layers_.size(); ++l) {
    const DecoderLayer& w = layers_[l];
    qkv.q_norm = data_or_null(w.q_norm);
    qkv.k_norm = data_or_null(w.k_norm);
    project(be, s.qkv, s.normed, w.qkv);
    be.finish_qkv(s.qkv, qkv, batch, kv[l]);
    be.attention(s.attended, s.qkv.columns(0, c.q_dim()), attention, batch, kv[l]);
    be.matmul(s.delta, s.attended, w.o);
    be.add_rms_norm(s.normed, s.x, s.delta, w.ffn_norm.data(), c.eps);
    project(be, s.gate_up, s.normed, w.gate_up);
    be.activate_gated(s.gated, s.gate_up, Activation::silu);
    be.matmul(s.delta, s.gated, w.down);
    if (l + 1 < layers_.size()) {
      be.add_rms_norm(s.normed, s.x, s.delta, layers_[l + 1].attn_norm.data(), c.eps);
    } else {
      be.add(s.x, s.delta);
    }
  }
}

void Decoder::logits(Backend& be, std::span<const int32_t> rows, Tensor out) {
  auto n = static_cast<int64_t>(rows.size());
  CHECK(n <= scratch_.final.q.rows);
  Act final = first_rows_of(scratch_.final, n);
  be.rms_norm(final, scratch_.x, output_norm_.data(), config_.eps, rows.data());
  be.matmul(out, final, output_ ? *output_ : embed_);
}

}  // namespace sluice
