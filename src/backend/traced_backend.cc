#include "backend/traced_backend.h"

namespace sluice {

void TracedBackend::embed(Tensor out, const Weight& table, std::span<const int32_t> tokens) {
  timed("embed", [&] { inner_.embed(out, table, tokens); });
}

void TracedBackend::rope_table(float* cos_sin,
                               const RopeSpec& rope,
                               std::span<const int32_t> positions) {
  timed("rope_table", [&] { inner_.rope_table(cos_sin, rope, positions); });
}

void TracedBackend::rms_norm(
    const Act& out, Tensor x, const float* weight, float eps, const int32_t* rows) {
  timed("rms_norm", [&] { inner_.rms_norm(out, x, weight, eps, rows); });
}

void TracedBackend::add_rms_norm(
    const Act& out, Tensor x, Tensor delta, const float* weight, float eps) {
  timed("add_rms_norm", [&] { inner_.add_rms_norm(out, x, delta, weight, eps); });
}

void TracedBackend::layer_norm(const Act& out,
                               Tensor x,
                               const LayerNormSpec& norm,
                               const int32_t* rows) {
  timed("layer_norm", [&] { inner_.layer_norm(out, x, norm, rows); });
}

void TracedBackend::add_layer_norm(const Act& out,
                                   Tensor x,
                                   Tensor delta,
                                   const LayerNormSpec& norm) {
  timed("add_layer_norm", [&] { inner_.add_layer_norm(out, x, delta, norm); });
}

void TracedBackend::add(Tensor x, Tensor delta) {
  timed("add", [&] { inner_.add(x, delta); });
}

void TracedBackend::scale(Tensor x, float factor) {
  timed("scale", [&] { inner_.scale(x, factor); });
}

void TracedBackend::softcap(Tensor x, float cap) {
  timed("softcap", [&] { inner_.softcap(x, cap); });
}

void TracedBackend::matmul(Tensor out, const Act& x, const Weight& w) {
  timed("matmul", [&] { inner_.matmul(out, x, w); },
        {{"tokens", static_cast<double>(x.rows())},
         {"rows", static_cast<double>(w.rows)},
         {"cols", static_cast<double>(w.cols)}});
}

void TracedBackend::matmul_best(Tensor out, const Act& x, const Weight& w, std::span<Best> best) {
  timed("matmul_best", [&] { inner_.matmul_best(out, x, w, best); },
        {{"tokens", static_cast<double>(x.rows())},
         {"rows", static_cast<double>(w.rows)},
         {"cols", static_cast<double>(w.cols)}});
}

void TracedBackend::finish_qkv(Tensor qkv,
                               const QkvSpec& spec,
                               const BatchView& batch,
                               KvLayer kv) {
  timed("finish_qkv", [&] { inner_.finish_qkv(qkv, spec, batch, kv); });
}

void TracedBackend::attention(
    const Act& out, Tensor q, const AttentionSpec& spec, const BatchView& batch, KvLayer kv) {
  timed("attention", [&] { inner_.attention(out, q, spec, batch, kv); },
        {{"tokens", static_cast<double>(batch.num_tokens)},
         {"decodes", static_cast<double>(batch.num_decode)}});
}

void TracedBackend::activate(const Act& out, Tensor x, Activation activation) {
  timed("activate", [&] { inner_.activate(out, x, activation); });
}

void TracedBackend::activate_gated(const Act& out, Tensor gate_up, Activation activation) {
  timed("activate_gated", [&] { inner_.activate_gated(out, gate_up, activation); });
}

void TracedBackend::matmul_gated(
    const Act& out, Tensor inner, const Act& x, const Weight& w, Activation activation) {
  timed("matmul_gated", [&] { inner_.matmul_gated(out, inner, x, w, activation); },
        {{"tokens", static_cast<double>(x.rows())},
         {"rows", static_cast<double>(w.rows)},
         {"cols", static_cast<double>(w.cols)}});
}

void TracedBackend::copy_blocks(std::span<const KvLayer> layers,
                                std::span<const BlockCopy> copies) {
  timed("copy_blocks", [&] { inner_.copy_blocks(layers, copies); });
}

void TracedBackend::parallel(int n, void (*f)(void* ctx, int index), void* ctx) {
  timed("parallel", [&] { inner_.parallel(n, f, ctx); });
}

}  // namespace sluice
