#include <gtest/gtest.h>

#include "base/str.h"
#include "constrain/test_vocab.h"

namespace sluice::constrain {

namespace {

struct SchemaCase {
  const char* schema;
  std::vector<const char*> valid, invalid;
};

const SchemaCase kSchemaCases[] = {
    {R"({"type":"string","minLength":2,"maxLength":3})",
     {R"("ab")", R"("\u00e9\n")", "\"\xF0\x9F\x98\x80z\"", R"("\ud83d\ude00z")"},
     {R"("a")", R"("abcd")", R"("\ud83d")", R"("\ud83d\ude00")", "\"a\nb\""}},
    {R"({"type":"string","pattern":"^a[/\"]b$"})",
     {R"("a/b")", R"("a\/b")", R"("a\"b")", R"("\u0061\u002fb")"},
     {R"("ab")", R"("a\\b")"}},
    {R"({"type":"integer","exclusiveMinimum":3,"maximum":20,"multipleOf":4})",
     {"4", "20"},
     {"3", "0", "24", "-4", "6", "04"}},
    {R"({"type":["integer","null"]})", {"null", "-12"}, {"true", "1.5", "01", "+1"}},
    {R"({"enum":["a",1,null,[1,{"b":true}]]})",
     {R"("a")", "1", "null", R"([1, {"b": true}])"},
     {R"("b")", "2", R"([1, {"b": false}])", R"([1])"}},
    {R"({"type":"array","prefixItems":[{"type":"string"}],"items":{"type":"integer"},"minItems":2})",
     {R"(["a",1])", R"(["a", 1, 2])"},
     {R"(["a"])", R"([1, 1])", R"(["a", "b"])", "[]"}},
    {R"({"type":"object","properties":{"a":{"type":"integer"}},"additionalProperties":false})",
     {"{}", R"({"a": 1})"},
     {R"({"a": "x"})", R"({"b": 1})"}},
    {R"({"type":"object","patternProperties":{"^n_":{"type":"number"},"_s$":{"minimum":5}},
         "additionalProperties":{"type":"string"}})",
     {R"({"n_a": 1, "x": "y", "n_s": 6})", R"({"q_s": "text"})"},
     {R"({"n_a": "x"})", R"({"x": 1})", R"({"n_s": 4})"}},
    {R"({"type":"object","minProperties":1,"maxProperties":2,"required":["r"]})",
     {R"({"r": 0})", R"({"x": 1, "r": 0})"},
     {"{}", R"({"x": 1})", R"({"x": 1, "y": 2})", R"({"r":1,"x":2,"y":3})"}},
    {R"({"type":"object","propertyNames":{"pattern":"^[a-z]+$"}})",
     {R"({"abc": 1})"},
     {R"({"A": 1})", R"({"": 1})"}},
    {R"({"$defs":{"n":{"type":"object","properties":{"v":{"type":"integer"},"next":{"$ref":"#/$defs/n"}},
         "required":["v"],"additionalProperties":false}},"$ref":"#/$defs/n"})",
     {R"({"v": 1, "next": {"next": {"v": 3}, "v": 2}})"},
     {R"({"next": {"v": 1}})", R"({"v": 1, "next": {}})"}},
    {R"({"allOf":[{"properties":{"a":{"type":"integer"}},"required":["a"]},
         {"properties":{"a":{"minimum":3}}}],"type":"object"})",
     {R"({"a": 3})"},
     {R"({"a": 2})", R"({"a": "x"})", "{}"}},
    {R"({"oneOf":[{"type":"object","properties":{"k":{"const":"a"},"x":{"type":"integer"}},"required":["k","x"]},
         {"type":"object","properties":{"k":{"const":"b"},"y":{"type":"string"}},"required":["k"]}]})",
     {R"({"k": "a", "x": 1})", R"({"x": 1, "k": "b"})"},
     {R"({"k": "a"})", R"({"k": "c", "x": 1})"}},
    {R"({"type":"object","oneOf":[{"required":["a"]},{"required":["b"]}]})",
     {R"({"a": 1})", R"({"b": 1, "c": 1})"},
     {"{}", R"({"a": 1, "b": 1})"}},
    {R"({"oneOf":[{"type":"integer","minimum":2},{"type":"integer","maximum":5}]})",
     {"1", "6"},
     {"2", "5"}},
    {R"({"not":{"type":"object","required":["x"]},"type":["object","null"]})",
     {"null", R"({"y": 1})"},
     {R"({"x": 1})"}},
    {R"({"type":"object","properties":{"a":{"enum":["p","q"]},"b":{"type":"integer"}},
         "if":{"properties":{"a":{"const":"p"}},"required":["a"]},"then":{"required":["b"]}})",
     {R"({"a": "p", "b": 1})", R"({"a": "q"})", "{}"},
     {R"({"a": "p"})"}},
    {R"({"type":"object","dependentRequired":{"a":["b"]}})",
     {R"({"b": 1})", R"({"b": 1, "a": 2})"},
     {R"({"a": 2})"}},
    {R"({"type":"string","format":"date"})",
     {R"("2024-02-29")"},
     {R"("2023-02-29")", R"("2023-13-01")", R"("0000-01-01")", R"("0000-02-29")", R"("x")"}},
    {R"({"type":"string","format":"ipv4"})",
     {R"("192.168.0.255")"},
     {R"("256.0.0.1")", R"("1.2.3")"}},
    {R"({"type":"string","format":"no-such-format"})", {R"("anything")"}, {"1"}},
    {R"({})",
     {"null", "-0.5e10", R"([[{"a": []}]])", R"("x")"},
     {"nul", "[1,]", "{,}", "1.", ".5"}},
    {R"({"properties":{"a/b \" c":{"const":1}},"required":["a/b \" c"],"type":"object"})",
     {R"({"a/b \" c": 1})"},
     {R"({"a/b \" c": 2})", R"({"a\/b \" c": 1})"}},
};

}  // namespace

