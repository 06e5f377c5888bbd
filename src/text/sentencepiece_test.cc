// SentencePiece models written field by field.
#include <algorithm>
#include <bit>
#include <cmath>

#include <gtest/gtest.h>

#include "text/detokenizer.h"
#include "text/tokenizer.h"

namespace sluice {
namespace {

std::string varint(uint64_t v) {
  std::string out;
  for (; v >= 128; v >>= 7) out += static_cast<char>(v | 128);
  return out += static_cast<char>(v);
}
std::string number(uint32_t field, uint64_t v) { return varint(field << 3) + varint(v); }
std::string bytes(uint32_t field, const std::string& s) {
  return varint(field << 3 | 2) + varint(s.size()) + s;
}
std::string piece(const std::string& text, float score, uint64_t type = 1) {
  uint32_t bits = std::bit_cast<uint32_t>(score);
  std::string f = varint(2 << 3 | 5);
  for (int i = 0; i < 4; ++i) f += static_cast<char>(bits >> (8 * i));
  return bytes(1, bytes(1, text) + f + number(3, type));
}

std::string small_model(uint64_t type) {
  std::string m =
      piece("<unk>", 0, 2) + piece("<s>", 0, 3) + piece("</s>", 0, 3) + piece("<t>", 0, 4);
  for (const char* s : {"▁", "a", "b"}) m += piece(s, -5);
  m += piece("ab", -1) + piece("▁ab", -2);
  return m + bytes(2, number(3, type)) + bytes(3, number(3, 1) + number(4, 1) + number(5, 1));
}

std::unique_ptr<Tokenizer> made(const std::string& model) {
  auto spec = spec_from_sentencepiece(model);
  EXPECT_TRUE(spec) << spec.error().message;
  auto t = Tokenizer::make(std::move(*spec));
  EXPECT_TRUE(t) << t.error().message;
  return std::move(*t);
}

using Tokens = std::vector<Token>;

TEST(SentencePiece, BothModels) {
  for (uint64_t type : {1, 2}) {
    auto t = made(small_model(type));
    EXPECT_EQ(*t->encode("ab  ab "), (Tokens{8, 8})) << type;  // extra spaces go
    EXPECT_EQ(*t->encode("xyab"), (Tokens{4, 0, 7})) << type;
    EXPECT_EQ(*t->encode("ab", {.add_special = true}), (Tokens{1, 8})) << type;
    EXPECT_EQ(detokenize(*t, *t->encode("ab ab"), {.strip_leading_space = t->adds_space()}),
              "ab ab");
    EXPECT_EQ(t->eos(), 2);
  }
}

TEST(SentencePiece, SymbolsNeedTrust) {
  for (uint64_t type : {1, 2}) {
    auto t = made(small_model(type));
    EXPECT_EQ(*t->encode("ab<t>ab", {}, true), (Tokens{8, 3, 7})) << type;
    Tokens untrusted = *t->encode("ab<t><s>");
    EXPECT_EQ(std::count(untrusted.begin(), untrusted.end(), 3), 0) << type;
    const TextSegment mixed[] = {{"<t>", true}, {"<t>", false}};
    Tokens ids = *t->encode(mixed);
    EXPECT_EQ(std::count(ids.begin(), ids.end(), 3), 1) << type;
  }
}

// What the library (0.2.2) gives for the same files: sums in single precision, symbols scored by
// their length.
std::string bare_model(const std::string& pieces) {
  return piece("<unk>", 0, 2) + piece("<s>", 0, 3) + piece("</s>", 0, 3) + pieces +
         bytes(2, number(3, 1)) + bytes(3, number(3, 0) + number(4, 0) + number(5, 1));
}

TEST(SentencePiece, SymbolsAreScoredByLength) {
  auto t = made(bare_model(piece("a", 0, 4) + piece("b", 0, 4) + piece("ab", -0.05f)));
  EXPECT_EQ(*t->encode("abab", {}, true), (Tokens{3, 4, 3, 4}));
}

TEST(SentencePiece, OverlappingSymbolsAreWeighedToTheLastBit) {
  const std::string symbols = piece("<b>", 0, 4) + piece("<b><b>", 0, 4);
  const struct {
    float before;
    Tokens ids;
  } cases[] = {{-1, {5, 3, 4}}, {-0.5f, {5, 4, 3}}, {-1.25f, {5, 3, 4}}, {-4.25f, {5, 4, 3}}};
  for (const auto& c : cases) {
    auto t = made(bare_model(symbols + piece("x", c.before)));
    EXPECT_EQ(*t->encode("x<b><b><b>", {}, true), c.ids) << c.before;
  }
}

TEST(SentencePiece, LongSumsStartAnew) {
  auto t = made(bare_model(piece("a", -2.5f) + piece("b", -2.5005f) + piece("ab", -5.001f)));
  EXPECT_EQ(*t->encode("ab"), (Tokens{3, 4}));
  // Each x costs 15.001; beyond 100,000 the sum begins at 0 again and is as fine as at the start.
  EXPECT_EQ(*t->encode(std::string(6666, 'x') + "ab"), (Tokens{0, 5}));
  EXPECT_EQ(*t->encode(std::string(6668, 'x') + "ab"), (Tokens{0, 3, 4}));
}

TEST(SentencePiece, DamagedFilesAreErrors) {
  const std::string whole = small_model(1);
  for (size_t size = 0; size < whole.size(); ++size) {
    auto spec = spec_from_sentencepiece(whole.substr(0, size));
    if (spec) (void)Tokenizer::make(std::move(*spec));
  }
  EXPECT_FALSE(spec_from_sentencepiece(""));
  EXPECT_FALSE(spec_from_sentencepiece(std::string(20, '\xFF')));
  EXPECT_FALSE(spec_from_sentencepiece(piece("", 0)));
  EXPECT_FALSE(spec_from_sentencepiece(piece("a", 0, 9)));
  EXPECT_FALSE(spec_from_sentencepiece(piece("a", 0) + bytes(2, number(3, 3))));  // words
  EXPECT_FALSE(spec_from_sentencepiece(piece("a", 0) + bytes(3, bytes(2, "xxxxxxxx"))));
  auto long_symbol =
      spec_from_sentencepiece(bare_model(piece("a", -1) + piece(std::string(2000, 'a'), 0, 4)));
  ASSERT_TRUE(long_symbol);
  EXPECT_FALSE(Tokenizer::make(std::move(*long_symbol)));
  auto nan = spec_from_sentencepiece(piece("<unk>", 0, 2) + piece("a", std::nanf("")));
  ASSERT_TRUE(nan);
  EXPECT_FALSE(Tokenizer::make(std::move(*nan)));
}

}  // namespace
}  // namespace sluice
