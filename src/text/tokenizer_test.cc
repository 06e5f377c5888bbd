#include "text/tokenizer.h"

#include <gtest/gtest.h>

#include "base/str.h"
#include "text/byte_level.h"
#include "text/detokenizer.h"

namespace sluice {
namespace {

using Tokens = std::vector<Token>;

// All bytes (0..255), then what merges and the caller add.
struct SmallBpe {
  VocabSpec spec;

  explicit SmallBpe(const char* pre = "gpt-2") {
    spec.pre = pre;
    for (int b = 0; b < 256; ++b) add(byte_level_char(static_cast<uint8_t>(b)));
  }
  Token add(std::string text, TokenType type = TokenType::normal) {
    spec.tokens.push_back(std::move(text));
    spec.types.push_back(type);
    return static_cast<Token>(spec.tokens.size()) - 1;
  }
  Token merge(const std::string& left, const std::string& right) {
    spec.merges.push_back(left + " " + right);
    return add(left + right);
  }
  std::unique_ptr<Tokenizer> make() const {
    auto t = Tokenizer::make(spec);
    EXPECT_TRUE(t) << t.error().message;
    return t ? std::move(*t) : nullptr;
  }
};

Tokens encode(const Tokenizer& t, std::string_view text, bool trusted = false) {
  auto r = t.encode(text, {}, trusted);
  EXPECT_TRUE(r) << r.error().message;
  return r ? *r : Tokens{};
}

Tokens encode(const Tokenizer& t, const std::vector<TextSegment>& segments) {
  auto r = t.encode(std::span(segments));
  EXPECT_TRUE(r) << r.error().message;
  return r ? *r : Tokens{};
}

std::string make_error(const VocabSpec& spec) {
  auto t = Tokenizer::make(spec);
  return t ? "no error" : t.error().message;
}

TEST(BpeTokenizer, MergesByRank) {
  SmallBpe v;
  Token bc = v.merge("b", "c");
  Token ab = v.merge("a", "b");
  Token abc = v.merge("a", "bc");
  Token sp_a = v.merge("Ġ", "a");
  auto t = v.make();
  EXPECT_EQ(encode(*t, "abc"), (Tokens{abc}));
  EXPECT_EQ(encode(*t, "abd"), (Tokens{ab, 'd'}));
  EXPECT_EQ(encode(*t, "bcbc a"), (Tokens{bc, bc, sp_a}));
  EXPECT_EQ(encode(*t, ""), Tokens{});
  EXPECT_EQ(t->bytes(sp_a), " a");
  EXPECT_EQ(t->spelling(sp_a), "Ġa");
  EXPECT_EQ(t->find("Ġa"), sp_a);
  EXPECT_EQ(t->find("nothing"), std::nullopt);
  EXPECT_EQ(t->bytes(t->size()), "");
  EXPECT_EQ(t->bytes(kNoToken), "");
}

TEST(BpeTokenizer, KnowsHowMuchATokenStandsFor) {
  SmallBpe v, composing("qwen2"), holes;
  v.merge("b", "c");
  v.merge("a", "bc");
  EXPECT_EQ(v.make()->most_bytes(), 3u);
  EXPECT_EQ(composing.make()->most_bytes(), 3u);  // of three Hangul letters one syllable is left
  EXPECT_EQ(encode(*composing.make(), "\u1112\u1161\u11AB").size(), 3u);
  holes.spec.tokens[7] = "x";  // a byte without a token is dropped
  EXPECT_EQ(holes.make()->most_bytes(), 1u);
  EXPECT_EQ(holes.make()->counted_bytes("\x07 \x07\x08"), 2u);
  EXPECT_EQ(encode(*holes.make(), "\x07 \x07\x08"), (Tokens{' ', 8}));
  composing.spec.tokens[7] = "x";  // who knows what becomes what
  EXPECT_EQ(composing.make()->most_bytes(), 0u);
}

TEST(BpeTokenizer, IgnoreMergesTakesWholePieces) {
  SmallBpe llama("llama-bpe"), gpt("gpt-2");
  Token whole = llama.add("xyz");
  gpt.add("xyz");
  EXPECT_EQ(encode(*llama.make(), "xyz"), (Tokens{whole}));
  EXPECT_EQ(encode(*gpt.make(), "xyz"), (Tokens{'x', 'y', 'z'}));
}

TEST(BpeTokenizer, NormalisesOnlyWhereTheModelDoes) {
  EXPECT_EQ(encode(*SmallBpe("qwen2").make(), "e\xCC\x81"), (Tokens{0xC3, 0xA9}));
  EXPECT_EQ(encode(*SmallBpe("gpt-2").make(), "e\xCC\x81"), (Tokens{'e', 0xCC, 0x81}));
}

TEST(BpeTokenizer, RoundTripsEveryCharacter) {
  for (const char* pre : {"gpt-2", "smollm", "llama-bpe", "stablelm2"}) {
    SmallBpe v(pre);
    v.merge("Ġ", "Ġ");
    v.merge("Ã", "©");
    auto t = v.make();
    std::string text;
    for (char32_t c = 0; c < 0x30000; c += c < 0x800 ? 1 : 61) {
      if (c >= 0xD800 && c < 0xE000) continue;
      if (c < 0x80) {
        text += static_cast<char>(c);
      } else if (c < 0x800) {
        text += {static_cast<char>(0xC0 | c >> 6), static_cast<char>(0x80 | (c & 63))};
      } else if (c < 0x10000) {
        text += {static_cast<char>(0xE0 | c >> 12), static_cast<char>(0x80 | (c >> 6 & 63)),
                 static_cast<char>(0x80 | (c & 63))};
      }
      if (c % 7 == 0) text += "  'Re ";
    }
    EXPECT_EQ(detokenize(*t, encode(*t, text)), text) << pre;
  }
}

TEST(Tokenizer, UserTextNeverBecomesSpecial) {
  SmallBpe v;
  Token end = v.add("<|end|>", TokenType::control);
  Token tool = v.add("<tool>", TokenType::user_defined);
  auto t = v.make();
  EXPECT_EQ(encode(*t, "a<|end|>", true), (Tokens{'a', end}));
  EXPECT_EQ(encode(*t, "<tool>b", true), (Tokens{tool, 'b'}));
  for (const char* text : {"<|end|>", "<tool>", "<|end|><|end|>"}) {
    for (Token id : encode(*t, text)) EXPECT_LT(id, 256) << text;
    EXPECT_EQ(detokenize(*t, encode(*t, text)), text);
  }
  EXPECT_EQ(encode(*t, {{"<|end|>", true}, {"<|end|>", false}, {"<|end|>", true}}).size(), 2 + 7u);
}

TEST(Tokenizer, SpecialTokensNeedAllTheirBytesTrusted) {
  SmallBpe v;
  Token end = v.add("<|end|>", TokenType::control);
  auto t = v.make();
  const std::string text = "<|end|>";
  for (size_t cut = 1; cut < text.size(); ++cut) {
    std::string a = text.substr(0, cut), b = text.substr(cut);
    EXPECT_EQ(encode(*t, {{a, true}, {b, true}}), (Tokens{end}));
    EXPECT_EQ(encode(*t, {{a, true}, {b, false}}).size(), 7u);
    EXPECT_EQ(encode(*t, {{a, false}, {b, true}}).size(), 7u);
    EXPECT_EQ(encode(*t, {{a, true}, {"", false}, {b, true}}), (Tokens{end}));
  }
}

TEST(Tokenizer, SegmentsAreOneText) {
  SmallBpe v;
  Token ab = v.merge("a", "b");
  auto t = v.make();
  EXPECT_EQ(encode(*t, {{"a", true}, {"b", false}}), (Tokens{ab}));
  EXPECT_EQ(encode(*t, std::vector<TextSegment>{}), Tokens{});
  // A character may begin in one segment and end in the next.
  EXPECT_EQ(encode(*t, {{"\xC3", true}, {"\xA9", false}}), (Tokens{0xC3, 0xA9}));
}

TEST(Tokenizer, TheLongestSpecialTokenWins) {
  SmallBpe v;
  Token a = v.add("<a>", TokenType::control);
  Token aa = v.add("<a><a>", TokenType::user_defined);
  Token ab = v.add("<a><a>b", TokenType::control);
  auto t = v.make();
  EXPECT_EQ(encode(*t, "<a><a><a>", true), (Tokens{aa, a}));
  EXPECT_EQ(encode(*t, "<a><a>b<a>x", true), (Tokens{ab, a, 'x'}));
  EXPECT_EQ(encode(*t, {{"<a><a>", true}, {"b", false}}), (Tokens{aa, 'b'}));
}

TEST(Tokenizer, UserDefinedWhiteSpaceIsPlainText) {
  SmallBpe v;
  Token four = v.add("    ", TokenType::user_defined);
  Token two = v.add("  ", TokenType::user_defined);
  auto t = v.make();
  EXPECT_EQ(encode(*t, "a       b"), (Tokens{'a', four, two, ' ', 'b'}));
}

TEST(Tokenizer, InvalidUtf8IsAnErrorWithItsPlace) {
  auto t = SmallBpe().make();
  auto r = t->encode("abc\xFFxyz");
  ASSERT_FALSE(r);
  EXPECT_EQ(r.error().code, 400);
  EXPECT_NE(r.error().message.find("byte 3"), std::string::npos) << r.error().message;
  std::vector<TextSegment> cut = {{"ab", true}, {"\xE2\x82", false}};
  EXPECT_FALSE(t->encode(std::span(cut)));
}

TEST(Tokenizer, AddsBosAndEosAsTheVocabularyAsks) {
  SmallBpe v;
  v.spec.bos = v.add("<s>", TokenType::control);
  v.spec.eos = v.add("</s>", TokenType::control);
  v.spec.add_bos = v.spec.add_eos = true;
  auto t = v.make();
  const Token bos = t->bos(), eos = t->eos();
  EXPECT_EQ(*t->encode("a", {.add_special = true}), (Tokens{bos, 'a', eos}));
  EXPECT_EQ(*t->encode("", {.add_special = true}), (Tokens{bos, eos}));
  EXPECT_EQ(*t->encode("<s>a", {.add_special = true}, true), (Tokens{bos, 'a', eos}));
  EXPECT_EQ(*t->encode("a"), (Tokens{'a'}));
  EXPECT_TRUE(t->is_control(bos));
  EXPECT_FALSE(t->is_control('a'));
}

TEST(Tokenizer, KnowsWhatEndsAGeneration) {
  SmallBpe v;
  v.spec.eos = v.add("</s>", TokenType::control);
  Token im_end = v.add("<|im_end|>", TokenType::control);
  Token im_start = v.add("<|im_start|>", TokenType::control);
  Token spelled = v.add("<|eot_id|>", TokenType::normal);  // an ordinary token of that spelling
  auto t = v.make();
  EXPECT_TRUE(t->is_eog(v.spec.eos));
  EXPECT_TRUE(t->is_eog(im_end));
  EXPECT_FALSE(t->is_eog(im_start));
  EXPECT_FALSE(t->is_eog(spelled));
  EXPECT_FALSE(t->is_eog(kNoToken));
}

TEST(Tokenizer, SaysWhatIsWrongWithAVocabulary) {
  EXPECT_NE(make_error({}).find("no tokens"), std::string::npos);
  EXPECT_NE(make_error(SmallBpe("klingon").spec).find("'klingon'; known: default, gpt-2"),
            std::string::npos);
  for (const char* merge : {"a", "a ", " a", "a zz", "a b"}) {
    SmallBpe v;
    v.spec.merges.push_back(merge);
    EXPECT_NE(make_error(v.spec).find("merge 0"), std::string::npos) << merge;
  }
  SmallBpe v;
  v.spec.bos = 256;
  EXPECT_NE(make_error(v.spec).find("bos token 256"), std::string::npos);
  v.spec.bos = kNoToken;
  v.spec.types.pop_back();
  EXPECT_NE(make_error(v.spec).find("token types"), std::string::npos);
  // A merge may not build a special token: that would let text name it.
  SmallBpe special;
  special.add("ab", TokenType::control);
  special.spec.merges.push_back("a b");
  EXPECT_NE(make_error(special.spec).find("merge 0"), std::string::npos);
}

struct SmallSpm {
  VocabSpec spec;

