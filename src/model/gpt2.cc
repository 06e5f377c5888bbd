// GPT-2, the simplest decoder here and the one to read first: learned positions, layer norms with
// bias, as many kv heads as heads, an MLP of two matrices around GELU, biases everywhere, and the
// embedding table again as the output matrix.
//
//   x = embedding of the token + embedding of its position
//   for each layer:  x += attention(norm(x));  x += mlp(norm(x))
//   logits = norm(x) · embeddingᵀ
#include <cmath>
#include <optional>

#include "base/check.h"
#include "base/str.h"
#include "model/blocks.h"
#include "model/families.h"

namespace sluice {

const DecoderTraits kGpt2{
    .rotary = false, .layer_norm = true, .qkv_bias = true, .activation = Activation::gelu_tanh};

namespace {

struct Norm {
  DeviceVector weight, bias;  // [hidden]
  LayerNormSpec with(float eps) const { return {weight.data(), bias.data(), eps}; }
};

struct Layer {
  Norm attn_norm, ffn_norm;
  AttentionBlock attention;
  MlpBlock mlp;
};

class Gpt2 final : public Model {
 public:
  static LoadedModel load(const ModelSource& source,
                          WeightStore& store,
                          const LoadOptions& options,
                          const DecoderTraits& traits);

  const ModelShape& shape() const override { return shape_; }
  size_t weight_bytes() const override { return weight_bytes_; }
  size_t step_bytes() const override {
    return weight_bytes_ - positions_.bytes - (is_tied() ? 0 : tokens_.bytes);
  }
  size_t scratch_bytes(int max_tokens, int max_outputs) const override;
  void reserve(Backend& backend, int max_tokens, int max_outputs, int lanes) override;
  void reserve_in(std::span<std::byte> memory, int max_tokens, int max_outputs) override;
  std::span<std::byte> scratch() const override { return memory_; }
  void use_lane(int lane) override { scratch_ = lanes_[static_cast<size_t>(lane)]; }
  Tensor states() const override { return scratch_.x; }
  void embed(Backend& backend, const BatchView& batch) override;
  void forward(Backend& backend, const BatchView& batch, std::span<const KvLayer> kv) override;
  void logits(Backend& backend, std::span<const int32_t> rows, Tensor out) override;
  void best(Backend& backend,
            std::span<const int32_t> rows,
            Tensor scratch,
            std::span<Best> out) override;
  void hidden(Backend& backend, std::span<const int32_t> rows, Tensor out) override;

 private:
  BlockScratch carve(std::byte* base, int max_tokens, int max_outputs, size_t* bytes) const;
  Act final_states(Backend& backend, std::span<const int32_t> rows);
  bool is_tied() const { return range_.has_last(shape_.num_layers) && !output_; }
  const Weight& output() const { return output_ ? *output_ : tokens_; }

