// Small tokenizer.json texts, each for one part of the definition.
#include <chrono>

#include <gtest/gtest.h>

#include "base/str.h"
#include "text/byte_level.h"
#include "text/detokenizer.h"
#include "text/tokenizer.h"

namespace sluice {
namespace {

using Tokens = std::vector<Token>;

std::string put_in(std::string text, std::string_view mark, std::string_view by) {
  size_t at = text.find(mark);
  return at == text.npos ? text : text.replace(at, mark.size(), by);
}

Result<std::unique_ptr<Tokenizer>> made(std::string_view json) {
  auto spec = spec_from_json(json);
  if (!spec) return spec.error();
  return Tokenizer::make(std::move(*spec));
}

std::string error_of(std::string_view json) {
  auto t = made(json);
  return t ? "no error" : t.error().message;
}

std::string joined(const Tokenizer& t, std::string_view text, bool trusted = true) {
  auto ids = t.encode(text, {}, trusted);
  if (!ids) return ids.error().message;
  std::string out;
  for (Token id : *ids) out.append(out.empty() ? "" : " ").append(t.spelling(id));
  return out;
}

// A character BPE over lower-case letters, some others, and a few merges; PARTS go in between.
std::string letters(std::string_view parts, std::string_view options = "") {
  std::string vocab = R"("<unk>": 0)";
  int id = 1;
  for (char c = 'a'; c <= 'z'; ++c) vocab += strf(", \"%c\": %d", c, id++);
  for (const char* s : {"ab", "cd", "abcd", " ", "▁", "▁a", "A", "1", "2", "!", "-", "é"}) {
    vocab += strf(", \"%s\": %d", s, id++);
  }
  return put_in(
      put_in(put_in(R"({"model": {"type": "BPE", "unk_token": "<unk>", OPTIONS "vocab": {VOCAB},
      "merges": ["a b", ["c", "d"], "ab cd", "▁ a"]} PARTS})",
                    "VOCAB", vocab),
             "OPTIONS", options),
      "PARTS", parts.empty() ? std::string() : ", " + std::string(parts));
}

std::unique_ptr<Tokenizer> letters_with(std::string_view parts, std::string_view options = "") {
  auto t = made(letters(parts, options));
  EXPECT_TRUE(t) << t.error().message;
  return t ? std::move(*t) : nullptr;
}

std::string normalized(std::string_view normalizer, std::string_view text) {
  auto t = letters_with(strf(R"("normalizer": %s)", std::string(normalizer).c_str()));
  return t ? joined(*t, text) : "";
}

std::string split(std::string_view pre, std::string_view text) {
  auto t = letters_with(strf(R"("pre_tokenizer": %s)", std::string(pre).c_str()));
  return t ? joined(*t, text) : "";
}

TEST(TokenizerJson, BpeMergesAndUnknowns) {
  EXPECT_EQ(joined(*letters_with(""), "abcdx"), "abcd x");
  EXPECT_EQ(joined(*letters_with(""), "a??b"), "a <unk> <unk> b");
  EXPECT_EQ(joined(*letters_with("", R"("fuse_unk": true,)"), "a??b"), "a <unk> b");
  EXPECT_EQ(joined(*letters_with("", R"("ignore_merges": true,)"), "abcd"), "abcd");
}

TEST(TokenizerJson, Normalizers) {
  EXPECT_EQ(normalized(R"({"type": "Lowercase"})", "Abcd"), "abcd");
  EXPECT_EQ(normalized(R"({"type": "NFC"})", "e\xCC\x81"), "é");
  EXPECT_EQ(normalized(R"({"type": "NFKD"})", "\xEF\xBD\x81\xC2\xB2"), "a 2");
  EXPECT_EQ(normalized(R"({"type": "Strip", "strip_left": true, "strip_right": false})", "  a "),
            "a  ");
  EXPECT_EQ(normalized(R"({"type": "Sequence", "normalizers": [{"type": "NFD"},
                          {"type": "StripAccents"}]})",
                       "\xC3\xA9"),
            "e");
  EXPECT_EQ(normalized(R"({"type": "Prepend", "prepend": "x"})", "a"), "x a");
  EXPECT_EQ(normalized(R"({"type": "Prepend", "prepend": "x"})", ""), "");
  EXPECT_EQ(
      normalized(R"({"type": "Replace", "pattern": {"String": "cd"}, "content": "x"})", "cdcd"),
      "x x");
  EXPECT_EQ(
      normalized(R"({"type": "Replace", "pattern": {"Regex": "[0-9]+"}, "content": "x"})", "a12b"),
      "a x b");
  EXPECT_EQ(normalized(R"({"type": "Nmt"})", "a\x01\tb"), "a   b");
  EXPECT_EQ(normalized(R"({"type": "BertNormalizer"})", "\xC3\x89\x0B"), "e");
}

