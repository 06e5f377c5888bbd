#include "constrain/pattern.h"

#include <gtest/gtest.h>

#include "constrain/number_range.h"
#include "constrain/test_vocab.h"

namespace sluice::constrain {

namespace {

bool regex_accepts(const std::string& pattern, std::string_view text) {
  return accepts(ConstraintKind::regex, pattern, text);
}

bool pool_matches(RegexPool& pool, RegexId r, std::string_view text) {
  for (char c : text) r = pool.derivative(r, static_cast<uint8_t>(c));
  return pool.nullable(r);
}

}  // namespace

TEST(Pattern, MatchesWholeTexts) {
  struct {
    const char *pattern, *yes, *no;
  } cases[] = {
      {"a|bc", "bc", "b"},
      {"(ab?)+", "aba", "abb"},
      {"[^a-c]{2}", "xy", "xa"},
      {"\\d{1,3}(\\.\\d+)?", "12.5", "12."},
      {"\\w+@[a-z.]+", "a_b@c.d", "@c"},
      {".", "\xE2\x82\xAC", "\n"},
      {"[\xC3\xA9-\xC3\xBF]", "\xC3\xAA", "\xC3"},
      {"\\u20ac\\x41",
       "\xE2\x82\xAC"
       "A",
       "\xE2\x82\xAC"},
      {"^(?!ab).*$", "acb", "abc"},
      {"(?=.*\\d)[a-z\\d]{3}", "a1b", "abc"},
      {"(?<year>[0-9]{4})-x*?", "2024-", "24-"},
      {"^(a$|b)", "a", "ab"},
      {"\\{\\}\\[\\]", "{}[]", "{}"},
      {"[\\]\\-a]+", "]-a", "b"},
      {"abc*d", "abd", "d"},
      {"abcd?", "abc", "ab"},
      {"a\xC3\xA9{2}b",
       "a\xC3\xA9\xC3\xA9"
       "b",
       "a\xC3\xA9"
       "b"},
      {"a]b}c", "a]b}c", "abc"},
      {"xy(ab|abc)z$", "xyabcz", "xyab"},
      {"[^\\S]", " ", "\xC2\x85"},  // white space to some
      {"[^\\s]", "a", "\xC2\x85"},
  };
  for (const auto& c : cases) {
    EXPECT_TRUE(regex_accepts(c.pattern, c.yes)) << c.pattern;
    EXPECT_FALSE(regex_accepts(c.pattern, c.no)) << c.pattern;
  }
}

TEST(Pattern, RefusesByName) {
  struct {
    const char *pattern, *why;
  } cases[] = {
      {"(a)\\1", "backreference"}, {"\\bword", "\\b"},     {"(?<=a)b", "lookbehind"},
      {"(?i)a", "flags"},          {"\\p{L}", "\\p"},      {"a{2,1}", "m > n"},
      {"(a", "( without )"},       {"a)", "unbalanced )"}, {"[a", "[ without ]"},
      {"*a", "nothing to repeat"}, {"[z-a]", "order"},     {"a++", "possessive"},
      {"[^\\d\\D]", "no text"},    {"a^b", "^"},           {"[^\\s\\S]", "no text"},
  };
  for (const auto& c : cases) {
    auto r = compile_test(ConstraintKind::regex, c.pattern);
    ASSERT_FALSE(r) << c.pattern;
    EXPECT_NE(r.error().message.find(c.why), std::string::npos) << r.error().message;
    EXPECT_EQ(r.error().message.find('\n'), std::string::npos);
  }
}

TEST(Pattern, BombsAreRefused) {
  for (const char* bomb : {"(a{1000}){1000}{1000}", "((a|b)*a(a|b){18}){9}x",
                           "(?=(a|aa)+$)(?!(aaa)+$)(a?){400}a{400}"}) {
    ConstraintLimits limits;
    limits.max_step_work = 200'000;
    auto c = compile_test(ConstraintKind::regex, bomb, JsonSpace::flexible, limits);
    if (!c) continue;
    // What compiles stays within the work of a step, or says that it does not.
    Matcher m(*c);
    int accepted = 0;
    while (accepted < 64 && m.accept_bytes("a")) ++accepted;
    EXPECT_TRUE(accepted == 64 || !m.failure().empty()) << bomb << " after " << accepted;
  }
  std::string words;  // a megabyte of them, which share no ends
  for (int i = 1; words.size() < 1'000'000; ++i)
    words += std::string(static_cast<size_t>(i), 'x') + std::to_string(i) + "|";
  words.back() = 'y';
  auto many = compile_test(ConstraintKind::regex, words);
  ASSERT_FALSE(many);
  EXPECT_NE(many.error().message.find("too large"), std::string::npos) << many.error().message;
  EXPECT_FALSE(compile_test(ConstraintKind::regex, std::string(5000, '(')));
  EXPECT_FALSE(compile_test(ConstraintKind::regex, std::string(2 << 20, 'a')));
}

TEST(NumberRange, IsExact) {
  WorkBudget budget(100'000'000);
  RegexPool pool(budget, 1'000'000);
  const double bounds[] = {-120, -10.5, -1, -0.25, 0, 0.125, 1, 9, 10, 10.5, 99.99, 1000};
  const char* numbers[] = {"-1000", "-120",  "-119.9", "-10.5", "-10.50", "-10.51", "-1",
                           "-1.0",  "-0.25", "-0.3",   "0",     "0.1",    "0.125",  "0.12",
                           "0.13",  "1",     "1.0",    "9",     "9.99",   "10",     "10.5",
                           "10.51", "99",    "99.99",  "100",   "999",    "1000",   "1000.1"};
  for (double low : bounds) {
    for (double high : bounds) {
      for (int open = 0; open < 4; ++open) {
        NumberSet set;
        set.low = NumberBound{*Decimal::of(low), (open & 1) != 0};
        set.high = NumberBound{*Decimal::of(high), (open & 2) != 0};
        RegexId any = number_regex(pool, set);
        set.whole = true;
        RegexId whole = number_regex(pool, set);
        for (const char* text : numbers) {
          double x = std::stod(text);
          bool in = (open & 1 ? x > low : x >= low) && (open & 2 ? x < high : x <= high);
          bool written_whole = std::string_view(text).find('.') == std::string_view::npos;
          EXPECT_EQ(pool_matches(pool, any, text), in) << text << " in " << low << " " << high;
          EXPECT_EQ(pool_matches(pool, whole, text), in && written_whole) << text;
        }
      }
    }
  }
  NumberSet sevens{.whole = true, .low = {}, .high = {}, .multiple = 7};
  RegexId r = number_regex(pool, sevens);
  for (int i = -50; i <= 50; ++i) {
    EXPECT_EQ(pool_matches(pool, r, std::to_string(i)), i % 7 == 0) << i;
  }
}

TEST(RegexPool, EmptinessAndCounts) {
  WorkBudget budget(10'000'000);
  RegexPool pool(budget, 100'000);
  RegexId a = pool.range('a', 'a'), letters = pool.range('a', 'z');
  EXPECT_TRUE(pool.is_empty(pool.all_of({pool.repeat(a, 3, 3), pool.repeat(letters, 4, 9)})));
  EXPECT_FALSE(pool.is_empty(pool.minus(pool.star(letters), pool.star(a))));
  EXPECT_TRUE(pool.is_empty(pool.minus(pool.star(a), pool.star(letters))));
  EXPECT_EQ(pool.count(pool.repeat(letters, 0, 1), 100), 27u);
  EXPECT_EQ(pool.count(pool.star(a), 100), 100u);
  EXPECT_EQ(pool.complement(pool.complement(a)), a);
}

}  // namespace sluice::constrain
