#include "runtime/sampling_defaults.h"

#include <gtest/gtest.h>

namespace sluice {
namespace {

SamplingSpec spec_of(const Meta& meta, GenerationConfig config = GenerationConfig::model) {
  return sampling_defaults(meta, config).value().spec;
}

TEST(SamplingDefaults, TheModelsFilesComeFirst) {
  Meta meta;
  meta.set("general.name", std::string("SmolLM2 135M"));
  meta.set("general.sampling.temp", 0.6);
  meta.set("general.sampling.top_k", int64_t{20});
  meta.set("general.sampling.penalty_repeat", 1.05);
  const SamplingSpec s = spec_of(meta);
  EXPECT_FLOAT_EQ(s.temperature, 0.6f);
  EXPECT_EQ(s.top_k, 20);
  EXPECT_FLOAT_EQ(s.repetition_penalty, 1.05f);
  EXPECT_EQ(s.top_p, 1);  // what the files leave out is off
  EXPECT_EQ(sampling_defaults(meta, GenerationConfig::model)->source, "the model's files");
}

TEST(SamplingDefaults, KnownModelsAndTheRest) {
  for (const char* name :
       {"SmolLM2 135M Instruct", "smollm2-135M-8k-Lc100K-Mix1-Ep2", "Smol_LM2"}) {
    Meta meta;
    meta.set("general.name", std::string(name));
    EXPECT_FLOAT_EQ(spec_of(meta).temperature, 0.2f) << name;
    EXPECT_FLOAT_EQ(spec_of(meta).top_p, 0.9f) << name;
  }
  EXPECT_FLOAT_EQ(spec_of({}).temperature, 0.7f);
  EXPECT_FLOAT_EQ(spec_of({}).top_p, 0.95f);
}

TEST(SamplingDefaults, NoneIsOpenAis) {
  Meta meta;
  meta.set("general.sampling.temp", 0.6);
  EXPECT_EQ(describe_sampling(spec_of(meta, GenerationConfig::none)), "temperature 1");
}

TEST(SamplingDefaults, ValuesOutOfRangeAreRefusedByName) {
  const std::pair<const char*, MetaValue> bad[] = {
      {"temp", -0.5}, {"temp", std::string("hot")}, {"top_p", 0.0},         {"top_p", 1.5},
      {"min_p", 2.0}, {"penalty_repeat", 0.0},      {"top_k", int64_t{-2}}, {"top_k", 1e12}};
  for (const auto& [key, value] : bad) {
    Meta meta;
    meta.set(std::string("general.sampling.") + key, value);
    const Result<SamplingDefaults> got = sampling_defaults(meta, GenerationConfig::model);
    ASSERT_FALSE(got) << key;
    EXPECT_NE(got.error().message.find(key), std::string::npos) << got.error().message;
    EXPECT_TRUE(sampling_defaults(meta, GenerationConfig::none));
  }
  Meta off;
  off.set("general.sampling.top_k", int64_t{-1});
  EXPECT_EQ(spec_of(off).top_k, 0);
}

TEST(SamplingDefaults, AChoiceWins) {
  SamplingDefaults defaults;
  defaults.spec.temperature = 0.2f;
  defaults.spec.top_p = 0.9f;
  SamplingChoice choice;
  choice.temperature = 0;
  choice.top_k = 5;
  SamplingSpec spec;
  spec.seed = 7;
  apply_sampling(defaults, choice, spec);
  EXPECT_EQ(spec.temperature, 0);
  EXPECT_EQ(spec.top_k, 5);
  EXPECT_FLOAT_EQ(spec.top_p, 0.9f);
  EXPECT_EQ(spec.seed, 7u);
}

TEST(SamplingDefaults, InWordsAndJson) {
  SamplingSpec s;
  s.temperature = 0.7f;
  s.top_k = 40;
  s.min_p = 0.05f;
  EXPECT_EQ(describe_sampling(s), "temperature 0.7, top_k 40, min_p 0.05");
  const json::object j = sampling_json(s);
  EXPECT_EQ(json::serialize(j.at("temperature")), "7E-1");
  EXPECT_EQ(j.at("top_k"), 40);
  EXPECT_EQ(j.at("top_p"), 1.0);
  s.temperature = 0;
  EXPECT_EQ(describe_sampling(s), "greedy");
}

}  // namespace
}  // namespace sluice
