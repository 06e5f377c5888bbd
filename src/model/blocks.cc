#include "model/blocks.h"

namespace sluice {

namespace {

void project(Backend& backend, Tensor out, const Act& x, const Projection& p) {
  int64_t column = 0;
  for (const Weight& w : p.parts) {
    backend.matmul(out.columns(column, w.rows), x, w);
    column += w.rows;
  }
}

}  // namespace

BlockSizes::BlockSizes(const DecoderConfig& c, bool gated, const WeightStore& store)
    : hidden(c.hidden),
      q_dim(c.q_dim()),
      kv_dim(c.kv_dim()),
      ffn(c.ffn),
      inner(gated ? 2 * c.ffn : c.ffn),
      act_type(store.activation_type()),
      out_type(store.output_type()) {}

void BlockSizes::add(const AttentionBlock& block) {
  normed |= block.qkv.act();
  attended |= block.o.act;
}

void BlockSizes::add(const MlpBlock& block) {
  normed |= block.in.act();
  activated |= block.down.act;
}

BlockScratch carve_blocks(Carver& carver, const BlockSizes& z, int max_tokens, int max_outputs) {
  BlockScratch s;
  s.x = carver.f32(max_tokens, z.hidden);
  s.normed = carver.act(max_tokens, z.hidden, z.normed);
  s.qkv = carver.of(z.out_type, max_tokens, z.q_dim + 2 * z.kv_dim);
  s.q = s.qkv.columns(0, z.q_dim);
  if (z.out_type != z.act_type) s.q = carver.tensor(max_tokens, z.q_dim);
  // Without split rows: the product splits x itself, at a row or two inside its blocks.
  const auto attended = static_cast<uint8_t>(z.attended & ~(kActSplit | kActSplitK));
  s.attended = carver.act(max_tokens, z.q_dim, attended);
  s.attended.f8.of_many = true;
  s.delta = carver.of(z.out_type, max_tokens, z.hidden);
  s.inner = carver.of(z.out_type, max_tokens, z.inner);
  s.activated = carver.act(max_tokens, z.ffn, z.activated);
  s.final = carver.act(max_outputs, z.hidden, z.final);
  return s;
}

BlockScratch first_rows_of(BlockScratch s, int64_t n) {
  s.x.rows = s.qkv.rows = s.q.rows = s.delta.rows = s.inner.rows = n;
  s.normed = first_rows_of(s.normed, n);
  s.attended = first_rows_of(s.attended, n);
  s.activated = first_rows_of(s.activated, n);
  return s;
}

void run_attention(Backend& be,
                   const AttentionBlock& block,
                   QkvSpec spec,
                   const BatchView& batch,
                   KvLayer kv,
                   const BlockScratch& s) {
  spec.q_norm = block.q_norm.data();
  spec.k_norm = block.k_norm.data();
  spec.q = s.q;
  project(be, s.qkv, s.normed, block.qkv);
  be.finish_qkv(s.qkv, spec, batch, kv);
  be.attention(s.attended, s.q, spec.attention, batch, kv);
  be.matmul(s.delta, s.attended, block.o);
}

void run_mlp(Backend& be, const MlpBlock& block, const BlockScratch& s) {
  if (block.gated && block.in.parts.size() == 1) {
    be.matmul_gated(s.activated, s.inner, s.normed, block.in.parts[0], block.activation);
  } else {
    project(be, s.inner, s.normed, block.in);
    if (block.gated) {
      be.activate_gated(s.activated, s.inner, block.activation);
    } else {
      be.activate(s.activated, s.inner, block.activation);
    }
  }
  be.matmul(s.delta, s.activated, block.down);
}

}  // namespace sluice
