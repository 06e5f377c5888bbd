// A model whose layers have windows, in a pool too small for what it generates: the text is that of
// a pool with room for everything, and the ledger knows what fits.
#include <gtest/gtest.h>

#include "runtime/collect.h"
#include "runtime/session.h"

namespace sluice {
namespace {

constexpr int kBlock = 8;

EngineOptions options_of(const std::string& model, uint64_t kv_bytes) {
  EngineOptions o;
  o.model = SLUICE_SOURCE_DIR "/tests/golden/models/" + model + ".gguf";
  o.threads = 1;
  o.pin = false;
  o.quiet = true;
  o.kv_bytes = kv_bytes;
  o.scheduler.block_size = kBlock;
  o.scheduler.budget = 16;
  o.scheduler.max_seqs = 16;
  return o;
}

std::unique_ptr<Session> open(const std::string& model, uint64_t kv_bytes) {
  auto s = Session::open(options_of(model, kv_bytes));
  EXPECT_TRUE(s) << s.error().message;
  return std::move(*s);
}

std::vector<Token> generate(Session& s, int prompt_len, int max_new) {
  Request r;
  auto prompt = std::make_shared<std::vector<Token>>();
  for (int i = 0; i < prompt_len; ++i) prompt->push_back(i * 7 % 200);
  r.prompt = prompt;
  auto spec = std::make_shared<SamplingSpec>();
  spec->seed = 5;
  r.sampling = spec;
  r.max_new = max_new;
  Collector c(s.engine(), nullptr);
  c.submit(std::move(r));
  c.wait();
  EXPECT_FALSE(c.outputs()[0].refused) << c.outputs()[0].refused->message;
  return c.outputs()[0].choices[0].tokens;
}

TEST(WindowCache, ASequenceLongerThanThePool) {
  // Two layers of one kv head of 16, f16: 1 KiB a block. The window is 8: 7 and 2 * 16 positions
  // are at most 6 blocks; 48 positions, where 500 are generated.
  auto small = open("llama-window", 6 * 1024);
  EXPECT_EQ(small->ledger().num_blocks, 6);
  EXPECT_EQ(small->ledger().ctx, 512);
  EXPECT_EQ(small->ledger().full_sequences, 1);
  EXPECT_EQ(small->ledger().kv_per_token, 128u);
  EXPECT_EQ(small->ledger().kv_per_long_token, 0u);
  EXPECT_EQ(small->ledger().window, 8);
  auto large = open("llama-window", 1000 * 1024);
  std::vector<Token> a = generate(*small, 100, 400), b = generate(*large, 100, 400);
  EXPECT_EQ(a.size(), 400u);
  EXPECT_EQ(a, b);
  // Three blocks each beside the one in its prompt.
  EXPECT_EQ(open("llama-window", 30 * 1024)->ledger().full_sequences, 1 + 24 / 3);
}

TEST(WindowCache, LayersOfTwoKinds) {
  // Three layers of one kv head of 24, of which the second keeps everything: blocks of one layer,
  // 768 bytes. At 512 positions it needs 64 blocks, the others 6 each.
  auto small = open("gemma2", (64 + 12) * 768);
  EXPECT_EQ(small->ledger().ctx, 512);
  EXPECT_EQ(small->ledger().full_sequences, 1);
  EXPECT_EQ(small->ledger().kv_per_token, 3u * 96);
  EXPECT_EQ(small->ledger().kv_per_long_token, 96u);
  auto large = open("gemma2", 3000 * 768);
  EXPECT_EQ(generate(*small, 200, 300), generate(*large, 200, 300));
  // With less, the context is what fits: 63 blocks of the second layer.
  EXPECT_EQ(open("gemma2", (63 + 12) * 768)->ledger().ctx, 63 * kBlock);
}

TEST(WindowCache, WhatDoesNotFitIsRefusedWithItsSize) {
  EngineOptions o = options_of("gemma2", 40 * 768);
  o.ctx = 512;
  auto s = Session::open(o);
  ASSERT_FALSE(s);
  EXPECT_NE(s.error().message.find("--ctx 512 needs 58.4 KB of KV cache"), std::string::npos)
      << s.error().message;
}

}  // namespace
}  // namespace sluice