TEST(TokenizerJson, NoBoundWhereTextMayGo) {
  auto bytes = [](std::string_view parts) {
    std::string vocab;
    for (int b = 0; b < 256; ++b) vocab += strf("%s\"<0x%02X>\": %d", b > 0 ? ", " : "", b, b);
    std::string json = put_in(R"({"model": {"type": "BPE", "byte_fallback": true, "vocab": {VOCAB},
      "merges": []} PARTS})",
                              "VOCAB", vocab);
    auto t = made(put_in(json, "PARTS", parts.empty() ? "" : ", " + std::string(parts)));
    EXPECT_TRUE(t) << t.error().message;
    return (*t)->most_bytes();
  };
  EXPECT_EQ(bytes(""), 6u);  // as it is spelled
  EXPECT_EQ(bytes(R"("normalizer": {"type": "NFKC"})"), 72u);
  EXPECT_EQ(
      bytes(R"("normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "_"})"),
      6u);
  EXPECT_EQ(bytes(R"("pre_tokenizer": {"type": "Metaspace", "replacement": "▁"})"), 6u);
  for (const char* parts :
       {R"("normalizer": {"type": "Strip", "strip_left": true, "strip_right": true})",
        R"("normalizer": {"type": "Replace", "pattern": {"String": "x"}, "content": ""})",
        R"("pre_tokenizer": {"type": "Whitespace"})",
        R"("pre_tokenizer": {"type": "WhitespaceSplit"})",
        R"("pre_tokenizer": {"type": "Punctuation", "behavior": "Removed"})",
        R"("added_tokens": [{"id": 256, "content": "<x>", "special": true, "lstrip": true}])"})
    EXPECT_EQ(bytes(parts), 0u) << parts;
  EXPECT_EQ(letters_with("")->most_bytes(), 0u);  // one unknown token for any number of characters
}

TEST(TokenizerJson, PreTokenizers) {
  EXPECT_EQ(split(R"({"type": "WhitespaceSplit"})", "ab  cd"), "ab cd");
  EXPECT_EQ(split(R"({"type": "Whitespace"})", "ab!!cd"), "ab ! ! cd");
  EXPECT_EQ(split(R"({"type": "CharDelimiterSplit", "delimiter": "-"})", "ab-cd"), "ab cd");
  EXPECT_EQ(split(R"({"type": "FixedLength", "length": 1})", "abcd"), "a b c d");
  EXPECT_EQ(split(R"({"type": "FixedLength", "length": 2})", "abcd"), "ab cd");
  EXPECT_EQ(split(R"({"type": "BertPreTokenizer"})", "a b!c d"), "a b ! c d");
  const char* at_b = R"({"type": "Split", "pattern": {"Regex": "b"}, "behavior": "HOW",
                         "invert": false})";
  EXPECT_EQ(split(put_in(at_b, "HOW", "Removed"), "abcd"), "a cd");
  EXPECT_EQ(split(put_in(at_b, "HOW", "Isolated"), "abcd"), "a b cd");
  EXPECT_EQ(split(put_in(at_b, "HOW", "MergedWithPrevious"), "abcd"), "ab cd");
  EXPECT_EQ(split(put_in(at_b, "HOW", "MergedWithNext"), "abcd"), "a b cd");
  EXPECT_EQ(split(put_in(at_b, "HOW", "Contiguous"), "abbcd"), "a b b cd");
  EXPECT_EQ(split(R"({"type": "Metaspace", "prepend_scheme": "always"})", "a ac"), "▁a ▁a c");
  EXPECT_EQ(split(R"({"type": "Metaspace", "prepend_scheme": "never"})", "a ac"), "a ▁a c");
}

TEST(TokenizerJson, ByteLevelStartsFromBytes) {
  std::string vocab;
  for (int b = 0; b < 256; ++b) {
    std::string c = byte_level_char(static_cast<uint8_t>(b));
    if (c == "\"" || c == "\\") c = "\\" + c;
    vocab += strf("%s\"%s\": %d", b > 0 ? ", " : "", c.c_str(), b);
  }
  std::string json = put_in(R"({"model": {"type": "BPE", "vocab": {VOCAB, "Ġa": 256},
      "merges": [["Ġ", "a"]]}, "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": true},
      "decoder": {"type": "ByteLevel"}})",
                            "VOCAB", vocab);
  auto t = made(json);
  ASSERT_TRUE(t) << t.error().message;
  EXPECT_EQ(*(*t)->encode("a"), (Tokens{256}));
  EXPECT_EQ(*(*t)->encode(" a"), (Tokens{256}));
  EXPECT_EQ((*t)->bytes(256), " a");
  EXPECT_EQ(detokenize(**t, *(*t)->encode(" \xF0\x9F\xA6\x99 a")), " \xF0\x9F\xA6\x99 a");
}

