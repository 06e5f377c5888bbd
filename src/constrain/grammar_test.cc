#include <gtest/gtest.h>

#include "constrain/test_vocab.h"

namespace sluice::constrain {

TEST(Gbnf, ReadsGrammars) {
  const char* arithmetic = R"G(# sums
root  ::= expr
expr  ::= term ([-+] term)*
term  ::= num | "(" expr ")"
num   ::= [0-9]+ ws
ws    ::= [ \t\n]*
)G";
  EXPECT_TRUE(accepts(ConstraintKind::gbnf, arithmetic, "(1 +2)-33"));
  EXPECT_FALSE(accepts(ConstraintKind::gbnf, arithmetic, "(1+2"));
  EXPECT_TRUE(accepts(ConstraintKind::gbnf, "root ::= \"a\\\"\\x41\"{2,3} | [^x]?", "a\"Aa\"A"));
  EXPECT_FALSE(accepts(ConstraintKind::gbnf, "root ::= \"a\\\"\\x41\"{2,3} | [^x]?", "x"));
  EXPECT_TRUE(accepts(ConstraintKind::gbnf, "root ::= root \"b\" | \"a\"", "abb"));
}

TEST(Gbnf, RefusesByName) {
  struct {
    const char *grammar, *why;
  } cases[] = {
      {"root ::= missing", "missing"},
      {"other ::= \"a\"", "root"},
      {"root ::= \"a", "quote"},
      {"root ::= (\"a\"", "( without )"},
      {"root ::= a\na ::= b \"x\"\nb ::= a | \"y\"", "begins with itself"},
      {"root ::= \"(\" root \")\"", "matches no text"},
      {"root = \"a\"", "line 1"},
      {"root ::= \"a\"\nroot ::= \"b\"", "twice"},
  };
  for (const auto& c : cases) {
    auto r = compile_test(ConstraintKind::gbnf, c.grammar);
    ASSERT_FALSE(r) << c.grammar;
    EXPECT_NE(r.error().message.find(c.why), std::string::npos) << r.error().message;
  }
}

TEST(Lark, ReadsGrammars) {
  const char* json = R"G(
?start: value
?value: object | array | ESCAPED_STRING | SIGNED_NUMBER -> number
      | "true" | "false" | "null"
array  : "[" [value ("," value)*] "]"
object : "{" [pair ("," pair)*] "}"
pair   : ESCAPED_STRING ":" value
%import common.ESCAPED_STRING
%import common.SIGNED_NUMBER
%import common.WS
%ignore WS
)G";
  auto c = compile_test(ConstraintKind::lark, json);
  ASSERT_TRUE(c) << c.error().message;
  EXPECT_TRUE(accepts(*c, "{ \"a\" : [1, -2.5,true ] } "));
  EXPECT_FALSE(accepts(*c, "{\"a\" [1]}"));
  const char* list = "start: item ~ 2..3\nitem: \"a\"..\"f\" /[0-9]{2}/ \";\"?  // note\n";
  EXPECT_TRUE(accepts(ConstraintKind::lark, list, "a12;f34"));
  EXPECT_FALSE(accepts(ConstraintKind::lark, list, "a12"));
  EXPECT_FALSE(accepts(ConstraintKind::lark, list, "g12a12"));
  for (auto [grammar, why] :
       {std::pair{"start: a{b}", "templates"}, std::pair{"start: \"a\"i", "flags"},
        std::pair{"%declare X\nstart: X", "%declare"},
        std::pair{"start: X\nX.2: \"a\"", "priorities"}, std::pair{"start: nope", "nope"}}) {
    auto r = compile_test(ConstraintKind::lark, grammar);
    ASSERT_FALSE(r) << grammar;
    EXPECT_NE(r.error().message.find(why), std::string::npos) << r.error().message;
  }
}

