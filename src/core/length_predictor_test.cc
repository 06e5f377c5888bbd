#include "core/length_predictor.h"

#include <gtest/gtest.h>

namespace sluice {
namespace {

Request request(TenantId account, int max_new = 1000, int prompt = 10) {
  Request r;
  r.account = account;
  r.max_new = max_new;
  r.prompt = std::make_shared<const std::vector<Token>>(static_cast<size_t>(prompt), 1);
  return r;
}

TEST(LengthHistogram, QuantilesAreRoundedUpByAnEighthAtMost) {
  LengthHistogram h;
  EXPECT_EQ(h.quantile(0.5f, 0), 0);
  for (int i = 1; i <= 1000; ++i) h.add(i);
  for (float q : {0.1f, 0.5f, 0.75f, 0.9f, 0.99f}) {
    int want = static_cast<int>(q * 1000), got = h.quantile(q, 0);
    EXPECT_GE(got, want);
    EXPECT_LE(got, want + want / 8 + 1);
  }
  // Of those above 500 the middle one is 750.
  EXPECT_NEAR(h.quantile(0.5f, 500), 750, 95);
  EXPECT_EQ(h.quantile(0.5f, 5000), 0);
}

TEST(LengthHistogram, ForgetsWhatIsLongAgo) {
  LengthHistogram h;
  for (int i = 0; i < 5000; ++i) h.add(10);
  for (int i = 0; i < 5000; ++i) h.add(100);
  EXPECT_GE(h.quantile(0.3f, 0), 100);
  EXPECT_LT(h.total(), 2048);
  h.add(-5);
  h.add(INT32_MAX);
}

TEST(LengthPredictor, OracleAndConstant) {
  LengthPredictor oracle({Predict::oracle}), constant({Predict::constant, 40});
  EXPECT_EQ(oracle.predict(request(1, 77), 0), 77);
  EXPECT_EQ(constant.predict(request(1, 77), 0), 40);
  EXPECT_EQ(constant.predict(request(1, 7), 0), 7);
  // Longer than predicted: half as much again, never beyond what was asked for.
  EXPECT_EQ(constant.predict(request(1, 77), 40), 60);
  EXPECT_EQ(constant.predict(request(1, 77), 60), 77);
}

TEST(LengthPredictor, LearnsPerAccount) {
  LengthPredictor p({Predict::quantile, 0, 0.9f});
  EXPECT_EQ(p.predict(request(1), 0), 1000);  // until it knows anything
  for (int i = 0; i < 100; ++i) {
    p.learn(request(1), 10);
    p.learn(request(2), 500);
  }
  EXPECT_EQ(p.predict(request(1), 0), 10);
  EXPECT_NEAR(p.predict(request(2), 0), 500, 63);
  EXPECT_NEAR(p.predict(request(3), 0), 500, 63);  // a stranger: of all outputs
  EXPECT_GT(p.predict(request(1), 10), 10);
  p.clear();
  EXPECT_EQ(p.predict(request(1), 0), 1000);
}

// Whatever is predicted for the order of service, how long outputs were is known.
TEST(LengthPredictor, ExpectsTheMiddleOfWhatItLearnt) {
  for (Predict kind : {Predict::oracle, Predict::histogram, Predict::quantile}) {
    LengthPredictor p({kind, 0, 0.9f});
    EXPECT_EQ(p.expect(request(1), 0), 1000);  // until it knows anything
    for (int i = 0; i < 100; ++i) p.learn(request(1), i % 2 ? 10 : 100);
    EXPECT_EQ(p.expect(request(1), 0), 10);
    EXPECT_NEAR(p.expect(request(1), 10), 100, 13);
    EXPECT_EQ(p.expect(request(1, 8), 0), 8);
    EXPECT_EQ(p.expect(request(1, 1000), 400), 600);  // longer than any before it
    if (kind == Predict::oracle) {
      EXPECT_EQ(p.predict(request(1), 0), 1000);
    }
    Request says = request(1);
    says.predicted_output = 77;
    EXPECT_EQ(p.expect(says, 0), 77);
  }
  LengthPredictor constant({Predict::constant, 40});
  for (int i = 0; i < 100; ++i) constant.learn(request(1), 10);
  EXPECT_EQ(constant.expect(request(1), 0), 40);
}

TEST(LengthPredictor, LearnsByPromptLength) {
  LengthPredictor p({Predict::histogram, 0, 0.9f});
  for (int i = 0; i < 100; ++i) {
    p.learn(request(1, 1000, 10), 14);
    p.learn(request(1, 1000, 100), 300);
  }
  EXPECT_EQ(p.predict(request(2, 1000, 12), 0), 14);
  EXPECT_GE(p.predict(request(2, 1000, 70), 0), 300);
}

}  // namespace
}  // namespace sluice
