// Metadata that is missing, out of range or contradictory is refused by name; what is left out
// takes its documented default.
#include "model/config.h"

#include <cmath>
#include <functional>

#include <gtest/gtest.h>

#include "model/checkpoint_fake.h"
#include "model/families.h"
#include "model/model.h"

namespace sluice {
namespace {

struct Case {
  const char* what;
  std::function<void(FakeCheckpoint&)> break_it;
  const char* message;
};

template <typename T>
std::function<void(FakeCheckpoint&)> set(const char* key, T value) {
  return [=](FakeCheckpoint& c) { c.set(key, MetaValue(value)); };
}

TEST(DecoderConfig, ReadsAWholeFile) {
  FakeCheckpoint c;
  c.set("llama.attention.sliding_window", uint64_t{128});
  c.set("llama.rope.freq_base", 500000.0);
  Result<DecoderConfig> r = read_decoder_config(c, nullptr, kLlama);
  ASSERT_TRUE(r) << r.error().message;
  EXPECT_EQ(r->num_layers, 2);
  EXPECT_EQ(r->hidden, 64);
  EXPECT_EQ(r->ffn, 96);
  EXPECT_EQ(r->num_heads, 4);
  EXPECT_EQ(r->num_kv_heads, 2);
  EXPECT_EQ(r->head_dim, 16);
  EXPECT_EQ(r->vocab, 50);
  EXPECT_EQ(r->windows, (std::vector<int>{128, 128}));
  EXPECT_TRUE(r->rope.interleaved);
  ASSERT_EQ(r->rope.inv_freq.size(), 8u);
  EXPECT_FLOAT_EQ(r->rope.inv_freq[0], 1);
  EXPECT_FLOAT_EQ(r->rope.inv_freq[4], static_cast<float>(1 / std::sqrt(500000.0)));
}

TEST(DecoderConfig, LeavesOutWhatHasADefault) {
  FakeCheckpoint c;
  c.drop("llama.attention.head_count_kv");
  Result<DecoderConfig> r = read_decoder_config(c, nullptr, kLlama);
  ASSERT_TRUE(r) << r.error().message;
  EXPECT_EQ(r->num_kv_heads, 4);  // no sharing
  EXPECT_EQ(r->windows, (std::vector<int>{0, 0}));
  EXPECT_FLOAT_EQ(r->attention_scale, 0.25F);
  EXPECT_EQ(r->attention_softcap, 0);
  EXPECT_EQ(r->final_softcap, 0);
  EXPECT_FALSE(r->window_rope);
  EXPECT_EQ(r->rope.dims, 16);
}

TEST(DecoderConfig, TakesPerLayerArraysWhereLayersAgree) {
  FakeCheckpoint c;
  c.set("llama.attention.head_count_kv", std::vector<int64_t>{2, 2});
  EXPECT_TRUE(read_decoder_config(c, nullptr, kLlama));
  c.set("llama.attention.head_count_kv", std::vector<int64_t>{2, 4});
  Result<DecoderConfig> r = read_decoder_config(c, nullptr, kLlama);
  EXPECT_FALSE(r) << "layers that differ must not be run as if they were alike";
}

TEST(DecoderConfig, RefusesWhatCannotBe) {
  const Case cases[] = {
      {"no architecture", [](FakeCheckpoint& c) { c.drop("general.architecture"); },
       "general.architecture"},
      {"no layers", [](FakeCheckpoint& c) { c.drop("llama.block_count"); }, "llama.block_count"},
      {"no width", [](FakeCheckpoint& c) { c.drop("llama.embedding_length"); },
       "llama.embedding_length"},
      {"no epsilon", [](FakeCheckpoint& c) { c.drop("llama.attention.layer_norm_rms_epsilon"); },
       "layer_norm_rms_epsilon"},
      {"zero layers", set("llama.block_count", uint64_t{0}), "block_count is 0"},
      {"too many layers", set("llama.block_count", uint64_t{1} << 40), "block_count"},
      {"negative heads", set("llama.attention.head_count", int64_t{-4}), "head_count is -4"},
      {"a string for a number", set("llama.block_count", std::string("two")), "block_count"},
      {"a string for a number with a default", set("llama.rope.freq_base", std::string("x")),
       "rope.freq_base"},
      {"a string for a count with a default",
       set("llama.attention.head_count_kv", std::string("x")), "head_count_kv"},
      {"a huge context", set("llama.context_length", uint64_t{1} << 62), "context_length"},
      {"heads that do not divide", set("llama.attention.head_count_kv", uint64_t{3}), "3 kv heads"},
      {"odd head size", set("llama.attention.key_length", uint64_t{12}), "multiple of 8"},
      {"a NaN epsilon", set("llama.attention.layer_norm_rms_epsilon", std::nan("")),
       "layer_norm_rms_epsilon"},
      {"other values than keys", set("llama.attention.value_length", uint64_t{32}), "different"},
      {"too much rotation", set("llama.rope.dimension_count", uint64_t{32}), "rotary"},
      {"odd rotation", set("llama.rope.dimension_count", uint64_t{7}), "rotary"},
      {"a NaN base", set("llama.rope.freq_base", std::nan("")), "freq_base"},
      {"an unknown scaling", set("llama.rope.scaling.type", std::string("su\nper")),
       "not supported"},
      {"no embedding", [](FakeCheckpoint& c) { c.drop_tensor("token_embd.weight"); },
       "token_embd.weight"},
  };
  for (const Case& k : cases) {
    SCOPED_TRACE(k.what);
    FakeCheckpoint c;
    k.break_it(c);
    Result<DecoderConfig> r = read_decoder_config(c, nullptr, kLlama);
    ASSERT_FALSE(r);
    EXPECT_EQ(r.error().code, 400);
    EXPECT_NE(r.error().message.find(k.message), std::string::npos) << r.error().message;
    EXPECT_EQ(r.error().message.find('\n'), std::string::npos);
  }
}

TEST(DecoderConfig, DivisorsOfLlama3MustFitAndBePositive) {
  FakeCheckpoint c;
  c.add("rope_freqs.weight", 1, 8, std::vector<float>(8, 2.0f));
  Result<DecoderConfig> r = read_decoder_config(c, &c, kLlama);
  ASSERT_TRUE(r) << r.error().message;
  EXPECT_FLOAT_EQ(r->rope.inv_freq[0], 0.5f);

  FakeCheckpoint zero;
  zero.add("rope_freqs.weight", 1, 8, std::vector<float>(8, 0.0f));
  EXPECT_FALSE(read_decoder_config(zero, &zero, kLlama));
  FakeCheckpoint few;
  few.add("rope_freqs.weight", 1, 4, std::vector<float>(4, 1.0f));
  EXPECT_FALSE(read_decoder_config(few, &few, kLlama));
}

TEST(Families, UnknownOnesAreRefusedWithTheKnownOnes) {
  FakeCheckpoint c;
  c.set("general.architecture", std::string("mamba"));
  Result<ModelShape> r = read_shape(c);
  ASSERT_FALSE(r);
  EXPECT_NE(r.error().message.find("mamba"), std::string::npos);
  for (const ModelFamily& f : model_families()) {
    EXPECT_NE(r.error().message.find(f.arch), std::string::npos) << r.error().message;
  }
}

}  // namespace
}  // namespace sluice
