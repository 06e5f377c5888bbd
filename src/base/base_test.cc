// The small parts: result, str, json, mailbox, clock.
#include <gtest/gtest.h>

#include <memory>
#include <thread>

#include "base/clock.h"
#include "base/json.h"
#include "base/mailbox.h"
#include "base/result.h"
#include "base/str.h"

namespace sluice {
namespace {

Result<int> half(int x) {
  if (x % 2 != 0) return Error{422, "odd"};
  return x / 2;
}

TEST(Result, HoldsAValueOrAnError) {
  Result<int> good = half(8), bad = half(3);
  ASSERT_TRUE(good);
  EXPECT_EQ(*good, 4);
  *good = 5;
  EXPECT_EQ(good.value(), 5);
  ASSERT_FALSE(bad);
  EXPECT_EQ(bad.error().code, 422);
  EXPECT_EQ(bad.error().message, "odd");
}

TEST(Result, MovesItsValueOut) {
  Result<std::unique_ptr<int>> r = std::make_unique<int>(3);
  std::unique_ptr<int> p = *std::move(r);
  EXPECT_EQ(*p, 3);
}

TEST(Result, OfVoid) {
  EXPECT_TRUE(Result<void>());
  Result<void> bad = Error{404, "no"};
  EXPECT_FALSE(bad);
  EXPECT_EQ(bad.error().code, 404);
}

TEST(ResultDeathTest, WrongSideIsABug) {
  EXPECT_DEATH(half(3).value(), "CHECK");
  EXPECT_DEATH((void)half(2).error(), "CHECK");
  EXPECT_DEATH(Result<void>(Error{}).value(), "CHECK");
}

TEST(Str, Format) {
  EXPECT_EQ(strf("%d-%s", 7, "x"), "7-x");
  EXPECT_EQ(strf("%s", ""), "");
  std::string big(5000, 'a');
  EXPECT_EQ(strf("%s!", big.c_str()), big + "!");
}

TEST(Str, HumanBytes) {
  EXPECT_EQ(human_bytes(0), "0 B");
  EXPECT_EQ(human_bytes(999), "999 B");
  EXPECT_EQ(human_bytes(1000), "1.0 KB");
  EXPECT_EQ(human_bytes(17'400), "17.4 KB");
  EXPECT_EQ(human_bytes(312'000'000), "312 MB");
  EXPECT_EQ(human_bytes(999'600'000), "1.0 GB");
  EXPECT_EQ(human_bytes(UINT64_MAX), "18.4 EB");
}

TEST(Str, ValidUtf8) {
  for (const char* s : {"", "abc", "\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\x98\x80", "\xed\x9f\xbf",
                        "\xf4\x8f\xbf\xbf"}) {
    EXPECT_TRUE(valid_utf8(s)) << s;
  }
  for (const char* s : {"\x80", "\xc3", "\xc0\xaf", "\xc1\xbf", "\xe0\x9f\xbf", "\xed\xa0\x80",
                        "\xe2\x82", "\xf0\x8f\xbf\xbf", "\xf4\x90\x80\x80", "\xf5\x80\x80\x80",
                        "\xff", "a\xe2\x28\xa1", "\xf0\x9f\x98"}) {
    EXPECT_FALSE(valid_utf8(s)) << quote(s);
  }
  EXPECT_TRUE(valid_utf8(std::string_view("a\0b", 3)));
}

TEST(Str, Quoted) {
  EXPECT_EQ(quote("abc"), "'abc'");
  EXPECT_EQ(quote("a\nb\x7f"), "'a\\x0ab\\x7f'");
  EXPECT_EQ(quote("\xc3\xa9\xff"), "'\xc3\xa9\\xff'");
  EXPECT_EQ(quote(std::string(200, 'x'), 10), "'xxxxxxxxx...'");
  EXPECT_TRUE(valid_utf8(quote("\xe2\x82\xac\xe2\x82\xac", 5)));
}

TEST(Json, Parses) {
  auto v = parse_json(R"({"a":[1,2.5,"\u00e9",null,true]})");
  ASSERT_TRUE(v);
  EXPECT_EQ(v->at("a").at(0), 1);
  EXPECT_EQ(v->at("a").at(2), "\xc3\xa9");
}

TEST(Json, RejectsBadInput) {
  for (const char* s : {"", "{", "[1,]", "{} x", "nul", "'a'", "\"\xff\"", "[NaN]", "{\"a\":1,}"}) {
    auto v = parse_json(s);
    ASSERT_FALSE(v) << s;
    EXPECT_EQ(v.error().code, 400);
    EXPECT_EQ(v.error().message.rfind("invalid JSON: ", 0), 0u);
    EXPECT_EQ(v.error().message.find('\n'), std::string::npos);
  }
}

TEST(Json, BoundsNesting) {
  EXPECT_TRUE(parse_json(std::string(60, '[') + std::string(60, ']')));
  EXPECT_FALSE(parse_json(std::string(70, '[') + std::string(70, ']')));
  EXPECT_FALSE(parse_json(std::string(1'000'000, '[')));
}

TEST(Mailbox, KeepsOrderAndDrainsAll) {
  Mailbox<std::unique_ptr<int>> box;
  std::vector<std::unique_ptr<int>> out(3);
  box.drain(out);
  EXPECT_TRUE(out.empty());
  for (int i = 0; i < 5; ++i) box.push(std::make_unique<int>(i));
  box.drain(out);
  ASSERT_EQ(out.size(), 5u);
  for (int i = 0; i < 5; ++i) EXPECT_EQ(*out[static_cast<size_t>(i)], i);
  box.drain(out);
  EXPECT_TRUE(out.empty());
}

TEST(Mailbox, WaitTimesOut) {
  Mailbox<int> box;
  std::vector<int> out{1};
  box.wait_drain(out, std::chrono::milliseconds(2));
  EXPECT_TRUE(out.empty());
  box.wait_drain(out, std::chrono::nanoseconds(0));
  EXPECT_TRUE(out.empty());
}

TEST(Mailbox, ManyProducers) {
  Mailbox<int> box;
  const int kEach = 2000, kProducers = 3;
  std::vector<std::thread> producers;
  for (int p = 0; p < kProducers; ++p) {
    producers.emplace_back([&box, p] {
      for (int i = 0; i < kEach; ++i) box.push(p * kEach + i);
    });
  }
  std::vector<int> out, next(kProducers);
  for (int got = 0; got < kEach * kProducers; got += static_cast<int>(out.size())) {
    box.wait_drain(out, std::chrono::nanoseconds::max());
    for (int x : out) {
      int p = x / kEach;
      EXPECT_EQ(x % kEach, next[static_cast<size_t>(p)]++);  // in order for each producer
    }
  }
  for (std::thread& t : producers) t.join();
}

TEST(Clock, SimulatedTimeOnlyAdvances) {
  SimClock clock;
  EXPECT_EQ(clock.now(), Time(0));
  clock.advance_to(Time(50));
  clock.advance_to(Time(20));
  EXPECT_EQ(clock.now(), Time(50));
  EXPECT_DOUBLE_EQ(seconds(std::chrono::milliseconds(1500)), 1.5);
  RealClock real;
  Time a = real.now(), b = real.now();
  EXPECT_LE(a, b);
}

}  // namespace
}  // namespace sluice