  ModelShape shape_;
  float eps_ = 0;
  Weight tokens_;                 // [vocab, hidden]
  Weight positions_;              // [max_len, hidden]
  std::optional<Weight> output_;  // files that store tokens_ twice
  LayerRange range_;
  LayerListener* listener_ = nullptr;
  std::vector<Layer> layers_;  // those of range_
  Norm output_norm_;
  size_t weight_bytes_ = 0;
  std::optional<BlockSizes> sizes_;
  Buffer buffer_;
  std::span<std::byte> memory_;  // of the first lane
  std::vector<BlockScratch> lanes_;
  BlockScratch scratch_;  // of the lane in use
};

LoadedModel Gpt2::load(const ModelSource& source,
                       WeightStore& store,
                       const LoadOptions& options,
                       const DecoderTraits& traits) {
  Result<DecoderConfig> config = read_decoder_config(source.headers, nullptr, traits);
  if (!config) return config.error();
  if (config->q_dim() != config->hidden || config->num_kv_heads != config->num_heads)
    return Error{400, "gpt2 needs heads that divide the hidden size and a kv head for each"};
  auto m = std::make_unique<Gpt2>();
  m->shape_ = config->shape();
  m->eps_ = config->eps;
  int64_t hidden = config->hidden, ffn = config->ffn;

  WeightLoader w(source, store, options);
  auto norm = [&](const std::string& name) {
    return Norm{w.vector(name + ".weight", hidden), w.vector(name + ".bias", hidden)};
  };
  m->range_ = options.layers;
  m->listener_ = options.listener;
  const bool has_last = m->range_.has_last(config->num_layers), tied = !w.has("output.weight");
  if (m->range_.has_first() || (has_last && tied))
    m->tokens_ = w.matrix("token_embd", config->vocab, hidden);
  if (m->range_.has_first()) m->positions_ = w.matrix("position_embd", config->max_len, hidden);
  if (has_last && !tied) m->output_ = w.matrix("output", config->vocab, hidden);
  for (int l = m->range_.first; l < std::min(m->range_.end, config->num_layers) && w.ok(); ++l) {
    std::string blk = strf("blk.%d.", l);
    Layer& layer = m->layers_.emplace_back();
    if (options.listener) options.listener->loads(l);
    layer.attn_norm = norm(blk + "attn_norm");
    layer.attention.qkv = w.projection({{blk + "attn_qkv", 3 * hidden}}, hidden, true);
    layer.attention.o = w.matrix(blk + "attn_output", hidden, hidden, true);
    layer.ffn_norm = norm(blk + "ffn_norm");
    layer.mlp.in = w.projection({{blk + "ffn_up", ffn}}, hidden, true);
    layer.mlp.down = w.matrix(blk + "ffn_down", hidden, ffn, true);
    layer.mlp.activation = traits.activation;
  }
  if (has_last) m->output_norm_ = norm("output_norm");
  if (!w.ok()) return w.error();
  m->weight_bytes_ = w.weight_bytes();
  m->sizes_.emplace(*config, false, store);
  for (const Layer& layer : m->layers_) {
    m->sizes_->add(layer.attention);
    m->sizes_->add(layer.mlp);
  }
  m->sizes_->final = m->output().act;
  return std::unique_ptr<Model>(std::move(m));
}

BlockScratch Gpt2::carve(std::byte* base, int max_tokens, int max_outputs, size_t* bytes) const {
  Carver carver(base, sizes_->act_type);
  BlockScratch s = carve_blocks(carver, *sizes_, max_tokens, max_outputs);
  *bytes = carver.used();
  return s;
}

size_t Gpt2::scratch_bytes(int max_tokens, int max_outputs) const {
  size_t bytes = 0;
  carve(nullptr, max_tokens, max_outputs, &bytes);
  return bytes;
}

void Gpt2::reserve(Backend& backend, int max_tokens, int max_outputs, int lanes) {
  size_t each = scratch_bytes(max_tokens, max_outputs), bytes = 0;
  buffer_ = backend.allocate(each * static_cast<size_t>(lanes));
  auto* base = static_cast<std::byte*>(buffer_.data());
  memory_ = {base, each};
  lanes_.clear();
  for (int lane = 0; lane < lanes; ++lane, base += each)
    lanes_.push_back(carve(base, max_tokens, max_outputs, &bytes));
  use_lane(0);
}

void Gpt2::reserve_in(std::span<std::byte> memory, int max_tokens, int max_outputs) {
  size_t bytes = 0;
  buffer_ = {};
  memory_ = memory;
  lanes_.assign(1, carve(memory.data(), max_tokens, max_outputs, &bytes));
  CHECK(bytes <= memory.size());
  use_lane(0);
}

void Gpt2::embed(Backend& be, const BatchView& batch) {
  const BlockScratch s = first_rows_of(scratch_, batch.num_tokens);
  const auto n = static_cast<size_t>(batch.num_tokens);
  be.embed(s.x, tokens_, {batch.tokens, n});
  be.embed(s.delta, positions_, {batch.positions, n});
  be.add(s.x, s.delta);
}

void Gpt2::forward(Backend& be, const BatchView& batch, std::span<const KvLayer> kv) {
  CHECK(batch.num_tokens <= scratch_.x.rows && kv.size() == layers_.size());
  const BlockScratch s = first_rows_of(scratch_, batch.num_tokens);
  auto n = static_cast<size_t>(batch.num_tokens);
  QkvSpec qkv;  // no norms, no rotation: k and v go to the cache as they are
  qkv.attention.num_heads = qkv.attention.num_kv_heads = shape_.num_heads;
  qkv.attention.head_dim = shape_.head_dim;
  qkv.attention.scale = 1 / std::sqrt(static_cast<float>(shape_.head_dim));

  if (range_.has_first()) {
    be.embed(s.x, tokens_, {batch.tokens, n});
    be.embed(s.delta, positions_, {batch.positions, n});
    be.add_layer_norm(s.normed, s.x, s.delta, layers_[0].attn_norm.with(eps_));
  } else {
    be.layer_norm(s.normed, s.x, layers_[0].attn_norm.with(eps_));
  }
  for (size_t l = 0; l < layers_.size(); ++l) {
    const Layer& w = layers_[l];
    const int number = range_.first + static_cast<int>(l);
    if (listener_) listener_->begins(number);
    run_attention(be, w.attention, qkv, batch, kv[l], s);
    if (watch_) watch_->wrote(static_cast<int>(l));
    be.add_layer_norm(s.normed, s.x, s.delta, w.ffn_norm.with(eps_));
    run_mlp(be, w.mlp, s);
    if (listener_) listener_->ended(number);
    if (l + 1 < layers_.size()) {
      be.add_layer_norm(s.normed, s.x, s.delta, layers_[l + 1].attn_norm.with(eps_));
    } else {
      be.add(s.x, s.delta);
    }
  }
}

Act Gpt2::final_states(Backend& be, std::span<const int32_t> rows) {
  auto n = static_cast<int64_t>(rows.size());
  CHECK(n <= scratch_.final.q.rows);
  Act final = first_rows_of(scratch_.final, n);
  be.layer_norm(final, scratch_.x, output_norm_.with(eps_), rows.data());
  return final;
}

void Gpt2::logits(Backend& be, std::span<const int32_t> rows, Tensor out) {
  be.matmul(out, final_states(be, rows), output());
}

void Gpt2::best(Backend& be, std::span<const int32_t> rows, Tensor scratch, std::span<Best> out) {
  be.matmul_best(scratch, final_states(be, rows), output(), out);
}

void Gpt2::hidden(Backend& be, std::span<const int32_t> rows, Tensor out) {
  Act normed;
  normed.f = out;
  be.layer_norm(normed, scratch_.x, output_norm_.with(eps_), rows.data());
}

}  // namespace

LoadedModel load_gpt2(const ModelSource& source,
                      WeightStore& store,
                      const LoadOptions& options,
                      const DecoderTraits& traits) {
  return Gpt2::load(source, store, options, traits);
}

}  // namespace sluice
