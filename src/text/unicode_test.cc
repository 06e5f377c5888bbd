#include "text/unicode.h"

#include <gtest/gtest.h>

#include "text/graphemes.h"

namespace sluice {
namespace {

std::string utf8(std::u32string_view s) {
  std::string out;
  for (char32_t c : s) append_utf8(out, c);
  return out;
}

std::string nfc(std::u32string_view s) {
  std::string text = utf8(s);
  return to_nfc(text).value_or(text);
}

TEST(CharClass, KnowsTheProperties) {
  const std::pair<char32_t, CharClass> cases[] = {
      {'a', CharClass::letter},     {'Z', CharClass::letter},     {0xAA, CharClass::letter},
      {0x4E00, CharClass::letter},  {0x1F600, CharClass::other},  {'5', CharClass::number},
      {0xBD, CharClass::number},    {0x2163, CharClass::number},  {0x0301, CharClass::mark},
      {0x0903, CharClass::mark},    {' ', CharClass::space},      {0x85, CharClass::space},
      {0x3000, CharClass::space},   {0x1C, CharClass::other},     {0x200B, CharClass::other},
      {0x10FFFF, CharClass::other}, {0x10FFFD, CharClass::other}, {'_', CharClass::other},
  };
  for (const auto& [c, cls] : cases) {
    EXPECT_EQ(char_class(c), cls) << std::hex << static_cast<uint32_t>(c);
    EXPECT_EQ(code_point_at(utf8(std::u32string(1, c)), 0).cls, cls);
    EXPECT_EQ(code_point_at(utf8(std::u32string(1, c)), 0).value, c);
  }
}

TEST(Nfc, ComposesAndOrders) {
  EXPECT_EQ(nfc(U"e\u0301"), utf8(U"\u00E9"));
  EXPECT_EQ(nfc(U"\u212B"), utf8(U"\u00C5"));               // Angstrom: a singleton
  EXPECT_EQ(nfc(U"a\u0301\u0323"), utf8(U"\u1EA1\u0301"));  // reordered, then composed
  EXPECT_EQ(nfc(U"\u1E0B\u0323"), utf8(U"\u1E0D\u0307"));   // taken apart first
  EXPECT_EQ(nfc(U"\u1112\u1161\u11AB"), utf8(U"\uD55C"));   // Hangul
  EXPECT_EQ(nfc(U"\uD558\u11AB"), utf8(U"\uD55C"));
  EXPECT_EQ(nfc(U"\u0958"), utf8(U"\u0915\u093C"));         // excluded from composition
  EXPECT_EQ(nfc(U"a\u0300\u0300"), utf8(U"\u00E0\u0300"));  // the second is blocked
  EXPECT_EQ(nfc(U"\u0344"), utf8(U"\u0308\u0301"));
}

TEST(Nfc, LeavesNormalTextAlone) {
  for (std::u32string_view s :
       {U"", U"plain", U"caf\u00E9", U"\u6211\U0001F680", U"\uD55C", U"q\u0301"}) {
    EXPECT_FALSE(to_nfc(utf8(s)).has_value());
  }
}

TEST(NormalForms, FollowTheirDefinition) {
  auto form = [](NormalForm f, std::u32string_view s) {
    std::string out;
    append_normal(f, utf8(s), out);
    return out;
  };
  EXPECT_EQ(form(NormalForm::nfd, U"\u1EA1\u0301"), utf8(U"a\u0323\u0301"));
  EXPECT_EQ(form(NormalForm::nfd, U"\uD55C"), utf8(U"\u1112\u1161\u11AB"));
  EXPECT_EQ(form(NormalForm::nfkd, U"\uFB01\u00BD"), utf8(U"fi1\u20442"));
  EXPECT_EQ(form(NormalForm::nfkc, U"\uFF21\u030A"), utf8(U"\u00C5"));
  EXPECT_EQ(form(NormalForm::nfc, U"\uFB01"), utf8(U"\uFB01"));
  EXPECT_TRUE(is_boundary(NormalForm::nfc, 'a'));
  EXPECT_TRUE(is_boundary(NormalForm::nfkc, 0xFF5C));
  EXPECT_FALSE(is_boundary(NormalForm::nfc, 0x301));
  EXPECT_FALSE(is_boundary(NormalForm::nfc, 0x11A8));
}

TEST(Lower, OneCharacterAtATime) {
  auto lower = [](char32_t c) {
    std::string out;
    append_lower(out, c);
    return out;
  };
  EXPECT_EQ(lower('A'), "a");
  EXPECT_EQ(lower(0x3A3), utf8(U"\u03C3"));
  EXPECT_EQ(lower(0x130), utf8(U"i\u0307"));
  EXPECT_EQ(lower(0x4E00), utf8(U"\u4E00"));
}

TEST(Graphemes, AreWhatAReaderSees) {
  auto first = [](std::u32string_view s) { return grapheme_end(utf8(s), 0); };
  EXPECT_EQ(first(U"ab"), 1u);
  EXPECT_EQ(first(U"e\u0301x"), 3u);
  EXPECT_EQ(first(U"\r\nx"), 2u);
  EXPECT_EQ(first(U"\n\u0301"), 1u);
  EXPECT_EQ(first(U"\u1112\u1161\u11ABx"), 9u);
  EXPECT_EQ(first(U"\U0001F1E9\U0001F1EA\U0001F1EB"), 8u);                // two flags' halves
  EXPECT_EQ(first(U"\U0001F468\u200D\U0001F469\u200D\U0001F467x"), 18u);  // a family
  EXPECT_EQ(first(U"\u0915\u094D\u0937x"), 9u);                           // a conjunct
}

TEST(Utf8, FindsTheFirstBadByte) {
  EXPECT_EQ(first_invalid_utf8("abc\xC3\xA9"), std::nullopt);
  EXPECT_EQ(first_invalid_utf8("ab\xFFz"), 2u);
  EXPECT_EQ(first_invalid_utf8("a\xC0\x80"), 1u);          // overlong
  EXPECT_EQ(first_invalid_utf8("\xED\xA0\x80"), 0u);       // surrogate
  EXPECT_EQ(first_invalid_utf8("x\xF4\x90\x80\x80"), 1u);  // above U+10FFFF
  EXPECT_EQ(first_invalid_utf8("xy\xE2\x82"), 2u);         // cut short
}

}  // namespace
}  // namespace sluice
