#include "server/event_log.h"

#include <gtest/gtest.h>

namespace sluice {
namespace {

std::string event(int n) { return "data: " + std::to_string(n) + "\n\n"; }
std::string numbered(int n) { return "id: s:" + std::to_string(n) + "\n" + event(n); }

TEST(EventLog, NumbersEventsAndReplaysFromAnyOfThem) {
  EventLog log("s", 1 << 20);
  log.append(event(1) + event(2));
  log.append(event(3));
  EXPECT_EQ(log.next(1000), numbered(1) + numbered(2) + numbered(3));
  EXPECT_TRUE(log.at_end());
  EXPECT_EQ(log.next(1000), "");
  std::string all = numbered(1) + numbered(2) + numbered(3);
  for (uint64_t last = 0; last <= 3; ++last) {
    ASSERT_TRUE(log.seek(last));
    std::string rest(log.next(1000));
    std::string before;
    for (uint64_t n = 1; n <= last; ++n) before += numbered(static_cast<int>(n));
    EXPECT_EQ(before + rest, all);
  }
  EXPECT_FALSE(log.seek(4));
  EXPECT_FALSE(log.seek(UINT64_MAX / 2));
}

TEST(EventLog, GivesWholeEvents) {
  EventLog log("s", 1 << 20);
  for (int n = 1; n <= 5; ++n) log.append(event(n));
  size_t one = numbered(1).size();
  EXPECT_EQ(log.next(1), numbered(1)) << "at least one";
  EXPECT_EQ(log.next(2 * one), numbered(2) + numbered(3));
  EXPECT_EQ(log.next(3 * one - 1), numbered(4) + numbered(5));
}

TEST(EventLog, DropsTheOldest) {
  size_t one = numbered(1).size();
  EventLog log("s", 10 * one);
  for (int n = 1; n <= 9; ++n) log.append(event(n));
  EXPECT_EQ(log.next(1), numbered(1));
  for (int n = 1; n <= 3; ++n) log.append(event(n));
  EXPECT_LE(log.bytes(), 10 * one);
  EXPECT_TRUE(log.lost());
  EXPECT_EQ(log.next(1000), "");
  EXPECT_FALSE(log.seek(1));
  EXPECT_TRUE(log.seek(11));
  EXPECT_FALSE(log.lost());
  EXPECT_FALSE(log.at_end());
  log.append("data: " + std::string(100 * one, 'x') + "\n\n");
  EXPECT_TRUE(log.seek(12)) << "the last event is always kept";
  EXPECT_GT(log.next(1).size(), 100 * one);
}

TEST(EventLog, ReadsIds) {
  EXPECT_EQ(parse_event_id("cmpl-1:7")->number, 7u);
  EXPECT_EQ(parse_event_id("a:b:0")->id, "a:b");
  for (const char* wrong : {"", ":", ":1", "a", "a:", "a:x", "a:1x", "a:-1", "a: 1",
                            "a:99999999999999999999", "a:18446744073709551615"})
    EXPECT_FALSE(parse_event_id(wrong)) << wrong;
}

}  // namespace
}  // namespace sluice
