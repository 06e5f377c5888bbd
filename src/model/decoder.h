// The decoder that all families but gpt2 share: pre-norm with RMSNorm, rotary grouped-query
// attention, a gated MLP. The forward pass is here; families differ in DecoderTraits alone.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "model/blocks.h"
#include "model/config.h"
#include "model/model.h"
#include "model/weights.h"

namespace sluice {

struct DecoderLayer {
  DeviceVector attn_norm, ffn_norm;            // [hidden]
  DeviceVector post_attn_norm, post_ffn_norm;  // [hidden], or empty
  AttentionBlock attention;
  MlpBlock mlp;
};

class Decoder final : public Model {
 public:
  static Result<std::unique_ptr<Model>> load(const ModelSource& source,
                                             WeightStore& store,
                                             const LoadOptions& options,
                                             const DecoderTraits& traits);

  const ModelShape& shape() const override { return shape_; }
  size_t weight_bytes() const override { return weight_bytes_; }
  size_t step_bytes() const override { return weight_bytes_ - (is_tied() ? 0 : embed_.bytes); }
  size_t scratch_bytes(int max_tokens, int max_outputs) const override;
  void reserve(Backend& backend, int max_tokens, int max_outputs, int lanes) override;
  void reserve_in(std::span<std::byte> memory, int max_tokens, int max_outputs) override;
  std::span<std::byte> scratch() const override { return memory_; }
  void use_lane(int lane) override { scratch_ = lanes_[static_cast<size_t>(lane)]; }
  Tensor states() const override { return scratch_.blocks.x; }
  void embed(Backend& backend, const BatchView& batch) override;
  void forward(Backend& backend, const BatchView& batch, std::span<const KvLayer> kv) override;
  void logits(Backend& backend, std::span<const int32_t> rows, Tensor out) override;
  void best(Backend& backend,
            std::span<const int32_t> rows,
            Tensor scratch,
            std::span<Best> out) override;
  void hidden(Backend& backend, std::span<const int32_t> rows, Tensor out) override;

 private:
  struct Scratch {
    BlockScratch blocks;
    float* cos_sin = nullptr;         // [n, rope dims]
    float* window_cos_sin = nullptr;  // the same of windowed layers, where theirs differs
  };
  Scratch carve(std::byte* base, int max_tokens, int max_outputs, size_t* bytes) const;
  // All layers at once, where the backend can; false: nothing was done.
  bool decode_layers(Backend& backend,
                     const BatchView& batch,
                     std::span<const KvLayer> kv,
                     const BlockScratch& s);
  Act final_states(Backend& backend, std::span<const int32_t> rows);
  QkvSpec qkv_of(size_t layer) const;
  // Whether the embedding table is the output matrix of what is loaded.
  bool is_tied() const { return range_.has_last(shape_.num_layers) && !output_; }
  const Weight& output() const { return output_ ? *output_ : embed_; }

  ModelShape shape_;
  DecoderConfig config_;
  float embedding_scale_ = 1;
  Weight embed_;                  // empty where neither end of the model needs it
  std::optional<Weight> output_;  // absent when tied to embed_
  DeviceVector output_norm_;
  LayerRange range_;
  LayerListener* listener_ = nullptr;
  std::vector<DecoderLayer> layers_;  // those of range_
  std::vector<DecodeLayer> decodes_;  // decode_layers()'s, to keep their memory
  size_t weight_bytes_ = 0;
  std::optional<BlockSizes> sizes_;
  Buffer buffer_;
  std::span<std::byte> memory_;  // of the first lane
  std::vector<Scratch> lanes_;
  Scratch scratch_;  // of the lane in use
};

}  // namespace sluice