constexpr const char* kAdded = R"("added_tokens": [
  {"id": 100, "content": "<end>", "special": true, "normalized": false},
  {"id": 101, "content": "<m>", "special": true, "normalized": false, "lstrip": true,
   "rstrip": true},
  {"id": 102, "content": "cd", "special": false, "normalized": false, "single_word": true},
  {"id": 103, "content": "XY", "special": true, "normalized": true},
  {"id": 104, "content": "  ", "special": false, "normalized": false}],
  "normalizer": {"type": "Lowercase"})";

TEST(TokenizerJson, AddedTokens) {
  auto t = letters_with(kAdded);
  EXPECT_EQ(joined(*t, "ab<end>cd"), "ab <end> cd");
  EXPECT_EQ(joined(*t, "a \n<m> b"), "a <m> b");
  EXPECT_EQ(joined(*t, "xyXYxY"), "XY XY XY");  // found after lowering
  EXPECT_EQ(joined(*t, "a  b"), "a    b");
  // A token of the model keeps its id.
  EXPECT_EQ(*t->find("cd"), 28);
  EXPECT_TRUE(t->is_control(100));
  EXPECT_FALSE(t->is_control(104));
}

TEST(TokenizerJson, AddedTokensNeedTrust) {
  auto t = letters_with(kAdded);
  EXPECT_EQ(joined(*t, "<end>", false).find("<end>"), std::string::npos);
  EXPECT_EQ(joined(*t, "XY", false), "x y");
  EXPECT_EQ(joined(*t, "a  b", false), "a    b");  // white space is text
  const TextSegment mixed[] = {{"XY", true}, {"xy", false}, {"XY", true}};
  EXPECT_EQ(*t->encode(mixed), (Tokens{103, *t->find("x"), *t->find("y"), 103}));
  const TextSegment cut[] = {{"X", true}, {"Y", false}};
  EXPECT_EQ(*t->encode(cut), (Tokens{*t->find("x"), *t->find("y")}));
}

TEST(TokenizerJson, PostProcessorAndDecoder) {
  auto t = letters_with(R"("added_tokens": [
      {"id": 50, "content": "<s>", "special": true, "normalized": false},
      {"id": 51, "content": "</s>", "special": true, "normalized": false}],
    "normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"},
      {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
    "post_processor": {"type": "Sequence", "processors": [{"type": "ByteLevel"},
      {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}},
        {"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "</s>", "type_id": 0}}],
       "special_tokens": {"<s>": {"id": "<s>", "ids": [50], "tokens": ["<s>"]},
                          "</s>": {"id": "</s>", "ids": [51], "tokens": ["</s>"]}}}]},
    "decoder": {"type": "Sequence", "decoders": [
      {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"},
      {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]})");
  EXPECT_TRUE(t->adds_bos());
  Tokens ids = *t->encode("ab", {.add_special = true});
  EXPECT_EQ(ids.front(), 50);
  EXPECT_EQ(ids.back(), 51);
  // The template has written it already.
  EXPECT_EQ(*t->encode("<s>ab", {.add_special = true}, true), ids);
  EXPECT_TRUE(t->adds_space());
  EXPECT_EQ(detokenize(*t, *t->encode("a b"), {.strip_leading_space = true}), "a b");
}

TEST(TokenizerJson, WordsEndInASuffix) {
  auto t = made(R"({"model": {"type": "BPE", "end_of_word_suffix": "</w>",
      "vocab": {"a": 0, "b": 1, "b</w>": 2, "ab</w>": 3, "a</w>": 4}, "merges": ["a b</w>"]},
      "pre_tokenizer": {"type": "Whitespace"}, "decoder": {"type": "BPEDecoder"}})");
  ASSERT_TRUE(t) << t.error().message;
  EXPECT_EQ(joined(**t, "ab a"), "ab</w> a</w>");
  EXPECT_EQ(detokenize(**t, *(*t)->encode("ab a")), "ab a");
}

constexpr const char* kUnigram = R"({"model": {"type": "Unigram", "unk_id": 0, OPTIONS "vocab": [
  ["<unk>", 0], ["a", -3], ["b", -3], ["ab", -4], ["abab", -9], ["▁", -2], ["<0xC3>", -5],
  ["<0xA9>", -5]]}})";

