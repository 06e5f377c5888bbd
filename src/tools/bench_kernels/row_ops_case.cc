#include <algorithm>
#include <cmath>
#include <vector>

#include "exec/kv_cache.h"
#include "model/scratch.h"
#include "tools/bench_kernels/cases.h"

namespace sluice {

namespace {

constexpr int kPositions = 16;  // of a block; a sequence has one
constexpr float kEps = 1e-5f;

// Tensors, activations and a cache for decodes of `max_m` sequences that begin.
class RowOpsCase final : public KernelCase {
 public:
  RowOpsCase(Backend& backend, const RowOpsCaseSpec& s)
      : backend_(backend),
        shape_(one_layer(s.shape)),
        cache_(backend, shape_, KvType(DType::f16), s.max_m, kPositions),
        weights_(static_cast<size_t>(shape_.hidden), 1.0f) {
    rope_.dims = shape_.head_dim / 2 * 2;
    for (int i = 0; i < rope_.dims / 2; ++i)
      rope_.inv_freq.push_back(
          std::pow(10000.0f, -2.0f * static_cast<float>(i) / static_cast<float>(shape_.head_dim)));
    Carver counted(nullptr, DType::f32);
    carve(counted, s);
    memory_ = backend.allocate(counted.used());
    Carver carver(static_cast<std::byte*>(memory_.data()), DType::f32);
    carve(carver, s);
    for (Tensor* t : {&x_, &delta_, &qkv_, &inner_})
      std::fill_n(static_cast<float*>(t->data), t->rows * t->cols, 0.5f);
    for (int i = 0; i < s.max_m; ++i) {
      slices_.push_back({i, 1, 0, i});
      positions_.push_back(0);
      row_slot_.push_back(i);
      tables_.push_back(i + 1);
    }
    backend.rope_table(cos_sin_, rope_, positions_);  // a step makes it once for all layers
  }

  void run(int m) override {
    const auto n = static_cast<size_t>(m);
    Tensor x = x_, delta = delta_, qkv = qkv_, inner = inner_;
    x.rows = delta.rows = qkv.rows = inner.rows = m;
    BatchView batch;
    batch.num_tokens = batch.num_decode = m;
    batch.positions = positions_.data();
    batch.row_slot = row_slot_.data();
    batch.slices = std::span(slices_).first(n);
    batch.tables = tables_.data();
    batch.table_stride = 1;
    QkvSpec spec;
    spec.attention = {shape_.num_heads, shape_.num_kv_heads, shape_.head_dim, 1};
    spec.rope = &rope_;
    spec.cos_sin = cos_sin_;
    const Act normed = first_rows_of(normed_, m);
    backend_.add_rms_norm(normed, x, delta, weights_.data(), kEps);
    backend_.finish_qkv(qkv, spec, batch, cache_.layers()[0]);
    backend_.add_rms_norm(normed, x, delta, weights_.data(), kEps);
    backend_.activate_gated(first_rows_of(activated_, m), inner, Activation::silu);
  }
  double bytes(int m) const override {
    return 4.0 * m * static_cast<double>(2 * x_.cols + 2 * delta_.cols + qkv_.cols + inner_.cols);
  }
  double ops(int) const override { return 0; }

 private:
  // Forms that rows of such a width can have.
  static uint8_t needs(uint8_t acts, int cols) {
    if (cols % kActSuper != 0) acts &= static_cast<uint8_t>(~kActSuper8);
    if (cols % kActBlock != 0) acts &= static_cast<uint8_t>(~(kActQ8 | kActRow8));
    return acts == 0 ? uint8_t{kActF32} : acts;
  }
  void carve(Carver& carver, const RowOpsCaseSpec& s) {
    x_ = carver.f32(s.max_m, shape_.hidden);
    delta_ = carver.f32(s.max_m, shape_.hidden);
    qkv_ = carver.f32(s.max_m, (shape_.num_heads + 2 * shape_.num_kv_heads) * shape_.head_dim);
    inner_ = carver.f32(s.max_m, 2 * shape_.ffn);
    normed_ = carver.act(s.max_m, shape_.hidden, needs(s.acts, shape_.hidden));
    activated_ = carver.act(s.max_m, shape_.ffn, needs(s.acts, shape_.ffn));
    cos_sin_ = static_cast<float*>(carver.f32(s.max_m, rope_.dims).data);
  }

  Backend& backend_;
  ModelShape shape_;
  KvCache cache_;
  std::vector<float> weights_;  // of the norms
  RopeSpec rope_;
  Buffer memory_;
  Tensor x_, delta_, qkv_, inner_;
  Act normed_, activated_;
  float* cos_sin_ = nullptr;
  std::vector<int32_t> tables_, positions_, row_slot_;
  std::vector<SliceView> slices_;
};

}  // namespace

std::unique_ptr<KernelCase> make_row_ops_case(Backend& backend, const RowOpsCaseSpec& spec) {
  return std::make_unique<RowOpsCase>(backend, spec);
}

}  // namespace sluice
