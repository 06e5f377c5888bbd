// A device of the host's memory that computes by the reference backend, and holds K as a GPU does,
// [head][position][dimension] in f32. It runs layers, not whole steps: no packets, no sampling.
// Test code only.
#pragma once

#include <cstring>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "backend/device.h"
#include "backend/ref/ref_backend.h"
#include "base/check.h"

namespace sluice {

class RefDevice final : public Device {
 public:
  uint64_t num_prefetched = 0;
  int fails_in = 0;  // products from now on, once; 0: none

  std::string describe() const override { return "ref"; }
  void attach() override {}
  Buffer allocate(size_t bytes) override { return ref_->allocate(bytes); }
  // Placed weights are read from that memory at each product, so that they must be there then.
  Weight load(std::span<const WeightSegment> segments, std::vector<float> bias) override {
    if (!placed_.data()) return ref_->load(segments, std::move(bias));
    auto data = std::make_unique<Placed>();
    for (const WeightSegment& s : segments) {
      CHECK(s.data.size() <= placed_.size());
      std::memcpy(placed_.data(), s.data.data(), s.data.size());
      data->tensors.push_back(*s.tensor);
      data->bytes.push_back(placed_.first(s.data.size()));
      placed_ = placed_.subspan(s.data.size());
    }
    data->bias = bias;
    Weight w = ref_->load(segments, std::move(bias));
    w.data = std::move(data);
    return w;
  }
  bool keeps_source(const Weight&, size_t) const override { return false; }
  void embed(Tensor out, const Weight& w, std::span<const int32_t> tokens) override {
    ref_->embed(out, w, tokens);
  }
  void rope_table(float* to, const RopeSpec& rope, std::span<const int32_t> positions) override {
    ref_->rope_table(to, rope, positions);
  }
  void rms_norm(const Act& out, Tensor x, const float* w, float eps, const int32_t* rows) override {
    ref_->rms_norm(out, x, w, eps, rows);
  }
  void add_rms_norm(const Act& out, Tensor x, Tensor delta, const float* w, float eps) override {
    ref_->add_rms_norm(out, x, delta, w, eps);
  }
  void layer_norm(const Act& out, Tensor x, const LayerNormSpec& n, const int32_t* rows) override {
    ref_->layer_norm(out, x, n, rows);
  }
  void add_layer_norm(const Act& out, Tensor x, Tensor delta, const LayerNormSpec& n) override {
    ref_->add_layer_norm(out, x, delta, n);
  }
  void add(Tensor x, Tensor delta) override { ref_->add(x, delta); }
  void scale(Tensor x, float factor) override { ref_->scale(x, factor); }
  void softcap(Tensor x, float cap) override { ref_->softcap(x, cap); }
  void matmul(Tensor out, const Act& x, const Weight& w) override {
    if (fails_in > 0 && --fails_in == 0) throw std::runtime_error("the device failed");
    const auto* placed = dynamic_cast<const Placed*>(w.data.get());
    if (!placed) return ref_->matmul(out, x, w);
    std::vector<WeightSegment> segments;
    for (size_t i = 0; i < placed->tensors.size(); ++i)
      segments.push_back({&placed->tensors[i], placed->bytes[i]});
    ref_->matmul(out, x, ref_->load(segments, placed->bias));
  }
  void finish_qkv(Tensor qkv, const QkvSpec& spec, const BatchView& batch, KvLayer kv) override {
    turn_keys(kv, false);
    ref_->finish_qkv(qkv, spec, batch, kv);
    turn_keys(kv, true);
  }
  void attention(const Act& out,
                 Tensor q,
                 const AttentionSpec& spec,
                 const BatchView& batch,
                 KvLayer kv) override {
    turn_keys(kv, false);
    ref_->attention(out, q, spec, batch, kv);
    turn_keys(kv, true);
  }
  void activate(const Act& out, Tensor x, Activation a) override { ref_->activate(out, x, a); }
  void activate_gated(const Act& out, Tensor x, Activation a) override {
    ref_->activate_gated(out, x, a);
  }
  void copy_blocks(std::span<const KvLayer>, std::span<const BlockCopy>) override { unused(); }
  void parallel(int, void (*)(void*, int), void*) override { unused(); }

  Buffer pinned(size_t bytes) override { return allocate(bytes); }
  void upload(void* to, const void* from, size_t bytes) override { std::memcpy(to, from, bytes); }
  void download(void* to, const void* from, size_t bytes) override { std::memcpy(to, from, bytes); }
  void prefetch(void* to, const void* from, size_t bytes, int, int) override {
    std::memcpy(to, from, bytes);
    ++num_prefetched;
  }
  void download_beside(std::span<const HostCopy> copies,
                       void (*then)(void*),
                       void* context) override {
    for (const HostCopy& c : copies) std::memcpy(c.to, c.from, c.bytes);
    if (then) then(context);
  }
  void join_downloads() override {}
  void place_weights(std::span<std::byte> memory) override { placed_ = memory; }
  void reserve_lanes(int, int) override {}
  size_t lane_bytes() const override { return 0; }
  void use_lane(int) override {}
  void mark(int) override {}
  void wait(int) override {}
  void start_after(int) override {}
  void start_after(const uint64_t*, uint64_t) override {}
  float elapsed(int, int) override { return 0; }
  void begin_capture() override { unused(); }
  int end_capture() override { return 0; }
  void abort_capture() noexcept override {}
  void launch(int) override { unused(); }
  void reserve_sampling(int, int) override {}
  size_t sampling_bytes(int, int, int) const override { return 0; }
  void prepare(const Packet&, const StepArrays&, int, int) override { unused(); }
  void sample(const SampleStep&) override { unused(); }
  void reserve_attention(const AttentionSpec&, int, int) override {}
  size_t attention_bytes(const AttentionSpec&, int, int) const override { return 0; }
  PrefixSharing prefix_sharing(const AttentionSpec&, KvType) const override { return {}; }
  void tune(int, int) override {}
  size_t free_memory() const override { return 0; }
  DeviceLimits measure_limits() override { return {}; }
  void begin_profile() override {}
  std::vector<OpTime> end_profile() override { return {}; }
  void abort_profile() noexcept override {}
  void replace_op(const OpTime&, OpMode) override {}
  double time_captured(const std::function<void()>&, std::vector<std::string>*) override {
    return 0;
  }

 private:
  struct Placed final : WeightData {
    std::vector<TensorInfo> tensors;
    std::vector<std::span<std::byte>> bytes;
    std::vector<float> bias;
  };

  static void unused() { CHECK(!"this device only runs layers"); }

  // K of all blocks between [position][dimension] and [dimension][position]. V lies behind K.
  void turn_keys(const KvLayer& kv, bool to_device) {
    CHECK(kv.type == DType::f32);
    const auto dim = static_cast<size_t>(kv.head_dim), size = static_cast<size_t>(kv.block_size);
    auto* head = static_cast<float*>(kv.k);
    const auto* end = static_cast<const float*>(kv.v);
    turned_.resize(dim * size);
    for (; head < end; head += dim * size) {
      for (size_t p = 0; p < size; ++p) {
        for (size_t d = 0; d < dim; ++d) {
          const size_t device = p * dim + d, host = d * size + p;
          turned_[to_device ? device : host] = head[to_device ? host : device];
        }
      }
      std::memcpy(head, turned_.data(), turned_.size() * sizeof(float));
    }
  }

  std::unique_ptr<Backend> ref_ = make_ref_backend();
  std::span<std::byte> placed_;
  std::vector<float> turned_;
};

}  // namespace sluice
