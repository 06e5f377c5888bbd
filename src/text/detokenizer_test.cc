#include "text/detokenizer.h"

#include <random>

#include <gtest/gtest.h>

#include "base/str.h"

namespace sluice {
namespace {

std::unique_ptr<Tokenizer> spm_tokenizer() {
  VocabSpec spec;
  spec.kind = VocabSpec::Kind::spm;
  spec.tokens = {"<unk>", "<s>", "▁", "h", "i", "▁hi"};
  spec.types = {TokenType::unknown, TokenType::control, TokenType::normal,
                TokenType::normal,  TokenType::normal,  TokenType::normal};
  for (int b = 0; b < 256; ++b) {
    spec.tokens.push_back(strf("<0x%02X>", b));
    spec.types.push_back(TokenType::byte);
  }
  spec.scores.assign(spec.tokens.size(), 0.f);
  spec.unk = 0;
  spec.bos = 1;
  spec.add_bos = spec.add_space_prefix = true;
  auto t = Tokenizer::make(std::move(spec));
  CHECK(t.has_value());
  return std::move(*t);
}

Token byte_token(uint8_t b) { return 6 + b; }

std::string replaced(std::string_view bytes) {
  auto t = spm_tokenizer();
  Detokenizer d(*t);
  std::string out = d.push_bytes(bytes);
  return out += d.flush();
}

TEST(Detokenizer, HoldsBackHalfACharacter) {
  auto t = spm_tokenizer();
  Detokenizer d(*t);
  EXPECT_EQ(d.push(byte_token(0xF0)), "");
  EXPECT_EQ(d.push(byte_token(0x9F)), "");
  EXPECT_EQ(d.push(byte_token(0xA6)), "");
  EXPECT_EQ(d.num_pending(), 3u);
  EXPECT_EQ(d.push(byte_token(0x99)), "\xF0\x9F\xA6\x99");
  EXPECT_EQ(d.num_pending(), 0u);
  EXPECT_EQ(d.push(byte_token(0xC3)), "");
  EXPECT_EQ(d.push(5), "\xEF\xBF\xBD hi");
  EXPECT_EQ(d.push(byte_token(0xE2)), "");
  EXPECT_EQ(d.flush(), "\xEF\xBF\xBD");
  EXPECT_EQ(d.flush(), "");
}

// What tokenizers 0.23 decodes with its ByteFallback decoder.
TEST(Detokenizer, ByteTokensThatAreNoText) {
  auto t = spm_tokenizer();
  const std::string r = "\xEF\xBF\xBD";
  auto whole = [&](std::vector<int> bytes, std::vector<Token> more) {
    std::vector<Token> tokens;
    for (int b : bytes) tokens.push_back(byte_token(static_cast<uint8_t>(b)));
    tokens.insert(tokens.end(), more.begin(), more.end());
    return detokenize(*t, tokens);
  };
  EXPECT_EQ(whole({0xE2, 0x82}, {5}), r + r + " hi");
  EXPECT_EQ(whole({0xC3, 0xA9, 0xFF}, {3}), r + r + r + "h");
  EXPECT_EQ(whole({0xE2, 0x28}, {}), r + r);
  EXPECT_EQ(whole({0xC3, 0xA9}, {5}), "\xC3\xA9 hi");
  EXPECT_EQ(whole({0xF0, 0x9F, 0xA6}, {}), r + r + r);
  EXPECT_EQ(whole({0xC3, 0x28, 0xC3, 0xA9}, {}), r + r + r + r);
  // A stream gives out a character as soon as it is whole.
  Detokenizer d(*t);
  auto push = [&](std::initializer_list<int> bytes) {
    std::string text;
    for (int b : bytes) text += d.push(byte_token(static_cast<uint8_t>(b)));
    return text;
  };
  EXPECT_EQ(push({0xC3, 0xA9}), "\xC3\xA9");
  EXPECT_EQ(push({0xE2, 0x82}), "");
  EXPECT_EQ(d.push(5), r + r + " hi");
  std::string cut = push({0xE2, 0x82});
  EXPECT_EQ(cut += d.flush(), r + r);
}

TEST(Detokenizer, ReplacesMaximalSubparts) {
  // The Unicode Standard, table 3-8 to 3-11.
  const std::string r = "\xEF\xBF\xBD";
  EXPECT_EQ(replaced("\xC0\xAF\xE0\x80\xBF\xF0\x81\x82\x41"), r + r + r + r + r + r + r + r + "A");
  EXPECT_EQ(replaced("\xED\xA0\x80\xED\xBF\xBF\xED\xAF\x41"), r + r + r + r + r + r + r + r + "A");
  EXPECT_EQ(replaced("\xF4\x91\x92\x93\xFF\x41\x80\xBF\x42"),
            r + r + r + r + r + "A" + r + r + "B");
  EXPECT_EQ(replaced("\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41"), r + r + r + r + "A");
}

TEST(Detokenizer, ChunksDoNotMatter) {
  auto t = spm_tokenizer();
  std::mt19937 rng(3);
  const std::string_view alphabet = "a \xC3\xA9\xE2\x82\xAC\xF0\x9F\xA6\x99\xED\xA0\xFF";
  for (int round = 0; round < 500; ++round) {
    std::string bytes;
    for (uint32_t i = 0, n = rng() % 20; i < n; ++i) bytes += alphabet[rng() % alphabet.size()];
    std::string whole = replaced(bytes), parts;
    Detokenizer d(*t);
    for (size_t pos = 0; pos < bytes.size();) {
      size_t n = 1 + rng() % 4;
      std::string part = d.push_bytes(std::string_view(bytes).substr(pos, n));
      EXPECT_TRUE(valid_utf8(part));
      parts += part;
      pos += n;
    }
    parts += d.flush();
    EXPECT_EQ(parts, whole);
  }
}

TEST(Detokenizer, SkipsSpecialTokens) {
  auto t = spm_tokenizer();
  const Token tokens[] = {1, 5, 0, 1};
  EXPECT_EQ(detokenize(*t, tokens), " hi");
  EXPECT_EQ(detokenize(*t, tokens, {.skip_special = false}), "<s> hi<unk><s>");
  const Token outside[] = {5, 100000, -1, 3};
  EXPECT_EQ(detokenize(*t, outside), " hih");
}

TEST(Detokenizer, StripsOneSpaceOnce) {
  auto t = spm_tokenizer();
  const Token tokens[] = {1, 2, 5, 5};
  EXPECT_EQ(detokenize(*t, tokens, {.strip_leading_space = true}), " hi hi");
  const Token no_space[] = {3, 5};
  EXPECT_EQ(detokenize(*t, no_space, {.strip_leading_space = true}), "h hi");
}

}  // namespace
}  // namespace sluice
