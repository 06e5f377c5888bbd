#include "tools/sol.h"

#include <gtest/gtest.h>

namespace sluice {
namespace {

// Llama-2-7B in f16: 13.2 GB that a step reads, 512 KiB of KV per token.
SolModel llama_7b() {
  SolModel m;
  m.shape.num_layers = 32, m.shape.hidden = 4096, m.shape.vocab = 32000;
  m.shape.num_heads = m.shape.num_kv_heads = 32, m.shape.head_dim = 128, m.shape.ffn = 11008;
  m.weights = 13.48e9;
  m.step = 13.21e9;
  m.kv_token = 32 * 32 * 2 * 128 * 2;
  return m;
}

const SolDevice& known_device(const std::string& name) {
  for (const SolDevice& d : sol_devices())
    if (d.name == name) return d;
  ADD_FAILURE() << name;
  return sol_devices()[0];
}

TEST(Sol, OneUserIsBoundByBandwidth) {
  // 1,008 GB/s over 13.2 GB are 76 tokens/s, of which 69 are 91 %.
  const double rate = 1 / sol_step(llama_7b(), sol_decode(1, 1), known_device("RTX 4090"));
  EXPECT_NEAR(rate, 76.3, 0.5);
  EXPECT_NEAR(69 / rate, 0.91, 0.01);
}

TEST(Sol, PromptsAreBoundByArithmetic) {
  const SolModel m = llama_7b();
  const SolDevice& d = known_device("H200");
  // 2 operations per weight and token, and attention.
  EXPECT_NEAR(sol_step(m, sol_prompt(4096), d), 2 * 6.48e9 * 4096 / d.peak, 6e-3);
  EXPECT_GT(sol_step(m, sol_prompt(4096), d), 2 * 6.47e9 * 4096 / d.peak);
}

TEST(Sol, MemoryDecidesWhatFits) {
  const SolModel m = llama_7b();
  EXPECT_EQ(sol_fits(m, 1024, known_device("RTX 4090")), 19);  // 10.5 GB by 537 MB
  SolDevice small = known_device("T4");
  small.memory = 13e9;
  EXPECT_EQ(sol_fits(m, 1024, small), 0);
  EXPECT_GT(m.memory(19, 1024), 23e9);
}

TEST(Sol, MoreUsersShareTheWeights) {
  const SolModel m = llama_7b();
  const SolDevice& d = known_device("H200");
  const double one = 1 / sol_step(m, sol_decode(1, 256), d);
  const double many = 32 / sol_step(m, sol_decode(32, 256), d);
  EXPECT_GT(many, 20 * one);
  EXPECT_LT(many, 32 * one);
}

}  // namespace
}  // namespace sluice
