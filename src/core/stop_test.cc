// The matcher against a naive one that keeps the whole text.
#include "core/stop.h"

#include <random>

#include <gtest/gtest.h>

namespace sluice {
namespace {

// After `text` grew from `old_size`: the earliest match that ends in the new bytes, the first of
// the list where several begin there; and the longest end of the text that begins a stop string.
StopMatcher::Match naive(const std::vector<std::string>& strings,
                         const std::string& text,
                         size_t old_size) {
  StopMatcher::Match m;
  for (size_t at = 0; at < text.size() && !m.found; ++at) {
    for (const std::string& s : strings) {
      if (s.empty() || at + s.size() <= old_size || text.compare(at, s.size(), s) != 0) continue;
      m.found = true;
      m.cut = static_cast<uint32_t>(text.size() - at);
      m.trail = static_cast<uint32_t>(text.size() - at - s.size());
      break;
    }
  }
  for (const std::string& s : strings) {
    for (size_t n = 1; n < s.size() && n <= text.size(); ++n) {
      if (text.substr(text.size() - n) == s.substr(0, n))
        m.held = std::max(m.held, static_cast<uint32_t>(n));
    }
  }
  return m;
}

std::string random_text(std::mt19937& rng, size_t max) {
  std::string s(rng() % (max + 1), 'a');
  for (char& c : s) c = static_cast<char>('a' + rng() % 2);
  return s;
}

TEST(Stop, EqualsTheNaiveMatcherWhateverThePieces) {
  size_t num_found = 0;
  for (uint32_t seed = 0; seed < 3000; ++seed) {
    std::mt19937 rng(seed);
    std::vector<std::string> strings;
    for (size_t i = 0; i < 1 + rng() % 4; ++i) strings.push_back(random_text(rng, 7));
    StopMatcher matcher(strings);
    std::string text;
    for (int piece = 0; piece < 30; ++piece) {
      std::string bytes = random_text(rng, 3);
      size_t old = text.size();
      text += bytes;
      StopMatcher::Match got = matcher.feed(strings, bytes), want = naive(strings, text, old);
      SCOPED_TRACE("seed " + std::to_string(seed) + ", text " + text);
      ASSERT_EQ(got.found, want.found);
      if (want.found) {
        ASSERT_EQ(got.cut, want.cut);
        ASSERT_EQ(got.trail, want.trail);
        ++num_found;
      }
      // A caller that may not stop yet goes on after a match; what it holds back must still do.
      ASSERT_EQ(got.held, want.held);
    }
  }
  EXPECT_GT(num_found, 3000u);
}

TEST(Stop, NoStringsHoldNothing) {
  StopMatcher matcher({});
  StopMatcher::Match m = matcher.feed({}, "some text");
  EXPECT_FALSE(m.found);
  EXPECT_EQ(m.held, 0u);
}

TEST(Stop, EmptyStringsAreIgnored) {
  std::vector<std::string> strings = {"", "end"};
  StopMatcher matcher(strings);
  EXPECT_FALSE(matcher.feed(strings, "the e").found);
  EXPECT_TRUE(matcher.feed(strings, "nd").found);
}

TEST(Stop, TokenTextGivesBytesById) {
  TokenText text;
  text.add("ab");
  text.add("");
  text.add(std::string_view("\0x", 2));
  EXPECT_EQ(text.bytes(0), "ab");
  EXPECT_EQ(text.bytes(1), "");
  EXPECT_EQ(text.bytes(2), std::string_view("\0x", 2));
  EXPECT_EQ(text.bytes(3), "");
  EXPECT_EQ(text.bytes(-1), "");
}

}  // namespace
}  // namespace sluice
