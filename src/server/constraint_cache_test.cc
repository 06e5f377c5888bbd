#include "server/constraint_cache.h"

#include <gtest/gtest.h>

#include <future>
#include <latch>

#include "constrain/test_vocab.h"

namespace sluice {
namespace {

using constrain::ConstraintKind;
using constrain::ConstraintSource;
using CacheAnswer = ConstraintCache::Answer;

// The answer, whoever calls back.
CacheAnswer ask_cache(ConstraintCache& cache, const ConstraintSource& source) {
  std::promise<CacheAnswer> answer;
  EXPECT_TRUE(cache.get(source, 0, [&](CacheAnswer a) { answer.set_value(std::move(a)); }));
  return answer.get_future().get();
}

TEST(ConstraintCache, CompilesOnceAndFindsItAgain) {
  int num_vocabs = 0;
  ConstraintCache cache([&] { return ++num_vocabs, constrain::test_trie(); });
  EXPECT_EQ(cache.bytes(), 0U);
  CacheAnswer first = ask_cache(cache, {ConstraintKind::regex, "a+"});
  ASSERT_TRUE(first.compiled->has_value());
  EXPECT_FALSE(first.found);
  EXPECT_GT(first.took.count(), 0);
  EXPECT_TRUE(constrain::accepts(**first.compiled, "aaa"));
  EXPECT_GT(cache.bytes(), constrain::test_trie()->memory_bytes());

  CacheAnswer again = ask_cache(cache, {ConstraintKind::regex, "a+"});
  EXPECT_TRUE(again.found);
  EXPECT_EQ(again.took.count(), 0);
  EXPECT_EQ(**again.compiled, **first.compiled);
  // Another kind, or other white space, is another constraint.
  EXPECT_FALSE(ask_cache(cache, {ConstraintKind::json_schema, "true"}).found);
  EXPECT_FALSE(
      ask_cache(cache, {ConstraintKind::json_schema, "true", constrain::JsonSpace::none}).found);
  EXPECT_EQ(num_vocabs, 1);
}

TEST(ConstraintCache, RefusalsAreKept) {
  ConstraintCache cache([] { return constrain::test_trie(); });
  const ConstraintSource bad{ConstraintKind::json_schema, R"({"uniqueItems": true})"};
  CacheAnswer first = ask_cache(cache, bad);
  ASSERT_FALSE(first.compiled->has_value());
  EXPECT_EQ(first.compiled->error().code, 400);
  EXPECT_NE(first.compiled->error().message.find("uniqueItems"), std::string::npos);
  EXPECT_TRUE(ask_cache(cache, bad).found);
}

TEST(ConstraintCache, EqualRequestsWaitForOneCompilation) {
  std::promise<void> go;
  std::shared_future<void> gone = go.get_future().share();
  ConstraintCache cache([&] { return gone.wait(), constrain::test_trie(); });
  constexpr int kNum = 8;
  std::latch all(kNum);
  std::atomic<int> num_compiled = 0;
  for (int i = 0; i < kNum; ++i) {
    ASSERT_TRUE(cache.get({ConstraintKind::regex, "a+"}, 0, [&](const CacheAnswer& a) {
      num_compiled += !a.found;
      all.count_down();
    }));
  }
  go.set_value();
  all.wait();
  EXPECT_EQ(num_compiled, 1);
}

TEST(ConstraintCache, OnlySoManyWait) {
  std::promise<void> go;
  std::shared_future<void> gone = go.get_future().share();
  ConstraintCache cache([&] { return gone.wait(), constrain::test_trie(); },
                        {.waiting = {3, size_t{1} << 20}});
  std::latch all(3);
  auto done = [&](const CacheAnswer&) { all.count_down(); };
  EXPECT_TRUE(cache.get({ConstraintKind::regex, "a"}, 0, done));
  EXPECT_TRUE(cache.get({ConstraintKind::regex, "a"}, 0, done));
  EXPECT_FALSE(cache.get({ConstraintKind::regex, "b"}, size_t{2} << 20, done)) << "bytes";
  EXPECT_TRUE(cache.get({ConstraintKind::regex, "b"}, 0, done));
  EXPECT_FALSE(cache.get({ConstraintKind::regex, "c"}, 0, done)) << "requests";
  go.set_value();
  all.wait();
  EXPECT_FALSE(ask_cache(cache, {ConstraintKind::regex, "c"}).found);
}

TEST(ConstraintCache, TheLeastRecentlyUsedGoesFirst) {
  const size_t one = [] {
    ConstraintCache cache([] { return constrain::test_trie(); });
    ask_cache(cache, {ConstraintKind::regex, "a"});
    return cache.bytes() - constrain::test_trie()->memory_bytes();
  }();
  const size_t limit = constrain::test_trie()->memory_bytes() + 2 * one + one / 2;
  ConstraintCache cache([] { return constrain::test_trie(); }, {.bytes = limit});
  CacheAnswer a = ask_cache(cache, {ConstraintKind::regex, "a"});
  ask_cache(cache, {ConstraintKind::regex, "b"});
  EXPECT_TRUE(ask_cache(cache, {ConstraintKind::regex, "a"}).found);
  ask_cache(cache, {ConstraintKind::regex, "c"});
  EXPECT_LE(cache.bytes(), limit);
  EXPECT_TRUE(ask_cache(cache, {ConstraintKind::regex, "a"}).found);
  EXPECT_FALSE(ask_cache(cache, {ConstraintKind::regex, "b"}).found);
  // Who has one keeps it.
  EXPECT_TRUE(constrain::accepts(**a.compiled, "a"));
}

TEST(ConstraintCache, WhatGrowsIsMeasuredAgain) {
  ConstraintCache cache([] { return constrain::test_trie(); });
  CacheAnswer a = ask_cache(cache, {ConstraintKind::regex, "[a-z]{1,9}(0|1)+x?"});
  const size_t before = cache.bytes();
  cache.trim();
  EXPECT_EQ(cache.bytes(), before);
  constrain::Matcher matcher(**a.compiled);
  std::vector<uint32_t> mask((**a.compiled)->trie().mask_words());
  for (char c : {'a', 'b', 'c', '0'}) {
    ASSERT_TRUE(matcher.fill_mask(mask));
    ASSERT_TRUE(matcher.accept_bytes(std::string(1, c)));
  }
  cache.trim();
  EXPECT_GT(cache.bytes(), before);
}

TEST(ConstraintCache, ABombIsRefusedByItsWork) {
  ConstraintCache cache([] { return constrain::test_trie(); },
                        {.compile = {.max_compile_work = 20'000}});
  std::string bomb = R"({"type": "string", "enum": [)";
  for (int i = 0; i < 20'000; ++i) bomb += (i > 0 ? ",\"x" : "\"x") + std::to_string(i) + '"';
  CacheAnswer a = ask_cache(cache, {ConstraintKind::json_schema, bomb + "]}"});
  ASSERT_FALSE(a.compiled->has_value());
  EXPECT_EQ(a.compiled->error().code, 400);
  EXPECT_NE(a.compiled->error().message.find("too large"), std::string::npos);
  EXPECT_TRUE(ask_cache(cache, {ConstraintKind::regex, "a"}).compiled->has_value());
}

}  // namespace
}  // namespace sluice
