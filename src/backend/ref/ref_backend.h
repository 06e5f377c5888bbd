// The oracle: every op as its formula says, one thread, nothing clever. Weights stay in the format
// they came in and are decoded a row at a time; sums are in double. Used by tests and to bring up
// models. One thread, like every Backend.
#pragma once

#include <memory>

#include "backend/backend.h"

namespace sluice {

class RefBackend final : public Backend {
 public:
  std::string describe() const override { return "ref, 1 thread"; }
  void attach() override {}
  Buffer allocate(size_t bytes) override;
  Weight load(std::span<const WeightSegment> segments, std::vector<float> bias) override;
  bool keeps_source(const Weight&, size_t) const override { return false; }

  void embed(Tensor out, const Weight& table, std::span<const int32_t> tokens) override;
  void rope_table(float* cos_sin,
                  const RopeSpec& rope,
                  std::span<const int32_t> positions) override;
  void rms_norm(const Act& out,
                Tensor x,
                const float* weight,
                float eps,
                const int32_t* rows = nullptr) override;
  void add_rms_norm(
      const Act& out, Tensor x, Tensor delta, const float* weight, float eps) override;
  void layer_norm(const Act& out,
                  Tensor x,
                  const LayerNormSpec& norm,
                  const int32_t* rows = nullptr) override;
  void add_layer_norm(const Act& out, Tensor x, Tensor delta, const LayerNormSpec& norm) override;
  void add(Tensor x, Tensor delta) override;
  void scale(Tensor x, float factor) override;
  void softcap(Tensor x, float cap) override;
  void matmul(Tensor out, const Act& x, const Weight& w) override;
  void finish_qkv(Tensor qkv, const QkvSpec& spec, const BatchView& batch, KvLayer kv) override;
  void attention(const Act& out,
                 Tensor q,
                 const AttentionSpec& spec,
                 const BatchView& batch,
                 KvLayer kv) override;
  void activate(const Act& out, Tensor x, Activation activation) override;
  void activate_gated(const Act& out, Tensor gate_up, Activation activation) override;
  void copy_blocks(std::span<const KvLayer> layers, std::span<const BlockCopy> copies) override;
  void parallel(int n, void (*f)(void* ctx, int index), void* ctx) override;
};

std::unique_ptr<Backend> make_ref_backend();

}  // namespace sluice
