#include "constrain/matcher.h"

#include <gtest/gtest.h>

#include <random>

#include "constrain/test_vocab.h"

namespace sluice::constrain {

namespace {

bool bit(const std::vector<uint32_t>& mask, Token t) {
  return mask[static_cast<size_t>(t) / 32] >> (t % 32) & 1;
}

struct WalkCase {
  ConstraintKind kind;
  const char* source;
  JsonSpace space = JsonSpace::flexible;
};

const WalkCase kWalkCases[] = {
    {ConstraintKind::json_schema, R"({"type":"object","properties":{"name":{"type":"string"},
       "n":{"type":"integer","minimum":3,"maximum":140}},"required":["name"]})"},
    {ConstraintKind::json_schema, R"({"type":"object","additionalProperties":{"type":"number"}})"},
    {ConstraintKind::json_schema, R"({"patternProperties":{"^[ab]$":{"const":1}},
       "additionalProperties":false,"type":"object"})"},
    {ConstraintKind::json_schema,
     R"({"type":"array","items":{"enum":["ab","abc",null,12]},"maxItems":3})"},
    {ConstraintKind::json_schema, R"({"type":"string","maxLength":4})"},
    {ConstraintKind::json_schema, R"({"anyOf":[{"type":"object","properties":{"a":{"const":1}}},
       {"type":"array","items":{"$ref":"#"}}]})",
     JsonSpace::none},
    {ConstraintKind::json_object, ""},
    {ConstraintKind::regex, "(ab|abc)*d{2,3}\xC3\xA9?"},
    {ConstraintKind::choice, R"(["ab","abcd","12"])"},
    {ConstraintKind::gbnf, "root ::= \"[\" (root (\",\" root)*)? \"]\" | [0-9]+"},
    {ConstraintKind::lark,
     "start: expr\nexpr: expr \"+\" INT | INT\n%import common.INT\n%ignore \" \""},
    {ConstraintKind::structural_tags,
     R"({"structures":[{"begin":"<tool>","schema":{"type":"object"},
       "end":"</tool>"}],"triggers":["<tool"]})"},
};

}  // namespace

// Each mask bit says exactly whether the token would be accepted; where a token is forced, the mask
// has it alone.
TEST(Matcher, MasksSayWhatIsAccepted) {
  for (const WalkCase& c : kWalkCases) {
    auto constraint = compile_test(c.kind, c.source, c.space);
    ASSERT_TRUE(constraint) << c.source << ": " << constraint.error().message;
    const VocabTrie& trie = (*constraint)->trie();
    for (uint64_t seed = 1; seed <= 12; ++seed) {
      std::mt19937_64 random(seed);
      Matcher matcher(*constraint);
      std::vector<uint32_t> mask(trie.mask_words());
      std::string text;
      for (int step = 0; step < 40 && !matcher.is_done(); ++step) {
        ASSERT_TRUE(matcher.fill_mask(mask)) << matcher.failure();
        Matcher probe = matcher;
        Forced forced = probe.forced();
        std::vector<Token> allowed;
        for (Token t = 0; t < static_cast<Token>(trie.vocab_size()); ++t) {
          bool would = probe.accept(t);
          if (would) probe.rollback(1);
          if (forced.tokens.empty()) {
            ASSERT_EQ(bit(mask, t), would) << c.source << " after " << text << ": token " << t;
          } else {
            ASSERT_EQ(bit(mask, t), t == forced.tokens[0]) << c.source << " after " << text;
          }
          if (bit(mask, t) && t != kTestEnd) allowed.push_back(t);
        }
        if (!forced.tokens.empty()) {
          std::string spelled;
          for (Token t : forced.tokens) spelled += trie.bytes(t);
          EXPECT_TRUE(forced.bytes.starts_with(spelled)) << forced.bytes;
        }
        EXPECT_EQ(bit(mask, kTestEnd), matcher.can_end());
        EXPECT_FALSE(bit(mask, kTestControl));
        if (allowed.empty()) {
          ASSERT_TRUE(matcher.can_end()) << c.source << ": stuck after " << text;
          break;
        }
        Token t = allowed[random() % allowed.size()];
        ASSERT_TRUE(matcher.accept(t));
        text += trie.bytes(t);
      }
    }
  }
}