TEST(TokenizerJson, UnigramTakesTheBestPath) {
  auto t = made(put_in(kUnigram, "OPTIONS", ""));
  ASSERT_TRUE(t) << t.error().message;
  EXPECT_EQ(joined(**t, "ab"), "ab");
  EXPECT_EQ(joined(**t, "abab"), "ab ab");  // -8 is better than -9
  EXPECT_EQ(joined(**t, "axxb"), "a <unk> b");
  auto bytes = made(put_in(kUnigram, "OPTIONS", R"("byte_fallback": true,)"));
  EXPECT_EQ(joined(**bytes, "a\xC3\xA9"), "a <0xC3> <0xA9>");
}

// The library reads a number's digits as an integer and scales it: two roundings, the last bit of a
// score may be off, and between equal paths that bit decides.
TEST(TokenizerJson, UnigramScoresAreRoundedAsTheLibraryRoundsThem) {
  const struct {
    const char* b;
    const char* a;
    const char* aa;
    const char* pieces;
  } cases[] = {
      {"-9.713893881275673", "-10.632687675887855", "-10.109865499644238", "b a aa"},
      {"-10.811760115788584", "-10.877160912324161", "-9.19658657771944", "b aa a"},
  };
  for (const auto& c : cases) {
    auto t = made(strf(R"({"model": {"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0],
                       ["b", %s], ["a", %s], ["aa", %s]]}})",
                       c.b, c.a, c.aa));
    ASSERT_TRUE(t) << t.error().message;
    EXPECT_EQ(joined(**t, "baaa"), c.pieces);
  }
}

TEST(TokenizerJson, SaysWhatIsWrong) {
  EXPECT_NE(error_of("").find("invalid JSON"), std::string::npos);
  EXPECT_NE(error_of(R"({"model": {"type": "WordPiece"}})").find("'WordPiece'; known: BPE"),
            std::string::npos);
  auto bpe = [](std::string_view vocab, std::string_view merges) {
    return error_of(strf(R"({"model": {"type": "BPE", "vocab": {%s}, "merges": [%s]}})",
                         std::string(vocab).c_str(), std::string(merges).c_str()));
  };
  EXPECT_NE(bpe(R"("a": 0)", R"("a b")").find("merge 0"), std::string::npos);
  EXPECT_NE(bpe(R"("a": 0)", R"("a")").find("merge 0"), std::string::npos);
  EXPECT_NE(bpe(R"("a": 0)", "7").find("merge 0"), std::string::npos);
  EXPECT_NE(bpe(R"("a": 0, "b": 0)", "").find("two tokens"), std::string::npos);
  EXPECT_NE(bpe(R"("a": 1099511627776)", "").find("not an integer"), std::string::npos);
  EXPECT_NE(bpe(R"("a": -1)", "").find("not an integer"), std::string::npos);
  EXPECT_NE(bpe(R"("a": 9000000)", "").find("an id of"), std::string::npos);
  EXPECT_NE(error_of(R"({"model": {"type": "BPE", "dropout": 0.1, "vocab": {}, "merges": []}})")
                .find("dropout"),
            std::string::npos);
  EXPECT_NE(error_of(R"({"model": {"type": "Unigram", "vocab": [["a", -1]], "unk_id": 3}})")
                .find("unk_id"),
            std::string::npos);
  std::string deep = R"({"model": {"type": "Unigram", "vocab": [["a", -1]]}, "normalizer": )";
  for (int i = 0; i < 80; ++i) deep += R"({"type": "Sequence", "normalizers": [)";
  EXPECT_NE(error_of(deep).find("invalid JSON"), std::string::npos);
  EXPECT_NE(error_of(letters(R"("normalizer": {"type": "Precompiled",
                              "precompiled_charsmap": "AAAA"})"))
                .find("character map"),
            std::string::npos);
}

// A pattern that backtracks without end gives an error, soon.
TEST(TokenizerJson, RegexBombs) {
  const std::string many(2000, 'a');
  for (const char* bomb : {"(a+)+$x", "(a|aa)+x", "(.*)*x", "(?:a?){40}a{40}x"}) {
    auto t = made(letters(strf(
        R"("pre_tokenizer": {"type": "Split", "pattern": {"Regex": "%s"}, "behavior": "Isolated"})",
        bomb)));
    if (!t) continue;  // a build without PCRE2
    auto start = std::chrono::steady_clock::now();
    (void)(*t)->encode(many + "b");
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(30)) << bomb;
  }
}

TEST(TokenizerJson, NormalizersMayNotFillTheMemory) {
  std::string content(100'000, 'x');
  auto t = letters_with(strf(R"("normalizer": {"type": "Replace", "pattern": {"String": "a"},
                               "content": "%s"})",
                             content.c_str()));
  auto r = t->encode(std::string(1 << 20, 'a'));
  ASSERT_FALSE(r);
  EXPECT_NE(r.error().message.find("too long"), std::string::npos);
}

}  // namespace
}  // namespace sluice
