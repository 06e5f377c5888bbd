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
      {"a negative cap", set("llama.final_logit_softcapping", -1.0), "final_logit_softcapping"},
      {"a scale of nothing", set("llama.attention.scale", 0.0), "attention.scale"},
      {"longrope without its tensors", set("llama.rope.scaling.type", std::string("longrope")),
       "rope_factors_short.weight"},
      {"no embedding", [](FakeCheckpoint& c) { c.drop_tensor("token_embd.weight"); },
       "token_embd.weight"},
  };
  for (const Case& k : cases) {
    SCOPED_TRACE(k.what);
    FakeCheckpoint c;
    k.break_it(c);
    Result<DecoderConfig> r = read_decoder_config(c, &c, kLlama);
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

// The same model under another architecture's keys.
FakeCheckpoint fake_of(const std::string& arch) {
  FakeCheckpoint c;
  c.set("general.architecture", arch);
  c.set(arch + ".block_count", uint64_t{7});
  c.set(arch + ".embedding_length", uint64_t{64});
  c.set(arch + ".feed_forward_length", uint64_t{96});
  c.set(arch + ".attention.head_count", uint64_t{4});
  c.set(arch + ".attention.key_length", uint64_t{32});
  c.set(arch + ".context_length", uint64_t{512});
  c.set(arch + ".attention.layer_norm_rms_epsilon", 1e-6);
  return c;
}

TEST(DecoderConfig, Gemma2TakesItsDefaultsAndWhatTheFileSays) {
  FakeCheckpoint c = fake_of("gemma2");
  Result<DecoderConfig> r = read_decoder_config(c, nullptr, kGemma2);
  ASSERT_TRUE(r) << r.error().message;
  EXPECT_EQ(r->windows, (std::vector<int>{4096, 0, 4096, 0, 4096, 0, 4096}));
  EXPECT_EQ(r->attention_softcap, 50);
  EXPECT_EQ(r->final_softcap, 30);
  EXPECT_FLOAT_EQ(r->attention_scale, 1 / std::sqrt(32.0F));
  EXPECT_FALSE(r->window_rope);

  c.set("gemma2.attention.sliding_window", uint64_t{8});
  c.set("gemma2.attn_logit_softcapping", 20.0);
  c.set("gemma2.final_logit_softcapping", 0.0);  // none
  c.set("gemma2.attention.scale", 0.125);
  r = read_decoder_config(c, nullptr, kGemma2);
  ASSERT_TRUE(r) << r.error().message;
  EXPECT_EQ(r->windows, (std::vector<int>{8, 0, 8, 0, 8, 0, 8}));
  EXPECT_EQ(r->attention_softcap, 20);
  EXPECT_EQ(r->final_softcap, 0);
  EXPECT_FLOAT_EQ(r->attention_scale, 0.125F);
}

TEST(DecoderConfig, TheLargestGemmasScaleQueriesByWidth) {
  FakeCheckpoint c = fake_of("gemma2");
  c.set("gemma2.block_count", uint64_t{46});
  EXPECT_FLOAT_EQ(read_decoder_config(c, nullptr, kGemma2)->attention_scale, 0.25F);  // 64 / 4
  FakeCheckpoint d = fake_of("gemma3");
  d.set("gemma3.block_count", uint64_t{62});
  EXPECT_FLOAT_EQ(read_decoder_config(d, nullptr, kGemma3)->attention_scale, 0.25F);
}

TEST(DecoderConfig, Gemma3RotatesWindowedLayersByABaseOfTheirOwn) {
  FakeCheckpoint c = fake_of("gemma3");
  c.set("gemma3.attention.sliding_window", uint64_t{8});
  c.set("gemma3.rope.freq_base", 1e6);
  c.set("gemma3.rope.scaling.type", std::string("linear"));
  c.set("gemma3.rope.scaling.factor", 8.0);
  Result<DecoderConfig> r = read_decoder_config(c, nullptr, kGemma3);
  ASSERT_TRUE(r) << r.error().message;
  EXPECT_EQ(r->windows, (std::vector<int>{8, 8, 8, 8, 8, 0, 8}));
  ASSERT_TRUE(r->window_rope);
  EXPECT_FLOAT_EQ(r->rope.inv_freq[0], 0.125F);
  EXPECT_FLOAT_EQ(r->rope.inv_freq[8], 0.125e-3F);
  EXPECT_FLOAT_EQ(r->window_rope->inv_freq[0], 1);
  EXPECT_FLOAT_EQ(r->window_rope->inv_freq[8], 1e-2F);
  c.set("gemma3.rope.freq_base_swa", 100.0);
  EXPECT_FLOAT_EQ(read_decoder_config(c, nullptr, kGemma3)->window_rope->inv_freq[8], 0.1F);
}

TEST(DecoderConfig, TheFilesWindowPatternComesFirst) {
  FakeCheckpoint c = fake_of("gemma3");
  c.set("gemma3.attention.sliding_window", uint64_t{8});
  auto windows = [&](MetaValue pattern) {
    c.set("gemma3.attention.sliding_window_pattern", std::move(pattern));
    return read_decoder_config(c, nullptr, kGemma3)->windows;
  };
  EXPECT_EQ(windows(uint64_t{3}), (std::vector<int>{8, 8, 0, 8, 8, 0, 8}));
  EXPECT_EQ(windows(uint64_t{1}), (std::vector<int>{0, 0, 0, 0, 0, 0, 0}));
  EXPECT_EQ(windows(uint64_t{0}), (std::vector<int>{8, 8, 8, 8, 8, 8, 8}));
  EXPECT_EQ(windows(std::vector<bool>{true, false, false, true, true, true, false}),
            (std::vector<int>{8, 0, 0, 8, 8, 8, 0}));
  EXPECT_EQ(windows(std::vector<int64_t>{0, 1, 1, 0, 0, 0, 1}),
            (std::vector<int>{0, 8, 8, 0, 0, 0, 8}));
  c.set("gemma3.attention.sliding_window_pattern", std::vector<bool>{true, false});
  Result<DecoderConfig> r = read_decoder_config(c, nullptr, kGemma3);
  ASSERT_FALSE(r);
  EXPECT_NE(r.error().message.find("2 entries for 7 layers"), std::string::npos)
      << r.error().message;
}

TEST(DecoderConfig, LongropeChoosesByTheLongestSequence) {
  FakeCheckpoint c = fake_of("phi3");
  c.set("phi3.rope.dimension_count", uint64_t{8});
  c.set("phi3.rope.scaling.original_context_length", uint64_t{64});
  c.add("rope_factors_short.weight", 1, 4, {1, 1, 1, 1});
  c.add("rope_factors_long.weight", 1, 4, {2, 2, 2, 2});
  auto first = [&](int max_len) {
    Result<DecoderConfig> r = read_decoder_config(c, &c, kPhi3, max_len);
    EXPECT_TRUE(r) << r.error().message;
    EXPECT_FLOAT_EQ(r->rope.attention_factor, std::sqrt(1 + std::log(8.0F) / std::log(64.0F)));
    return r->rope.inv_freq[0];
  };
  EXPECT_FLOAT_EQ(first(0), 0.5F);  // the model's 512
  EXPECT_FLOAT_EQ(first(65), 0.5F);
  EXPECT_FLOAT_EQ(first(64), 1);
  c.set("phi3.rope.scaling.attn_factor", 1.5);
  EXPECT_FLOAT_EQ(read_decoder_config(c, &c, kPhi3)->rope.attention_factor, 1.5F);
  c.drop_tensor("rope_factors_short.weight");
  Result<DecoderConfig> r = read_decoder_config(c, &c, kPhi3, 64);
  ASSERT_FALSE(r);
  EXPECT_NE(r.error().message.find("rope_factors_short.weight"), std::string::npos);
}

TEST(DecoderConfig, LearnedPositionsNeedNoRotation) {
  FakeCheckpoint c = fake_of("gpt2");
  c.drop("gpt2.attention.layer_norm_rms_epsilon");
  EXPECT_FALSE(read_decoder_config(c, nullptr, kGpt2));
  c.set("gpt2.attention.layer_norm_epsilon", 1e-5);
  Result<DecoderConfig> r = read_decoder_config(c, nullptr, kGpt2);
  ASSERT_TRUE(r) << r.error().message;
  EXPECT_EQ(r->rope.dims, 0);
  EXPECT_EQ(r->num_kv_heads, 4);
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