TEST(JsonSchema, JudgesInstances) {
  for (const SchemaCase& c : kSchemaCases) {
    auto constraint = compile_test(ConstraintKind::json_schema, c.schema);
    ASSERT_TRUE(constraint) << c.schema << ": " << constraint.error().message;
    for (const char* text : c.valid) EXPECT_TRUE(accepts(*constraint, text)) << c.schema << text;
    for (const char* text : c.invalid) EXPECT_FALSE(accepts(*constraint, text)) << c.schema << text;
  }
}

TEST(JsonSchema, RefusesByName) {
  struct {
    const char *schema, *why;
  } cases[] = {
      {R"({"type":"array","uniqueItems":true})", "uniqueItems"},
      {R"({"contains":{"type":"integer"}})", "contains"},
      {R"({"unevaluatedProperties":false})", "unevaluatedProperties"},
      {R"({"$ref":"http://example.com/x.json"})", "$ref"},
      {R"({"$ref":"#/$defs/none"})", "$ref"},
      {R"({"$ref":"#"})", "$ref"},
      {R"({"type":"string","format":"iri"})", "format"},
      {R"({"type":"string","pattern":"(a)\\1"})", "backreference"},
      {R"({"type":"number","multipleOf":0.3})", "multipleOf"},
      {R"({"type":"text"})", "type"},
      {R"({"type":"string","minLength":5,"maxLength":2})", "no value"},
      {R"({"type":"object","properties":{"a":{"$ref":"#"}},"required":["a"]})", "no value"},
      {R"(false)", "no value"},
      {R"({"type": )", "schema"},
      {R"([1])", "schema"},
      {R"({"oneOf":[{"type":"integer"},{"type":"number"}]})", "oneOf"},
  };
  for (const auto& c : cases) {
    auto r = compile_test(ConstraintKind::json_schema, c.schema);
    ASSERT_FALSE(r) << c.schema;
    EXPECT_NE(r.error().message.find(c.why), std::string::npos) << r.error().message;
    EXPECT_EQ(r.error().message.find('\n'), std::string::npos);
  }
}

// Work is counted: each is refused, or compiles, within the same bound on every machine.
TEST(JsonSchema, BombsAreBounded) {
  std::string nested = "true";
  for (int i = 0; i < 60; ++i)
    nested = R"({"anyOf":[)" + nested + R"(,{"not":)" + nested.substr(0, 2000) + "}]}";
  std::string wide = R"({"allOf":[)";
  for (int i = 0; i < 40; ++i) {
    wide += strf(R"(%s{"anyOf":[{"required":["a%d"]},{"required":["b%d"]}]})", i ? "," : "", i, i);
  }
  wide += "]}";
  std::string pattern =
      R"({"type":"string","pattern":"^(([a-z])+.)+[A-Z]([a-z])+$","maxLength":100000,"minLength":99999})";
  std::string deep;
  for (int i = 0; i < 5000; ++i) deep += R"({"items":)";
  for (const std::string& bomb : {nested, wide, pattern, deep}) {
    auto r = compile_test(ConstraintKind::json_schema, bomb);
    if (r) {
      EXPECT_LE((*r)->compile_work(), ConstraintLimits{}.max_compile_work);
    } else {
      EXPECT_FALSE(r.error().message.empty());
    }
  }
  EXPECT_FALSE(compile_test(ConstraintKind::json_schema, wide));
  EXPECT_FALSE(compile_test(ConstraintKind::json_schema, deep));
}

}  // namespace sluice::constrain