TEST(StructuralTags, FreeTextWithConstrainedParts) {
  const char* tags = R"({"structures":[
    {"begin":"<tool>","schema":{"type":"object","properties":{"a":{"type":"integer"}},
     "required":["a"],"additionalProperties":false},"end":"</tool>"},
    {"begin":"<tool2>","schema":{"type":"null"},"end":"</tool2>"}],"triggers":["<tool"]})";
  auto c = compile_test(ConstraintKind::structural_tags, tags);
  ASSERT_TRUE(c) << c.error().message;
  EXPECT_TRUE(accepts(*c, ""));
  EXPECT_TRUE(accepts(*c, "no calls, 1 < 2 <to"));
  EXPECT_TRUE(accepts(*c, "I call <tool>{\"a\": 1}</tool> and <tool2>null</tool2>."));
  EXPECT_FALSE(accepts(*c, "I call <tool>{\"a\": true}</tool>"));
  EXPECT_FALSE(accepts(*c, "I call <tool>{\"a\": 1}"));
  EXPECT_FALSE(accepts(*c, "I call <tool3>"));
  auto r = compile_test(ConstraintKind::structural_tags,
                        R"({"structures":[{"begin":"x","schema":{},"end":""}],"triggers":["y"]})");
  ASSERT_FALSE(r);
  EXPECT_NE(r.error().message.find("trigger"), std::string::npos);
}

TEST(StructuralTags, ATreeOfTextsAndSchemas) {
  auto tags = [](const std::string& node) { return R"({"format": )" + node + "}"; };
  auto c = compile_test(ConstraintKind::structural_tags, tags(R"({"type": "sequence", "elements": [
      {"type": "any_text", "excludes": ["</t>"]}, {"type": "const_string", "value": "</t>"},
      {"type": "repeat", "min": 1, "max": 2, "separator": "; ", "content": {"type": "or", "elements": [
          {"type": "json_schema", "json_schema": {"type": "integer"}},
          {"type": "const_string", "value": "none"}]}}]})"));
  ASSERT_TRUE(c) << c.error().message;
  EXPECT_TRUE(accepts(*c, "</t>1"));
  EXPECT_TRUE(accepts(*c, "so </ </t>none; 12"));
  EXPECT_FALSE(accepts(*c, "</t>"));
  EXPECT_FALSE(accepts(*c, "</t>1; 2; 3"));
  EXPECT_FALSE(accepts(*c, "so</t>1.5"));
  EXPECT_FALSE(accepts(*c, "so 1"));
  for (const char* bad :
       {"3", "{}", R"({"type": "tag"})", R"({"type": "sequence", "elements": []})",
        R"({"type": "const_string"})", R"({"type": "json_schema"})", R"({"type": "repeat"})",
        R"({"type": "any_text", "excludes": [""]})",
        R"({"type": "repeat", "max": 0, "content": {"type": "any_text"}})"}) {
    auto r = compile_test(ConstraintKind::structural_tags, tags(bad));
    ASSERT_FALSE(r) << bad;
    EXPECT_TRUE(r.error().message.starts_with("structural tags: ")) << r.error().message;
  }
}

TEST(Choice, OneOfTheTexts) {
  EXPECT_TRUE(accepts(ConstraintKind::choice, R"(["yes","no"])", "no"));
  EXPECT_FALSE(accepts(ConstraintKind::choice, R"(["yes","no"])", "n"));
  EXPECT_FALSE(compile_test(ConstraintKind::choice, "[]"));
  EXPECT_FALSE(compile_test(ConstraintKind::choice, "[1]"));
}

TEST(VocabTrie, ControlAndEndTokensHaveNoBytes) {
  auto trie = test_trie();
  EXPECT_TRUE(trie->is_end(kTestEnd));
  EXPECT_TRUE(trie->bytes(kTestControl).empty());
  // Two tokens are spelled "ab": both are found.
  auto c = compile_test(ConstraintKind::choice, R"(["ab","abx"])");
  ASSERT_TRUE(c);
  Matcher m(*c);
  std::vector<uint32_t> mask(trie->mask_words());
  ASSERT_TRUE(m.fill_mask(mask));
  int found = 0;
  for (Token t = 0; t < static_cast<Token>(trie->vocab_size()); ++t) {
    found += trie->bytes(t) == "ab" && (mask[static_cast<size_t>(t) / 32] >> (t % 32) & 1);
  }
  EXPECT_GE(found, 1);
}

}  // namespace sluice::constrain
