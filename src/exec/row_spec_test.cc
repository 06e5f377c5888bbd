// What a device reads back from a packet's words.
#include "exec/row_spec.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>

#include "exec/sampler.h"

namespace sluice {
namespace {

using Words = std::vector<int32_t>;

TEST(RowSpec, PlainRowsSendNoLists) {
  Words words = {1, 2, 3};
  std::vector<Token> history = {5, 6, 7};
  SamplingSpec s;
  s.temperature = 0;
  RowSpec r = make_row_spec(s, {4, 1, history, 2}, words);
  EXPECT_EQ(words.size(), 3u);
  EXPECT_EQ(r.lists_at, 3u);
  EXPECT_EQ(r.slot, 4);
  EXPECT_EQ(r.choice, 1u);
  EXPECT_LT(r.inv_temperature, 0);
  EXPECT_EQ(r.x_min, -60);
  EXPECT_EQ(r.num_generated, 1);
  EXPECT_EQ(r.num_prompt + r.num_output, 0);
}

TEST(RowSpec, ListsAreInOrder) {
  SamplingSpec s;
  s.temperature = 0.5f, s.min_p = 0.25f, s.top_k = -3, s.top_p = NAN;
  s.logit_bias = {{9, 1.0f}, {2, 3.0f}, {9, 2.0f}};
  s.min_tokens = 4, s.banned_until_min = {8, 3};
  s.allowed = {7, 1};
  s.bad_sequences = {{4, 5, 6}, {2}, {1, 6}};
  s.repetition_penalty = 1.5f;
  Words words;
  std::vector<Token> history = {30, 31, 32, 33};
  RowSpec r = make_row_spec(s, {0, 0, history, 3}, words);
  auto bits = [](float x) { return std::bit_cast<int32_t>(x); };
  EXPECT_EQ(words,
            (Words{2,  9,  9,  bits(3), bits(1), bits(2),           // bias
                   3,  8,  7,  1,                                   // banned, allowed
                   2,  6,  6,  0,       2,       3,       4, 5, 1,  // bad: last, ends, earlier
                   30, 31, 32, 33}));
  EXPECT_EQ(r.inv_temperature, 2);
  EXPECT_EQ(r.x_min, std::log(0.25f));
  EXPECT_EQ(r.top_k, 0);
  EXPECT_EQ(r.top_p, 1);
  EXPECT_EQ(r.num_bias, 3);
  EXPECT_EQ(r.num_banned, 2);
  EXPECT_EQ(r.num_allowed, 2);
  EXPECT_EQ(r.num_bad, 3);
  EXPECT_EQ(r.num_bad_earlier, 3);
  EXPECT_EQ(r.num_prompt, 3);
  EXPECT_EQ(r.num_output, 1);
}

// Without penalties only what bad sequences look back on.
TEST(RowSpec, HistoryIsNoLongerThanNeeded) {
  std::vector<Token> history(100, 1);
  SamplingSpec s;
  s.bad_sequences = {{1, 2}};
  Words words;
  RowSpec r = make_row_spec(s, {0, 0, history, 10}, words);
  EXPECT_EQ(r.num_generated, 90);
  EXPECT_EQ(r.num_prompt, 0);
  EXPECT_EQ(r.num_output, kMaxBadLength);
  s.presence_penalty = 1;
  r = make_row_spec(s, {0, 0, history, 10}, words);
  EXPECT_EQ(r.num_prompt, 0);
  EXPECT_EQ(r.num_output, 90);
}

TEST(RowSpec, Limits) {
  SamplingSpec s;
  EXPECT_TRUE(fits_device(s));
  s.logit_bias.assign(kMaxLogitBias + 1, {0, 1.0f});
  EXPECT_FALSE(fits_device(s));
  s.logit_bias.clear();
  s.bad_sequences.assign(kMaxBadTokens / 4 + 1, {1, 2, 3, 4});
  EXPECT_FALSE(fits_device(s));
  s.bad_sequences = {std::vector<Token>(kMaxBadLength + 1, 1)};
  EXPECT_FALSE(fits_device(s));
  s.bad_sequences.clear();
  s.banned_until_min.assign(kMaxBanned + 1, 1);
  EXPECT_FALSE(fits_device(s));
  s.banned_until_min.clear();
  s.num_logprobs = kMaxTopLogprobs + 1;
  EXPECT_FALSE(fits_device(s));
  s.num_logprobs = 0, s.logprob_ids = {1};
  EXPECT_FALSE(fits_device(s));
}

}  // namespace
}  // namespace sluice
