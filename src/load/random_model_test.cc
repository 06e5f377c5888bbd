// Random checkpoints are complete: every family loads from one, in every format, and computes
// finite logits.
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <vector>

#include <gtest/gtest.h>

#include "backend/ref/ref_backend.h"
#include "base/str.h"
#include "load/random_checkpoint.h"
#include "model/model.h"
#include "tensor/formats/all.h"

namespace sluice {
namespace {

constexpr int kVocab = 300;
constexpr int kTokens = 5;
constexpr int kBlock = 16;

// Logits of the last of five tokens of one sequence, from an empty cache.
std::vector<float> last_logits(Model& model, Backend& backend) {
  const ModelShape& s = model.shape();
  const size_t block_floats = static_cast<size_t>(s.num_kv_heads * s.head_dim * kBlock);
  std::vector<Buffer> memory;
  std::vector<KvLayer> kv;
  for (int layer = 0; layer < s.num_layers; ++layer) {
    memory.push_back(backend.allocate(2 * block_floats * 4));
    memory.push_back(backend.allocate(2 * block_floats * 4));
    kv.push_back({memory[memory.size() - 2].data(), memory.back().data(), DType::f32, kBlock,
                  s.num_kv_heads, s.head_dim});
  }
  const int32_t tokens[kTokens] = {0, 7, kVocab - 1, 3, 7};
  const int32_t positions[kTokens] = {0, 1, 2, 3, 4};
  const int32_t slots[kTokens] = {};
  const int32_t table[1] = {1};
  const int32_t out_rows[1] = {kTokens - 1};
  const SliceView slices[1] = {{0, kTokens, 0, 0}};
  BatchView batch{kTokens, 0, tokens, positions, slots, slices, table, 1};
  model.reserve(backend, kTokens, 1);
  model.forward(backend, batch, kv);
  std::vector<float> logits(kVocab);
  model.logits(backend, out_rows, Tensor{logits.data(), DType::f32, 1, kVocab, kVocab});
  return logits;
}

std::string tiny_config(const char* type, bool tied, const char* more) {
  return strf(R"({"model_type": "%s", "hidden_size": 256, "num_hidden_layers": 3,
    "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 32, "intermediate_size": 512,
    "vocab_size": %d, "max_position_embeddings": 512, "tie_word_embeddings": %s%s})",
              type, kVocab, tied ? "true" : "false", more);
}

TEST(RandomModel, EveryFamilyRunsInEveryFormat) {
  const std::string configs[] = {
      tiny_config("llama", false, R"(, "rope_scaling": {"rope_type": "llama3", "factor": 8,
        "low_freq_factor": 1, "high_freq_factor": 4, "original_max_position_embeddings": 64})"),
      tiny_config("mistral", false, R"(, "sliding_window": 4)"),
      tiny_config("qwen2", true, R"(, "rope_scaling": {"type": "yarn", "factor": 4})"),
      tiny_config("qwen3", true, R"(, "rope_scaling": {"type": "linear", "factor": 2})"),
      tiny_config("phi3", false,
                  R"(, "partial_rotary_factor": 0.25, "rope_scaling": {"type": "longrope",
        "original_max_position_embeddings": 64, "short_factor": [1, 1, 1, 1],
        "long_factor": [1, 2, 3, 4]})"),
      tiny_config("gemma2", true, R"(, "sliding_window": 4)"),
      tiny_config("gemma3_text", true, R"(, "sliding_window": 4)"),
      strf(R"({"model_type": "gpt2", "n_embd": 256, "n_layer": 3, "n_head": 8, "n_positions": 512,
        "vocab_size": %d})",
           kVocab),
  };
  std::string dir = (std::filesystem::temp_directory_path() / "sluice_random_XXXXXX").string();
  ASSERT_NE(mkdtemp(dir.data()), nullptr);
  const std::string path = strf("%s/config.json", dir.c_str());
  for (const std::string& config : configs) {
    std::ofstream(path) << config;
    for (int f = 0; f < kNumFormats; ++f) {
      auto checkpoint = random_checkpoint(path, static_cast<Format>(f), 1);
      ASSERT_TRUE(checkpoint) << checkpoint.error().message;
      RefBackend backend;
      auto model = load_model(**checkpoint, backend, {});
      ASSERT_TRUE(model) << model.error().message << "\n" << config;
      const std::vector<float> logits = last_logits(**model, backend);
      double squares = 0;
      for (float x : logits) {
        ASSERT_TRUE(std::isfinite(x)) << config;
        squares += x * x;
      }
      // Each is a sum of 256 products of unit activations and weights of deviation 1/16.
      EXPECT_NEAR(std::sqrt(squares / kVocab), 1, 0.25)
          << config << format_info(static_cast<Format>(f)).name;
    }
  }
  std::filesystem::remove_all(dir);
}

}  // namespace
}  // namespace sluice
