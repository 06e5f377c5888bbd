#include "runtime/fit.h"

#include <gtest/gtest.h>

#include "load/random_checkpoint.h"

namespace sluice {
namespace {

// 32,768 positions take 1 GiB of K and V in 16 bits with heads of 64 dimensions.
std::string fit_config(int head_dim) {
  return R"({"model_type": "llama", "hidden_size": 512, "num_hidden_layers": 16,
    "num_attention_heads": 8, "num_key_value_heads": 8, "intermediate_size": 512,
    "vocab_size": 300, "max_position_embeddings": 32768, "tie_word_embeddings": true,
    "head_dim": )" +
         std::to_string(head_dim) + "}";
}

class FitAdviceOf : public testing::Test {
 protected:
  // The options advised on a GPU where `share` of the K and V of a whole context fits beside all
  // the rest.
  std::vector<std::string> on_gpu(int head_dim, double share, std::optional<KvType> given = {}) {
    std::unique_ptr<Checkpoint> file =
        random_checkpoint_from_text(fit_config(head_dim), "fit", Format::bf16, 1).value();
    const ModelShape shape = read_shape(*file).value();
    EngineOptions options;
    options.device.kind = DeviceChoice::Kind::cuda;
    options.ctx = shape.max_len;
    options.scheduler.max_seqs = 1;
    DeviceMemory gpu{size_t{64} << 30, DType::bf16};
    EngineOptions roomy = options;
    const Ledger all = plan_memory(*file, shape, roomy, &gpu).value();
    const auto kv = static_cast<double>(shape.kv_bytes_per_token(DType::bf16) * 32768);
    const auto rest = static_cast<double>(all.weights + all.workspace + all.program);
    gpu.available = static_cast<size_t>(rest + kv * share);
    options.kv_type = given;
    std::vector<std::string> out;
    for (const FitAdvice& a : what_would_fit(*file, shape, options, &gpu)) out.push_back(a.options);
    return out;
  }
};

// Less of the context fits in 16 bits; all of it in int8.
TEST_F(FitAdviceOf, Int8KvIsAdvisedOnAGpu) {
  const std::vector<std::string> advice = on_gpu(64, 0.6);
  ASSERT_EQ(advice.size(), 2u);
  EXPECT_EQ(advice[0].find("--ctx "), 0u);
  EXPECT_EQ(advice[1], "--kv int8");
}

// int8 takes 0.53 of 16 bits and f8 0.5.
TEST_F(FitAdviceOf, F8OnlyWhereInt8IsNotEnoughAndF8Is) {
  const std::vector<std::string> advice = on_gpu(64, 0.515);
  ASSERT_EQ(advice.size(), 3u);
  EXPECT_EQ(advice[1].find("--kv int8 --ctx "), 0u) << advice[1];
  EXPECT_EQ(advice[2], "--kv f8");
  for (const std::string& a : on_gpu(64, 0.3)) EXPECT_EQ(a.find("--kv f8"), std::string::npos) << a;
}

// As little memory as f8 has a useful context in: too little for int8.
TEST_F(FitAdviceOf, F8WhereInt8HasNoUsefulContext) {
  double least = -1, enough = 0.3;
  for (int i = 0; i < 20; ++i) {
    const double share = (least + enough) / 2;
    const std::vector<std::string> f8 = on_gpu(64, share, KvType(DType::f8));
    (!f8.empty() && f8[0].starts_with("--ctx ") ? enough : least) = share;
  }
  const std::vector<std::string> advice = on_gpu(64, enough);
  ASSERT_FALSE(advice.empty());
  EXPECT_TRUE(advice[0].starts_with("--kv f8 --ctx ")) << advice[0];
}

TEST_F(FitAdviceOf, GroupsDivideTheHeads) {
  const std::vector<std::string> advice = on_gpu(80, 0.7);
  ASSERT_EQ(advice.size(), 2u);
  EXPECT_EQ(advice[1], "--kv int8:8");
}

}  // namespace
}  // namespace sluice
