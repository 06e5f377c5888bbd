#include "text/pretokenize.h"

#include <gtest/gtest.h>

namespace sluice {
namespace {

std::vector<std::string> pieces(const char* pre, std::string_view text) {
  std::optional<NamedPreTokenizer> row = find_pre_tokenizer(pre);
  if (!row) return {"unknown pre-tokenizer"};
  sluice::Pieces split;
  split.text = text;
  if (!text.empty()) split.ends = {static_cast<uint32_t>(text.size())};
  RegexScratch scratch;
  auto ok = pre_tokenize(row->steps, scratch, split);
  if (!ok) return {ok.error().message};
  std::vector<std::string> out;
  uint32_t begin = 0;
  for (uint32_t end : split.ends) {
    out.emplace_back(split.text.substr(begin, end - begin));
    begin = end;
  }
  return out;
}

using Pieces = std::vector<std::string>;

TEST(PreTokenize, Gpt2) {
  EXPECT_EQ(pieces("gpt-2", ""), Pieces{});
  EXPECT_EQ(pieces("gpt-2", "Hello world"), (Pieces{"Hello", " world"}));
  EXPECT_EQ(pieces("gpt-2", "I'll don'T"), (Pieces{"I", "'ll", " don", "'", "T"}));
  EXPECT_EQ(pieces("gpt-2", "a  b"), (Pieces{"a", " ", " b"}));
  EXPECT_EQ(pieces("gpt-2", "a \n\tb"), (Pieces{"a", " \n", "\t", "b"}));
  EXPECT_EQ(pieces("gpt-2", "a \n "), (Pieces{"a", " \n "}));
  EXPECT_EQ(pieces("gpt-2", "x12345 67"), (Pieces{"x", "12345", " 67"}));
  EXPECT_EQ(pieces("gpt-2", "?!\xE2\x82\xAC a"), (Pieces{"?!\xE2\x82\xAC", " a"}));
  // A combining mark is neither letter nor number nor space.
  EXPECT_EQ(pieces("gpt-2", "e\xCC\x81!x"), (Pieces{"e", "\xCC\x81!", "x"}));
}

TEST(PreTokenize, DigitsOneByOneThenGpt2) {
  EXPECT_EQ(pieces("smollm", "ab 12c"), (Pieces{"ab", " ", "1", "2", "c"}));
  EXPECT_EQ(pieces("smollm", "a  7"), (Pieces{"a", "  ", "7"}));
  EXPECT_EQ(pieces("starcoder", "x\xC2\xBD y"), (Pieces{"x", "\xC2\xBD", " y"}));
}

TEST(PreTokenize, Llama3) {
  EXPECT_EQ(pieces("llama-bpe", "I'LL go"), (Pieces{"I", "'LL", " go"}));
  EXPECT_EQ(pieces("llama-bpe", "1234567"), (Pieces{"123", "456", "7"}));
  EXPECT_EQ(pieces("llama-bpe", "(word) .x"), (Pieces{"(word", ")", " .", "x"}));
  EXPECT_EQ(pieces("llama-bpe", "a \n \n  b"), (Pieces{"a", " \n \n", " ", " b"}));
  EXPECT_EQ(pieces("llama-bpe", "a!\r\n\nb"), (Pieces{"a", "!\r\n\n", "b"}));
  EXPECT_EQ(pieces("llama-bpe", "\tx \t"), (Pieces{"\tx", " \t"}));
  EXPECT_EQ(pieces("llama-bpe", "'\xC5\xBFx"), (Pieces{"'\xC5\xBF", "x"}));  // long s folds to s
}

TEST(PreTokenize, Qwen) {
  EXPECT_EQ(pieces("qwen2", "1234"), (Pieces{"1", "2", "3", "4"}));
  EXPECT_EQ(pieces("qwen2", "e\xCC\x81x"), (Pieces{"e", "\xCC\x81x"}));
  EXPECT_EQ(pieces("qwen35", "e\xCC\x81x"), (Pieces{"e\xCC\x81x"}));
}

TEST(PreTokenize, UnknownNameHasNoRow) {
  EXPECT_FALSE(find_pre_tokenizer("no-such"));
  EXPECT_NE(known_pre_tokenizers().find("llama-bpe"), std::string::npos);
}

}  // namespace
}  // namespace sluice
