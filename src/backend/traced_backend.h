// A backend that times every op of another one, for --trace. Ops are spans on one track, matmuls
// with the size of their weight. Only where somebody traces: others call their backend directly.
#pragma once

#include "backend/backend.h"
#include "base/clock.h"
#include "base/trace.h"

namespace sluice {

class TracedBackend final : public Backend {
 public:
  // All three outlive it. For backends that compute while they are called.
  TracedBackend(Backend& inner, const Clock& clock, TraceTrack& track)
      : inner_(inner), clock_(clock), track_(track) {}

  Weight load(std::span<const WeightSegment> segments, std::vector<float> bias) override {
    return inner_.load(segments, std::move(bias));
  }
  bool keeps_source(const Weight& weight, size_t segment) const override {
    return inner_.keeps_source(weight, segment);
  }
  size_t scratch_bytes() const override { return inner_.scratch_bytes(); }
  bool makes_random(Format format) const override { return inner_.makes_random(format); }
  Buffer vector(std::span<const float> values) override { return inner_.vector(values); }
  DType activation_type() const override { return inner_.activation_type(); }
  DType output_type() const override { return inner_.output_type(); }
  std::string describe() const override { return inner_.describe(); }
  void attach() override { inner_.attach(); }
  Buffer allocate(size_t bytes) override { return inner_.allocate(bytes); }
  size_t page_bytes() const override { return inner_.page_bytes(); }
  std::unique_ptr<PageMemory> page_memory(size_t num_pages) override {
    return inner_.page_memory(num_pages);
  }
  uint64_t progress() const override { return inner_.progress(); }

  void embed(Tensor out, const Weight& table, std::span<const int32_t> tokens) override;
  void rope_table(float* cos_sin,
                  const RopeSpec& rope,
                  std::span<const int32_t> positions) override;
  void rms_norm(
      const Act& out, Tensor x, const float* weight, float eps, const int32_t* rows) override;
  void add_rms_norm(
      const Act& out, Tensor x, Tensor delta, const float* weight, float eps) override;
  void layer_norm(const Act& out,
                  Tensor x,
                  const LayerNormSpec& norm,
                  const int32_t* rows) override;
  void add_layer_norm(const Act& out, Tensor x, Tensor delta, const LayerNormSpec& norm) override;
  void add(Tensor x, Tensor delta) override;
  void scale(Tensor x, float factor) override;
  void softcap(Tensor x, float cap) override;
  void matmul(Tensor out, const Act& x, const Weight& w) override;
  void matmul_best(Tensor out, const Act& x, const Weight& w, std::span<Best> best) override;
  void finish_qkv(Tensor qkv, const QkvSpec& spec, const BatchView& batch, KvLayer kv) override;
  void attention(const Act& out,
                 Tensor q,
                 const AttentionSpec& spec,
                 const BatchView& batch,
                 KvLayer kv) override;
  void activate(const Act& out, Tensor x, Activation activation) override;
  void activate_gated(const Act& out, Tensor gate_up, Activation activation) override;
  void matmul_gated(
      const Act& out, Tensor inner, const Act& x, const Weight& w, Activation activation) override;
  int max_decode_rows() const override { return inner_.max_decode_rows(); }
  bool decode_layers(const DecodeStep& step, std::span<const DecodeLayer> layers) override {
    return inner_.decode_layers(step, layers);
  }
  void copy_blocks(std::span<const KvLayer> layers, std::span<const BlockCopy> copies) override;
  void parallel(int n, void (*f)(void* ctx, int index), void* ctx) override;

 private:
  template <typename Run>
  void timed(const char* op, const Run& run, std::initializer_list<TraceArg> args = {}) {
    const Time begin = clock_.now();
    run();
    track_.span(op, begin, clock_.now(), args);
  }

  Backend& inner_;
  const Clock& clock_;
  TraceTrack& track_;
};

}  // namespace sluice
