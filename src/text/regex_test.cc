#include "text/regex.h"

#include <gtest/gtest.h>

namespace sluice {
namespace {

using Ranges = std::vector<std::pair<size_t, size_t>>;

Ranges matches(std::string_view pattern, std::string_view text) {
  auto regex = Regex::compile(pattern);
  if (!regex) {
    ADD_FAILURE() << regex.error().message;
    return {};
  }
  RegexScratch scratch;
  std::vector<TextRange> found;
  auto ok = (*regex)->find_all(text, scratch, found);
  EXPECT_TRUE(ok) << ok.error().message;
  Ranges out;
  for (const TextRange& r : found) out.push_back({r.begin, r.end});
  return out;
}

TEST(ClassPattern, IsWhatItIs) {
  for (const char* p : {"a", "[0-9][0-9][0-9]", "\\p{N}{1,3}", "\\s?\\p{L}+", "[\r\n]", "\\s+$",
                        "[^a-z\\s]+", "\\d", "[\\p{P}\\$\\+<=>\\^~\\|`]+"}) {
    EXPECT_NE(parse_class_pattern(p), nullptr) << p;
  }
  for (const char* p : {"", "a*", "a|b", "(a)", "a+b", "a?", "a+?", "a++", "^a", "a$", "[a&&b]",
                        "[[a]]", "\\w", "\\b", ".", "a{0,3}", "[a", "\\p{Greek}"}) {
    EXPECT_EQ(parse_class_pattern(p), nullptr) << p;
  }
}

TEST(ClassPattern, Matches) {
  EXPECT_EQ(matches("\\p{N}{1,3}", "1234 5"), (Ranges{{0, 3}, {3, 4}, {5, 6}}));
  EXPECT_EQ(matches("\\s?\\p{L}+", " ab  c"), (Ranges{{0, 3}, {4, 6}}));
  EXPECT_EQ(matches("[0-9][0-9][0-9]", "12345678"), (Ranges{{0, 3}, {3, 6}}));
  EXPECT_EQ(matches("\\s+$", "a  b  "), (Ranges{{4, 6}}));
  EXPECT_EQ(matches("\\s+$", "a  \nb"), (Ranges{{1, 3}}));
  EXPECT_EQ(matches("[^a-z]+", "ab\xC3\xA9!c"), (Ranges{{2, 5}}));
  // The optional character is given back where the rest needs it.
  EXPECT_EQ(matches("\\s?[\xE3\x80\x80!]+", "\xE3\x80\x80"), (Ranges{{0, 3}}));
}

TEST(Regex, TranslatesWhatDiffers) {
  EXPECT_EQ(*translate_pattern("a{,3}"), "a{0,3}");
  EXPECT_EQ(*translate_pattern("(?m:.)"), "(?s:.)");
  EXPECT_EQ(*translate_pattern("\\h"), "[0-9a-fA-F]");
  EXPECT_EQ(*translate_pattern("\\u00e9"), "\\x{00e9}");
  EXPECT_FALSE(translate_pattern("[a&&b]"));
  EXPECT_FALSE(translate_pattern("[a[b]]"));
  EXPECT_FALSE(translate_pattern("a{1,2}+"));
  EXPECT_FALSE(translate_pattern("a\\"));
}

TEST(Regex, GeneralPatterns) {
  if (!RegexProgram::compile("a")) GTEST_SKIP() << "built without PCRE2";
  EXPECT_EQ(matches("ab|c", "abxc"), (Ranges{{0, 2}, {3, 4}}));
  EXPECT_EQ(matches("(?<=a)b", "bab"), (Ranges{{2, 3}}));
  EXPECT_EQ(matches("^.", "ab\ncd"), (Ranges{{0, 1}, {3, 4}}));
  EXPECT_EQ(matches("x*", "axb"), (Ranges{{0, 0}, {1, 2}, {3, 3}}));
  EXPECT_EQ(matches("(?i:'s)", "'S '\xC5\xBF"), (Ranges{{0, 2}, {3, 6}}));
  EXPECT_EQ(matches("a|\\s", "\xE1\xA0\x8E"), Ranges{});  // U+180E is no white space
  auto bad = Regex::compile("(a");
  ASSERT_FALSE(bad);
  EXPECT_NE(bad.error().message.find("'(a' cannot be used"), std::string::npos);
}

TEST(Regex, WorkIsBounded) {
  auto regex = Regex::compile("(a+)+x|b");
  if (!regex) GTEST_SKIP() << regex.error().message;
  RegexScratch scratch;
  std::vector<TextRange> found;
  auto ok = (*regex)->find_all(std::string(5000, 'a'), scratch, found);
  ASSERT_FALSE(ok);
  EXPECT_NE(ok.error().message.find("takes too long"), std::string::npos);
}

}  // namespace
}  // namespace sluice