TEST(Matcher, RollbackAndForkAreExact) {
  auto constraint = compile_test(ConstraintKind::json_object, "");
  ASSERT_TRUE(constraint);
  Matcher a(*constraint);
  ASSERT_TRUE(a.accept_bytes("{\"k\": [1, 2"));
  Matcher b = a;
  ASSERT_TRUE(a.accept_bytes("], \"l"));
  ASSERT_TRUE(b.accept_bytes("]}"));
  EXPECT_TRUE(b.is_done());
  EXPECT_FALSE(a.can_end());
  a.rollback(1);
  EXPECT_TRUE(a.accept_bytes("]}"));
  EXPECT_TRUE(a.accept(kTestEnd));
  EXPECT_FALSE(a.accept('a'));
  a.rollback(1);
  EXPECT_TRUE(a.can_end());
  a.rollback(2);
  EXPECT_EQ(a.num_accepted(), 0u);
  EXPECT_FALSE(a.accept_bytes("x"));
  EXPECT_TRUE(a.accept_bytes("{}"));
}

TEST(Matcher, KeysComeOnceInAnyOrder) {
  auto c = compile_test(ConstraintKind::json_schema,
                        R"({"type":"object","properties":{"a":{},"b":{}},"required":["a"]})");
  ASSERT_TRUE(c);
  EXPECT_TRUE(accepts(*c, R"({"b": 1, "x": 2, "a": 3})"));
  EXPECT_FALSE(accepts(*c, R"({"a": 1, "b": 1, "a": 3})"));
  EXPECT_FALSE(accepts(*c, R"({"a": 1, "x": 1, "x": 3})"));
  EXPECT_FALSE(accepts(*c, R"({"a": 1, "x": 1, "\u0078": 3})"));  // the same key
  EXPECT_TRUE(accepts(*c, R"({"a": 1, "x": 1, "xy": 3, "": 0})"));
  EXPECT_FALSE(accepts(*c, R"({"b": 1})"));
}

TEST(Matcher, ForcedTokensAreTheLongest) {
  auto c = compile_test(ConstraintKind::json_schema,
                        R"({"type":"object","properties":{"name":{"enum":[true,false]}},
                            "required":["name"],"additionalProperties":false})",
                        JsonSpace::none);
  ASSERT_TRUE(c);
  Matcher m(*c);
  Forced forced = m.forced();
  EXPECT_EQ(forced.bytes, "{\"name\":");
  std::string spelled;
  for (Token t : forced.tokens) spelled += (*c)->trie().bytes(t);
  EXPECT_TRUE(forced.bytes.starts_with(spelled));
  EXPECT_FALSE(forced.tokens.empty());
  EXPECT_EQ((*c)->trie().bytes(forced.tokens[0]), "{\"");
}

TEST(Matcher, LongTextsStayWithinMemory) {
  auto c =
      compile_test(ConstraintKind::json_schema, R"({"type":"array","items":{"type":"object"}})");
  ASSERT_TRUE(c);
  Matcher m(*c);
  std::vector<uint32_t> mask((*c)->trie().mask_words());
  ASSERT_TRUE(m.accept_bytes("["));
  for (int i = 0; i < 3000; ++i) {
    ASSERT_TRUE(
        m.accept_bytes("{\"k" + std::to_string(i) + "\": [\"" + std::to_string(i) + "\"]}, "));
    if (i % 10 == 0) {
      ASSERT_TRUE(m.fill_mask(mask));
    }
  }
  EXPECT_LT(m.memory_bytes(), size_t{20} << 20);
  m.rollback(1);
  EXPECT_TRUE(m.accept_bytes("{}]"));
  EXPECT_TRUE(m.is_done());
}

TEST(Matcher, ExceededLimitsAreSaid) {
  ConstraintLimits limits;
  limits.max_threads = 20;
  auto c = compile_test(ConstraintKind::gbnf, "root ::= a\na ::= \"(\" a a | \"(\" a a a | \"(\"",
                        JsonSpace::flexible, limits);
  ASSERT_TRUE(c) << c.error().message;
  Matcher m(*c);
  bool ok = true;
  for (int i = 0; ok && i < 50; ++i) ok = m.accept_bytes("(");
  EXPECT_FALSE(ok);
  EXPECT_NE(m.failure().find("parses at once"), std::string::npos) << m.failure();
  std::vector<uint32_t> mask((*c)->trie().mask_words());
  EXPECT_FALSE(m.fill_mask(mask));
}

}  // namespace sluice::constrain
