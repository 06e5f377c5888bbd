#include "server/turn_log.h"

#include <gtest/gtest.h>

#include <numeric>

namespace sluice {
namespace {

json::array turn_messages(const char* text) { return parse_json(text)->as_array(); }

std::vector<Token> turn_tokens(Token first, size_t num) {
  std::vector<Token> out(num);
  std::iota(out.begin(), out.end(), first);
  return out;
}

std::vector<Token> joined_turns(std::vector<Token> a, const std::vector<Token>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

const json::array kFirstTurn = turn_messages(R"([{"role": "user", "content": "One"}])");
const json::array kSecondTurn = turn_messages(
    R"([{"role": "user", "content": "One"}, {"role": "assistant", "content": "Two"},
        {"role": "user", "content": "Three"}])");
const json::array kOtherTurn = turn_messages(R"([{"role": "user", "content": "Other"}])");

FinishedTurn first_turn(RequestId id, int num_thinking = 0, TenantId tenant = 1) {
  return {tenant,
          id,
          1,
          fingerprint_turns(kFirstTurn).back(),
          std::make_shared<const std::vector<Token>>(turn_tokens(0, 100)),
          turn_tokens(100, 30),
          num_thinking};
}

TEST(TurnLog, FingerprintsAreOfBeginnings) {
  const auto one = fingerprint_turns(kFirstTurn), three = fingerprint_turns(kSecondTurn);
  ASSERT_EQ(three.size(), 3U);
  EXPECT_EQ(one[0], three[0]);
  EXPECT_NE(three[0], three[1]);
  EXPECT_NE(one[0], fingerprint_turns(kOtherTurn)[0]);
  EXPECT_TRUE(fingerprint_turns({}).empty());
}

TEST(TurnLog, FindsWhereTheNextTurnParts) {
  struct Case {
    std::vector<Token> prompt;
    int num_thinking, same;
    TurnPart part;
  };
  const std::vector<Token> other = turn_tokens(1000, 40);
  const Case cases[] = {
      {joined_turns(turn_tokens(0, 130), other), 0, 130, TurnPart::none},  // all of it, and more
      {turn_tokens(0, 60), 0, 60, TurnPart::none},                         // a beginning
      {joined_turns(turn_tokens(0, 3), other), 0, 3, TurnPart::conversation},  // a date
      {joined_turns(turn_tokens(0, 96), other), 0, 96, TurnPart::opening},     // an empty thinking
      {joined_turns(turn_tokens(0, 96), other), 20, 96,
       TurnPart::thinking},  // opened by the template
      {joined_turns(turn_tokens(0, 100), other), 20, 100,
       TurnPart::thinking},  // opened by the model
      {joined_turns(turn_tokens(0, 119), other), 20, 119, TurnPart::thinking},
      {joined_turns(turn_tokens(0, 120), other), 20, 120, TurnPart::answer},
      {joined_turns(turn_tokens(0, 100), other), 0, 100, TurnPart::answer},
  };
  for (const Case& c : cases) {
    TurnLog log;
    log.add(first_turn(7, c.num_thinking));
    const TurnDifference d = log.compare(1, fingerprint_turns(kSecondTurn), c.prompt);
    EXPECT_EQ(d.after, 7U);
    EXPECT_EQ(d.num_tokens, 130);
    EXPECT_EQ(d.num_same, c.same);
    EXPECT_EQ(d.part, c.part) << c.same;
  }
}

TEST(TurnLog, OnlyTurnsOfTheSameConversationAndTenant) {
  TurnLog log;
  log.add(first_turn(7));
  EXPECT_EQ(log.compare(1, fingerprint_turns(kOtherTurn), turn_tokens(0, 130)).after, 0U);
  EXPECT_EQ(log.compare(2, fingerprint_turns(kSecondTurn), turn_tokens(0, 130)).after, 0U);
  EXPECT_EQ(log.compare(1, {}, turn_tokens(0, 130)).after, 0U);
  EXPECT_EQ(log.compare(1, fingerprint_turns(kFirstTurn), turn_tokens(0, 130)).after,
            7U);  // asked again
}

TEST(TurnLog, TheLongestConversationThenTheLatest) {
  TurnLog log;
  FinishedTurn longer = first_turn(8);
  longer.num_messages = 3;
  longer.messages = fingerprint_turns(kSecondTurn).back();
  log.add(std::move(longer));
  log.add(first_turn(9));
  log.add(first_turn(10));
  EXPECT_EQ(log.compare(1, fingerprint_turns(kSecondTurn), turn_tokens(0, 130)).after, 8U);
  EXPECT_EQ(log.compare(1, fingerprint_turns(kFirstTurn), turn_tokens(0, 130)).after, 10U);
}

TEST(TurnLog, IsBounded) {
  TurnLog small(4096);
  for (RequestId id = 1; id <= 20; ++id) {
    FinishedTurn t = first_turn(id);
    t.tenant = id;
    small.add(std::move(t));
  }
  auto known = [&](TenantId tenant) {
    return small.compare(tenant, fingerprint_turns(kFirstTurn), turn_tokens(0, 130)).after != 0;
  };
  EXPECT_TRUE(known(20));
  EXPECT_FALSE(known(1));
  FinishedTurn large = first_turn(21);
  large.prompt = std::make_shared<const std::vector<Token>>(turn_tokens(0, 1000));
  small.add(std::move(large));
  EXPECT_FALSE(known(21));
  EXPECT_TRUE(known(20));  // and nothing had to go for it
}

}  // namespace
}  // namespace sluice