  explicit SmallSpm(bool byte_tokens = true) {
    spec.kind = VocabSpec::Kind::spm;
    spec.unk = add("<unk>", 0, TokenType::unknown);
    if (!byte_tokens) return;
    for (int b = 0; b < 256; ++b) add(strf("<0x%02X>", b), 0, TokenType::byte);
  }
  Token add(std::string text, float score, TokenType type = TokenType::normal) {
    spec.tokens.push_back(std::move(text));
    spec.scores.push_back(score);
    spec.types.push_back(type);
    return static_cast<Token>(spec.tokens.size()) - 1;
  }
  std::unique_ptr<Tokenizer> make() const {
    auto t = Tokenizer::make(spec);
    EXPECT_TRUE(t) << t.error().message;
    return t ? std::move(*t) : nullptr;
  }
};

TEST(SpmTokenizer, MergesByScore) {
  SmallSpm v;
  Token a = v.add("a", -10), b = v.add("b", -11), c = v.add("c", -12), sp = v.add("▁", -13);
  Token ab = v.add("ab", -2), bc = v.add("bc", -1), spa = v.add("▁a", -3), abc = v.add("abc", -4);
  auto t = v.make();
  EXPECT_EQ(encode(*t, "abc"), (Tokens{abc}));
  EXPECT_EQ(encode(*t, "abbc"), (Tokens{ab, bc}));
  EXPECT_EQ(encode(*t, " abb  a"), (Tokens{sp, ab, b, sp, spa}));
  EXPECT_EQ(encode(*t, "ca"), (Tokens{c, a}));
  EXPECT_EQ(t->bytes(spa), " a");
}

TEST(SpmTokenizer, EqualScoresGoLeftFirst) {
  SmallSpm v;
  Token a = v.add("a", -10), aa = v.add("aa", -1);
  EXPECT_EQ(encode(*v.make(), "aaa"), (Tokens{aa, a}));
}

TEST(SpmTokenizer, SpacePrefix) {
  SmallSpm v;
  Token a = v.add("a", -10), sp = v.add("▁", -13), spa = v.add("▁a", -3);
  Token s = v.add("<s>", 0, TokenType::control);
  v.spec.add_space_prefix = true;
  auto t = v.make();
  EXPECT_EQ(encode(*t, "aa"), (Tokens{spa, a}));
  EXPECT_EQ(encode(*t, " a"), (Tokens{sp, spa}));
  EXPECT_EQ(encode(*t, ""), Tokens{});
  EXPECT_EQ(encode(*t, "<s>a", true), (Tokens{s, spa}));
  EXPECT_EQ(detokenize(*t, encode(*t, " a"), {.strip_leading_space = t->adds_space()}), " a");
}

TEST(SpmTokenizer, FallsBackToBytes) {
  SmallSpm v;
  v.add("a", -1);
  auto t = v.make();
  auto byte = [](uint8_t b) { return Token{1 + b}; };
  EXPECT_EQ(encode(*t, "\xC3\xA9"), (Tokens{byte(0xC3), byte(0xA9)}));
  EXPECT_EQ(t->bytes(byte(0xC3)), "\xC3");
  EXPECT_EQ(detokenize(*t, encode(*t, "a\xF0\x9F\xA6\x99 \n")), "a\xF0\x9F\xA6\x99 \n");
}

TEST(SpmTokenizer, WithoutByteTokensUnknownCharactersAreOneUnknown) {
  SmallSpm v(false);
  Token a = v.add("a", -1);
  auto t = v.make();
  EXPECT_EQ(encode(*t, "xyaz"), (Tokens{v.spec.unk, a, v.spec.unk}));
  v.spec.unk = kNoToken;
  EXPECT_NE(make_error(v.spec).find("unknown token"), std::string::npos);
}

TEST(SpmTokenizer, TokensMayReachOverWords) {
  SmallSpm v;
  Token a = v.add("a", -10), sp = v.add("▁", -13);
  Token a_sp = v.add("a▁", -2), both = v.add("a▁a", -1);
  auto t = v.make();
  EXPECT_EQ(encode(*t, "a a"), (Tokens{both}));
  EXPECT_EQ(encode(*t, "a  a"), (Tokens{a_sp, sp, a}));
}

TEST(SpmTokenizer, CharactersThatAreOnlyPartsOfTokens) {
  SmallSpm v;
  Token xy = v.add("xy", -1);  // neither x nor y is a token
  auto t = v.make();
  EXPECT_EQ(encode(*t, "xyx"), (Tokens{xy, 1 + 'x'}));
}

TEST(SpmTokenizer, MergingNeverMakesSpecialTokens) {
  SmallSpm v;
  for (const char* s : {"<", "s", ">", "<s"}) v.add(s, -1);
  Token s = v.add("<s>", 0, TokenType::control);
  auto t = v.make();
  for (Token id : encode(*t, "<s>")) EXPECT_NE(id, s);
  EXPECT_EQ(encode(*t, "<s>", true), (Tokens{s}));
}

// Long texts reuse the tokens of words they have had; the ids must not show it.
TEST(Tokenizer, RepeatedWordsGiveTheSameTokens) {
  SmallBpe bpe;
  bpe.merge("a", "b"), bpe.merge("Ġ", "ab"), bpe.merge("c", "c");
  SmallSpm spm;
  for (const char* s : {"a", "b", "▁", "▁a", "ab", "▁ab", "aa"}) spm.add(s, -float(s[0]));
  std::vector<std::unique_ptr<Tokenizer>> tokenizers;
  tokenizers.push_back(bpe.make());
  tokenizers.push_back(spm.make());
  std::vector<std::string> words;
  for (int i = 0; i < 400; ++i) {
    std::string word = " ";
    for (int k = i; k > 0; k /= 4) word += "abcx"[k % 4];
    words.push_back(word + (i % 3 == 0 ? "\xC3\xA9" : "z"));
  }
  for (const auto& t : tokenizers) {
    std::string text;
    Tokens expected;
    for (size_t i = 0; i < 3000; ++i) {
      const std::string& word = words[i * i % words.size()];
      text += word;
      for (Token id : encode(*t, word)) expected.push_back(id);
    }
    EXPECT_EQ(encode(*t, text), expected);
  }
}

// Each of these is one pre-token (or one run of white space): anything quadratic would not end.
TEST(Tokenizer, OneMebibyteOfOneCharacter) {
  SmallSpm spm;
  spm.add("a", -1), spm.add("aa", -2), spm.add("aaaa", -3), spm.add("▁", -4), spm.add("▁▁", -5);
  std::vector<std::unique_ptr<Tokenizer>> tokenizers;
  tokenizers.push_back(spm.make());
  for (const char* pre : {"gpt-2", "smollm", "llama-bpe", "qwen2"}) {
    SmallBpe v(pre);
    for (const char* s : {"a", "Ġ", "Ċ", "7", "!", "'", "<"}) v.merge(s, s);
    v.add("<|end|>", TokenType::control);
    tokenizers.push_back(v.make());
  }
  for (const char* unit : {"a", " ", "\n", "7", "<", "\xE6\x88\x91", "\xCC\xA3\xCC\x81"}) {
    std::string text;
    while (text.size() < (1u << 20)) text += unit;
    for (const auto& t : tokenizers) {
      Tokens tokens = encode(*t, text, true);
      size_t bytes = 0;
      for (Token id : tokens) bytes += t->bytes(id).size();
      EXPECT_EQ(bytes, text.size()) << unit;
    }
  }
}

}  // namespace
}  // namespace sluice
