// A checkpoint in memory for tests: a small llama's metadata and, on request, all its tensors.
#pragma once

#include <cstring>
#include <string>
#include <vector>

#include "tensor/checkpoint.h"

namespace sluice {

class FakeCheckpoint final : public Checkpoint {
 public:
  FakeCheckpoint() {
    set("general.architecture", std::string("llama"));
    set("llama.block_count", uint64_t{2});
    set("llama.embedding_length", uint64_t{64});
    set("llama.feed_forward_length", uint64_t{96});
    set("llama.attention.head_count", uint64_t{4});
    set("llama.attention.head_count_kv", uint64_t{2});
    set("llama.context_length", uint64_t{512});
    set("llama.attention.layer_norm_rms_epsilon", 1e-5);
    add("token_embd.weight", 50, 64);
  }

  void set(std::string key, MetaValue value) { meta_.set(std::move(key), std::move(value)); }
  void drop(std::string_view key) {
    Meta left;
    for (const auto& [k, v] : meta_.all()) {
      if (k != key) left.set(k, v);
    }
    meta_ = std::move(left);
  }

  // All the tensors of the model but the embedding, which is there.
  void add_weights() {
    for (int i = 0; i < 2; ++i) {
      std::string at = "blk." + std::to_string(i) + ".";
      add(at + "attn_norm.weight", 1, 64);
      add(at + "attn_q.weight", 64, 64);
      add(at + "attn_k.weight", 32, 64);
      add(at + "attn_v.weight", 32, 64);
      add(at + "attn_output.weight", 64, 64);
      add(at + "ffn_norm.weight", 1, 64);
      add(at + "ffn_gate.weight", 96, 64);
      add(at + "ffn_up.weight", 96, 64);
      add(at + "ffn_down.weight", 64, 96);
    }
    add("output_norm.weight", 1, 64);
  }

  void add(const std::string& name, int64_t rows, int64_t cols, std::vector<float> values = {}) {
    values.resize(static_cast<size_t>(rows * cols), 0.01f);
    index_[name] = tensors_.size();
    tensors_.push_back({name, Format::f32, rows, cols, values.size() * 4});
    values_.push_back(std::move(values));
  }
  void drop_tensor(std::string_view name) { index_.erase(index_.find(name)); }
  void reshape(std::string_view name, int64_t rows, int64_t cols) {
    TensorInfo& t = tensors_[index_.find(name)->second];
    t.rows = rows;
    t.cols = cols;
  }

  std::span<const std::byte> data(const TensorInfo& tensor) override {
    return std::as_bytes(std::span(values_[index_.find(tensor.name)->second]));
  }
  void release(const TensorInfo& tensor) override { released.push_back(tensor.name); }

  std::vector<std::string> released;

 private:
  std::vector<std::vector<float>> values_;
};

}  // namespace sluice
