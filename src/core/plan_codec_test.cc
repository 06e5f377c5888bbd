#include "core/plan_codec.h"

#include <cmath>
#include <fstream>
#include <limits>
#include <string>

#include <gtest/gtest.h>

namespace sluice {
namespace {

// Every field away from its default.
StepPlan full_plan() {
  StepPlan p;
  p.step = 300;
  p.num_decode = 1;
  SamplingSpec s;
  s.temperature = 0.5f, s.top_k = 40, s.top_p = 0.9f, s.min_p = 0.05f;
  s.repetition_penalty = 1.1f, s.frequency_penalty = -0.5f, s.presence_penalty = 2;
  s.seed = UINT64_MAX, s.min_tokens = 3, s.num_logprobs = 5, s.prompt_logprobs = 0;
  s.logprob_ids = {11, 12};
  s.logit_bias = {{7, -100.0f}, {8, 0.25f}};
  s.banned_until_min = {2};
  s.allowed = {1, 2, 3};
  s.bad_sequences = {{4, 5}, {6}};
  p.sampling = {SamplingSpec{}, s};
  p.tokens = {1, 70000, 3, kNoToken, 5};
  p.rows.push_back({RowOp::open, Pooling::mean, {1ull << 40, 3}, 2, 9, 4, 1, 3, 2, 1});
  p.rows.push_back({RowOp::close, Pooling::none, {7, 0}, 5, 8});
  p.edits = {{2, 1, 1000, 3}, {2, 2, kNullBlock, 0}};
  p.pages = {{2, 70000}, {3, 0}};
  p.slices = {{2, 9, 100, 1, Want::last, true, 0, 4, 6}, {3, 1, 0, 3, Want::all, false, 2, 0}};
  p.transfers = {{Transfer::copy, 5, 6, 1}, {Transfer::receive, 0, 7, 1ull << 33}};
  p.transfers.push_back({Transfer::out, 8, 9, 4, 0});
  p.keys = {{{1, UINT64_MAX}, 77, 3, 1, 2}};
  p.oldest = 1ull << 33, p.awaits = true;
  for (const Slice& slice : p.slices) p.num_tokens += slice.count;
  return p;
}

StepResult full_result() {
  StepResult r;
  r.step = 301;
  r.tokens = {5, 6, 7};
  r.top = {{3, 9, -1.5f, 2}, {4, 8, -std::numeric_limits<float>::infinity(), 1}};
  r.pooled = {std::make_shared<const std::vector<float>>(std::vector<float>{0.5f, -0.0f, NAN})};
  r.rows = {{2, 9, 0, 3, 0, 2, -1}, {3, 1, 3, 0, 2, 0, 0}};
  r.transfers = {1, 1ull << 33};
  r.lost = {4};
  r.begin = Time(123456789012), r.end = Time(-5);
  r.failure = "lost \xff";
  return r;
}

StepMasks full_masks() { return {300, {{1, 0xFFFFFFFF, 0}, {}, {0x80000000}}}; }

Bytes bytes_of(const auto& value) {
  Bytes b;
  encode(value, b);
  return b;
}

std::string hex(const Bytes& bytes) {
  std::string out;
  for (std::byte b : bytes) {
    char two[3];
    std::snprintf(two, sizeof two, "%02x", static_cast<unsigned>(b));
    out += two;
  }
  return out;
}

TEST(PlanCodec, EveryFieldComesBack) {
  EXPECT_EQ(decode_plan(bytes_of(full_plan())).value(), full_plan());
  EXPECT_EQ(decode_plan(bytes_of(StepPlan{})).value(), StepPlan{});
  EXPECT_EQ(decode_masks(bytes_of(full_masks())).value(), full_masks());
  EXPECT_EQ(decode_masks(bytes_of(StepMasks{})).value(), StepMasks{});
  StepResult r = decode_result(bytes_of(full_result())).value();
  EXPECT_TRUE(r == full_result());
  EXPECT_EQ(r.begin, full_result().begin);
  EXPECT_EQ(r.end, full_result().end);
}

// A value that fuzz_plan starts from.
Bytes fuzz_seed(const std::string& name) {
  std::ifstream in(SLUICE_SOURCE_DIR "/fuzz/corpus/plan/" + name, std::ios::binary);
  Bytes b;
  for (char c; in.get(c);) b.push_back(static_cast<std::byte>(c));
  return b;
}

// A change of the layout fails here: it raises kPlanVersion, and these bytes change with it, those
// that the fuzzer starts from too.
TEST(PlanCodec, TheBytesOfThisVersionArePinned) {
  static_assert(kPlanVersion == 4);
  StepPlan p;
  p.step = 300;
  p.sampling = {SamplingSpec{}};
  p.tokens = {1, 70000};
  p.rows.push_back({RowOp::open, Pooling::none, {9, 1}, 2, 3, 2, 0, 0, 0, 0});
  p.edits = {{2, 0, 17, 0}};
  p.pages = {{2, 5}};
  p.slices = {{2, 3, 0, 2, Want::last, false, 0, 0}};
  p.num_tokens = 2;
  p.transfers = {{Transfer::copy, 5, 6, 1}};
  EXPECT_EQ(
      hex(bytes_of(p)),
      "535004ac020400010000090102030200000000010000803f000000803f000000000000803f0000000000000000"
      "0000010100000000000102002200010205010203000401000000010202e0c50801000a0c0101000000");
  EXPECT_EQ(hex(fuzz_seed("plan")), hex(bytes_of(p)));
  EXPECT_EQ(hex(bytes_of(full_masks())), "534d04ac02030301000000ffffffff00000000000100000080");
  EXPECT_EQ(hex(fuzz_seed("masks")), hex(bytes_of(full_masks())));
  StepResult r;
  r.step = 300;
  r.add_row(p.slices[0], 70000);
  r.transfers = {1};
  r.begin = Time(10), r.end = Time(20);
  EXPECT_EQ(hex(bytes_of(r)), "535204ac02010203000100000101e0c5080000010100142800");
  EXPECT_EQ(hex(fuzz_seed("result")), hex(bytes_of(r)));
}

TEST(StepMasks, WhatIsNotThereIsForbidden) {
  StepMasks masks = full_masks();
  EXPECT_EQ(masks.row(0).size(), 3u);
  for (int32_t missing : {1, 3, 1000}) {
    ASSERT_EQ(masks.row(missing).size(), 1u);
    EXPECT_EQ(masks.row(missing)[0], 0u);
  }
}

TEST(PlanCodec, EqualityLeavesOutTheClockAndNothingElse) {
  StepResult a = full_result(), b = full_result();
  b.begin = b.end = Time(7);
  EXPECT_TRUE(a == b);
  auto differs = [&](auto&& change) {
    StepResult c = full_result();
    change(c);
    return !(c == a);
  };
  EXPECT_TRUE(differs([](StepResult& r) { r.step = 1; }));
  EXPECT_TRUE(differs([](StepResult& r) { r.rows[0].num_top = 1; }));
  EXPECT_TRUE(differs([](StepResult& r) { r.tokens[1] = 0; }));
  EXPECT_TRUE(differs([](StepResult& r) { r.top[0].logprob = -1.25f; }));
  EXPECT_TRUE(differs([](StepResult& r) {
    r.pooled[0] = std::make_shared<const std::vector<float>>(std::vector<float>{0.5f, 0.0f, NAN});
  })) << "0 and -0 have different bits";
  EXPECT_TRUE(differs([](StepResult& r) { r.transfers.pop_back(); }));
  EXPECT_TRUE(differs([](StepResult& r) { r.lost.clear(); }));
  EXPECT_TRUE(differs([](StepResult& r) { r.failure.clear(); }));
}

TEST(PlanCodec, CutOffAnywhereIsAnError) {
  Bytes plan = bytes_of(full_plan()), result = bytes_of(full_result());
  for (size_t n = 0; n < plan.size(); ++n) EXPECT_FALSE(decode_plan(std::span(plan).first(n))) << n;
  for (size_t n = 0; n < result.size(); ++n)
    EXPECT_FALSE(decode_result(std::span(result).first(n))) << n;
  Bytes masks = bytes_of(full_masks());
  for (size_t n = 0; n < masks.size(); ++n)
    EXPECT_FALSE(decode_masks(std::span(masks).first(n))) << n;
  plan.push_back(std::byte{0});
  Result<StepPlan> longer = decode_plan(plan);
  ASSERT_FALSE(longer);
  EXPECT_NE(longer.error().message.find("bytes follow its end"), std::string::npos);
}

TEST(PlanCodec, OtherVersionsAndOtherThingsAreRefused) {
  Bytes plan = bytes_of(full_plan());
  EXPECT_FALSE(decode_result(plan));
  EXPECT_FALSE(decode_masks(plan));
  plan[2] = std::byte{kPlanVersion + 1};
  Result<StepPlan> other = decode_plan(plan);
  ASSERT_FALSE(other);
  EXPECT_EQ(other.error().message,
            "the plan has version 5 and this build reads version 4: use the build that wrote it");
}

// Indices that point outside their list, counts that do not add up.
TEST(PlanCodec, WhatDoesNotHoldTogetherIsRefused) {
  auto refused = [](auto&& change) {
    StepPlan p = full_plan();
    change(p);
    return !decode_plan(bytes_of(p));
  };
  EXPECT_FALSE(refused([](StepPlan&) {}));
  EXPECT_TRUE(refused([](StepPlan& p) { p.rows[0].sampling = 2; }));
  EXPECT_TRUE(refused([](StepPlan& p) { p.rows[0].history_at = UINT32_MAX; }));
  EXPECT_TRUE(refused([](StepPlan& p) { p.rows[0].num_history = 5; }));
  EXPECT_TRUE(refused([](StepPlan& p) { p.rows[0].num_history_prompt = 4; }));
  EXPECT_TRUE(refused([](StepPlan& p) { p.edits[0].group = kMaxCacheGroups; }));
  EXPECT_TRUE(refused([](StepPlan& p) { p.edits[0].block = -1; }));
  EXPECT_TRUE(refused([](StepPlan& p) { p.slices[0].count = 0; }));
  EXPECT_TRUE(refused([](StepPlan& p) { p.slices[0].pos = INT32_MAX; }));
  EXPECT_TRUE(refused([](StepPlan& p) { p.slices[1].token_at = 3; }));
  EXPECT_TRUE(refused([](StepPlan& p) { p.slices[1].num_draft = 3; }));
  EXPECT_TRUE(refused([](StepPlan& p) { p.slices[1].chained = true, p.slices[1].num_draft = 1; }));
  EXPECT_TRUE(refused([](StepPlan& p) { p.slices[0].mask = -2; }));
  EXPECT_TRUE(refused([](StepPlan& p) { p.transfers[2].key = 1; }));
  EXPECT_TRUE(refused([](StepPlan& p) { p.transfers[2].key = -2; }));
  EXPECT_TRUE(refused([](StepPlan& p) { p.keys[0].token_at = 4; }));
  EXPECT_TRUE(refused([](StepPlan& p) { p.num_decode = 2; }));
  EXPECT_TRUE(refused([](StepPlan& p) { p.num_tokens = 5; }));
  auto bad = [](auto&& change) {
    StepResult r = full_result();
    change(r);
    return !decode_result(bytes_of(r));
  };
  EXPECT_FALSE(bad([](StepResult&) {}));
  EXPECT_TRUE(bad([](StepResult& r) { r.rows[0].num_tokens = 4; }));
  EXPECT_TRUE(bad([](StepResult& r) { r.rows[1].top_at = 3; }));
  EXPECT_TRUE(bad([](StepResult& r) { r.rows[1].pooled = 1; }));
}

// Every bit flipped: an error, or another value whose own encoding these bytes are.
TEST(PlanCodec, AFlippedBitIsRefusedOrReadAsWritten) {
  Bytes plan = bytes_of(full_plan()), result = bytes_of(full_result());
  int read = 0;
  for (size_t bit = 0; bit < 8 * plan.size(); ++bit) {
    Bytes b = plan;
    b[bit / 8] ^= std::byte{1} << bit % 8;
    auto p = decode_plan(b);
    if (!p) continue;
    ++read;
    EXPECT_EQ(bytes_of(*p), b) << "bit " << bit;
  }
  for (size_t bit = 0; bit < 8 * result.size(); ++bit) {
    Bytes b = result;
    b[bit / 8] ^= std::byte{1} << bit % 8;
    auto r = decode_result(b);
    if (!r) continue;
    ++read;
    EXPECT_EQ(bytes_of(*r), b) << "bit " << bit;
  }
  Bytes masks = bytes_of(full_masks());
  for (size_t bit = 0; bit < 8 * masks.size(); ++bit) {
    Bytes b = masks;
    b[bit / 8] ^= std::byte{1} << bit % 8;
    auto m = decode_masks(b);
    if (!m) continue;
    ++read;
    EXPECT_EQ(bytes_of(*m), b) << "bit " << bit;
  }
  EXPECT_GT(read, 100) << "the flips prove too little";
}

}  // namespace
}  // namespace sluice
