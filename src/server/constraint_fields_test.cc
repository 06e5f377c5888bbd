#include <gtest/gtest.h>

#include <string>

#include "base/json.h"
#include "base/str.h"
#include "server/openai.h"

namespace sluice {
namespace {

using constrain::ConstraintKind;
using constrain::JsonSpace;

struct ParsedConstraint {
  Refusal refusal;
  std::optional<ConstraintField> constraint;
};

ParsedConstraint parse_held(const std::string& fields, bool chat) {
  ParsedConstraint out;
  std::string prompt =
      chat ? R"("messages": [{"role": "user", "content": "x"}])" : R"("prompt": "x")";
  Result<json::value> body = parse_json("{" + prompt + (fields.empty() ? "" : ", " + fields) + "}");
  EXPECT_TRUE(body) << fields;
  if (!body) return out;
  if (chat) {
    ChatFields f;
    out.refusal = parse_chat(*body, RequestLimits{}, f);
    out.constraint = f.constraint;
  } else {
    CompletionFields f;
    out.refusal = parse_completion(*body, RequestLimits{}, f);
    out.constraint = f.constraint;
  }
  return out;
}

ParsedConstraint parse_tgi_form(const std::string& fields) {
  Result<json::value> body = parse_json(R"({"inputs": "x", "parameters": {)" + fields + "}}");
  EXPECT_TRUE(body) << fields;
  TgiFields f;
  ParsedConstraint out;
  out.refusal = parse_tgi(*body, RequestLimits{}, f);
  out.constraint = f.constraint;
  return out;
}

struct AcceptedForm {
  const char* fields;
  ConstraintKind kind;
  const char* text;
  const char* name;
};

TEST(ConstraintFields, EveryFormBecomesASource) {
  using enum ConstraintKind;
  const AcceptedForm cases[] = {
      {R"("response_format": {"type": "json_object"})", json_object, "", "response_format"},
      {R"("response_format": {"type": "json_object", "schema": {"type": "object"}})", json_schema,
       R"({"type":"object"})", "response_format"},
      {R"("response_format": {"type": "json_schema", "json_schema": {"name": "a", "description": "b",
          "strict": true, "schema": {"type": "null"}}})",
       json_schema, R"({"type":"null"})", "response_format"},
      {R"("response_format": {"type": "json_schema", "json_schema": {"strict": null, "schema": true}})",
       json_schema, "true", "response_format"},
      {R"("response_format": {"type": "structural_tag", "structures": [1], "triggers": ["<"]})",
       structural_tags, R"({"structures":[1],"triggers":["<"]})", "response_format"},
      {R"("response_format": {"type": "grammar", "grammar": "root ::= \"x\""})", gbnf,
       R"(root ::= "x")", "response_format"},
      {R"("structured_outputs": {"json": {"type": "null"}})", json_schema, R"({"type":"null"})",
       "structured_outputs"},
      {R"("structured_outputs": {"json": "{\"type\": \"null\"}", "regex": null})", json_schema,
       R"({"type": "null"})", "structured_outputs"},
      {R"("structured_outputs": {"regex": "a+"})", regex, "a+", "structured_outputs"},
      {R"("structured_outputs": {"choice": ["a", "b"]})", choice, R"(["a","b"])",
       "structured_outputs"},
      {R"("structured_outputs": {"grammar": "start: \"x\""})", lark, R"(start: "x")",
       "structured_outputs"},
      {R"("structured_outputs": {"json_object": true, "disable_fallback": true})", json_object, "",
       "structured_outputs"},
      {R"("structured_outputs": {"structural_tag": "{}"})", structural_tags, "{}",
       "structured_outputs"},
      {R"("guided_json": {"type": "null"})", json_schema, R"({"type":"null"})", "guided_json"},
      {R"("guided_regex": "a+")", regex, "a+", "guided_regex"},
      {R"("guided_choice": ["a"])", choice, R"(["a"])", "guided_choice"},
      {R"("guided_grammar": "# a::=b\n  root ::= \"x\"")", gbnf, "# a::=b\n  root ::= \"x\"",
       "guided_grammar"},
      {R"("guided_json_object": true)", json_object, "", "guided_json_object"},
      {R"("grammar": "root ::= \"x\"")", gbnf, R"(root ::= "x")", "grammar"},
      {R"("grammar": "start: \"a ::= b\"")", lark, R"(start: "a ::= b")", "grammar"},
      {R"("json_schema": {})", json_schema, "{}", "json_schema"},
      {R"("regex": "a")", regex, "a", "regex"},
      {R"("ebnf": "root ::= \"x\"")", gbnf, R"(root ::= "x")", "ebnf"},
      {R"("structural_tag": {"structures": []})", structural_tags, R"({"structures":[]})",
       "structural_tag"},
  };
  for (const AcceptedForm& c : cases) {
    for (bool chat : {true, false}) {
      SCOPED_TRACE(c.fields);
      ParsedConstraint p = parse_held(c.fields, chat);
      ASSERT_FALSE(p.refusal) << p.refusal->message;
      ASSERT_TRUE(p.constraint);
      EXPECT_EQ(p.constraint->source.kind, c.kind);
      EXPECT_EQ(p.constraint->source.text, c.text);
      EXPECT_EQ(p.constraint->source.space, JsonSpace::flexible);
      EXPECT_EQ(p.constraint->name, c.name);
    }
  }
}

TEST(ConstraintFields, WhiteSpaceCanBeLeftOut) {
  ParsedConstraint p =
      parse_held(R"("structured_outputs": {"json": {}, "disable_any_whitespace": true})", true);
  ASSERT_TRUE(p.constraint);
  EXPECT_EQ(p.constraint->source.space, JsonSpace::none);
}

TEST(ConstraintFields, SomeValuesAskForNothing) {
  for (const char* fields :
       {R"("response_format": {"type": "text"})", R"("response_format": null)", R"("grammar": "")",
        R"("json_schema": null)", R"("guided_json_object": false)", R"("guided_regex": "")",
        R"("structured_outputs": null)", R"("grammar_lazy": false, "grammar_triggers": [])",
        R"("guided_whitespace_pattern": null)"}) {
    ParsedConstraint p = parse_held(fields, true);
    EXPECT_FALSE(p.refusal) << fields << ": " << p.refusal->message;
    EXPECT_FALSE(p.constraint) << fields;
  }
  EXPECT_FALSE(parse_tgi_form(R"("grammar": "")").constraint);
}

struct RefusedForm {
  const char* fields;
  const char* param;
  const char* says;
};

void expect_form_refused(const ParsedConstraint& p, const RefusedForm& c) {
  SCOPED_TRACE(c.fields);
  ASSERT_TRUE(p.refusal);
  EXPECT_EQ(p.refusal->status, 400);
  EXPECT_EQ(p.refusal->param, c.param);
  EXPECT_NE(p.refusal->message.find(c.says), std::string::npos) << p.refusal->message;
}

TEST(ConstraintFields, WhatIsNotUnderstoodIsRefusedByName) {
  const RefusedForm cases[] = {
      {R"("response_format": "json")", "response_format", "must be an object"},
      {R"("response_format": {})", "response_format", "response_format.type"},
      {R"("response_format": {"type": "xml"})", "response_format", "response_format.type"},
      {R"("response_format": {"type": "json_object", "strict": true})", "response_format",
       "response_format.strict"},
      {R"("response_format": {"type": "json_schema"})", "response_format",
       "response_format.json_schema must be"},
      {R"("response_format": {"type": "json_schema", "json_schema": {"name": "a"}})",
       "response_format", "json_schema.schema is missing"},
      {R"("response_format": {"type": "json_schema", "json_schema": {"name": 1, "schema": {}}})",
       "response_format", "json_schema.name must be a string"},
      {R"("response_format": {"type": "json_schema", "json_schema": {"strict": 1, "schema": {}}})",
       "response_format", "json_schema.strict must be"},
      {R"("response_format": {"type": "json_schema", "json_schema": {"lax": 1, "schema": {}}})",
       "response_format", "json_schema.lax is not supported"},
      {R"("response_format": {"type": "json_schema", "json_schema": {"schema": [1]}})",
       "response_format", "json_schema.schema must be a JSON schema"},
      {R"("response_format": {"type": "grammar"})", "response_format", "grammar is missing"},
      {R"("structured_outputs": {})", "structured_outputs", "needs one of"},
      {R"("structured_outputs": [])", "structured_outputs", "must be an object"},
      {R"("structured_outputs": {"regex": "a", "whitespace_pattern": " "})", "structured_outputs",
       "structured_outputs.whitespace_pattern"},
      {R"("structured_outputs": {"json": {}, "disable_additional_properties": true})",
       "structured_outputs", "disable_additional_properties"},
      {R"("structured_outputs": {"json": {}, "disable_any_whitespace": 1})", "structured_outputs",
       "disable_any_whitespace must be"},
      {R"("structured_outputs": {"choice": []})", "structured_outputs",
       "structured_outputs.choice must be a list"},
      {R"("structured_outputs": {"choice": ["a", 1]})", "structured_outputs", "choice must be"},
      {R"("structured_outputs": {"json_object": 1})", "structured_outputs", "json_object must be"},
      {R"("guided_json": [1])", "guided_json", "must be a JSON schema"},
      {R"("guided_regex": 1)", "guided_regex", "must be a string"},
      {R"("guided_choice": "a")", "guided_choice", "list of strings"},
      {R"("guided_whitespace_pattern": " ")", "guided_whitespace_pattern", "not supported"},
      {R"("grammar": "root ::= \"x\"", "grammar_lazy": true)", "grammar_lazy", "structural_tag"},
      {R"("structural_tag": [])", "structural_tag", "structures and triggers"},
  };
  for (const RefusedForm& c : cases) {
    for (bool chat : {true, false}) expect_form_refused(parse_held(c.fields, chat), c);
  }
}

TEST(ConstraintFields, TwoAtOnceAreRefusedByBothNames) {
  for (const auto& [fields, one, two] :
       {std::tuple{R"("guided_json": {}, "response_format": {"type": "json_object"})",
                   "response_format", "guided_json"},
        std::tuple{R"("grammar": "root ::= \"x\"", "json_schema": {})", "grammar", "json_schema"},
        std::tuple{
            R"("structured_outputs": {"json": {}}, "response_format": {"type": "json_object"})",
            "response_format", "structured_outputs"}}) {
    ParsedConstraint p = parse_held(fields, true);
    ASSERT_TRUE(p.refusal) << fields;
    EXPECT_EQ(p.refusal->status, 400);
    EXPECT_EQ(p.refusal->param, two);
    EXPECT_EQ(p.refusal->message,
              strf("%s and %s both constrain the answer: send one of them", one, two));
  }
  expect_form_refused(parse_held(R"("structured_outputs": {"json": {}, "regex": "a"})", true),
                      {"", "structured_outputs", "two constraints"});
  // Text is no constraint.
  EXPECT_FALSE(
      parse_held(R"("guided_json": {}, "response_format": {"type": "text"})", true).refusal);
}

TEST(ConstraintFields, WhatDoesNotGoWithAConstraint) {
  for (const RefusedForm& c :
       {RefusedForm{R"("ignore_eos": true)", "ignore_eos", "response_format"},
        RefusedForm{R"("min_tokens": 3)", "min_tokens", "response_format"},
        RefusedForm{R"("bad_words": ["a"])", "bad_words", "response_format"},
        RefusedForm{R"("allowed_token_ids": [1])", "allowed_token_ids", "response_format"}}) {
    std::string with = std::string(c.fields) + R"(, "response_format": {"type": "json_object"})";
    expect_form_refused(parse_held(with, true), c);
    expect_form_refused(parse_held(with, false), c);
    EXPECT_FALSE(parse_held(c.fields, true).refusal);
  }
  EXPECT_FALSE(parse_held(R"("response_format": {"type": "json_object"}, "n": 3, "stop": ["}"],
      "stop_token_ids": [4], "logprobs": true, "top_logprobs": 2, "logit_bias": {"5": 3},
      "ignore_eos": false, "min_tokens": 0)",
                          true)
                   .refusal);
}

TEST(ConstraintFields, ALongSourceIsRefusedUnread) {
  std::string pattern(size_t{1} << 20, 'a');
  EXPECT_TRUE(parse_held(R"("regex": ")" + pattern + '"', true).constraint);
  expect_form_refused(parse_held(R"("regex": ")" + pattern + R"(a")", true),
                      {"", "regex", "at most 1048576 are allowed"});
}

TEST(ConstraintFields, OfTheGenerateRoute) {
  ParsedConstraint p = parse_tgi_form(R"("grammar": {"type": "json", "value": {"type": "null"}})");
  ASSERT_TRUE(p.constraint);
  EXPECT_EQ(p.constraint->source.kind, ConstraintKind::json_schema);
  EXPECT_EQ(p.constraint->source.text, R"({"type":"null"})");
  p = parse_tgi_form(R"("grammar": {"type": "regex", "value": "a+"})");
  ASSERT_TRUE(p.constraint);
  EXPECT_EQ(p.constraint->source.kind, ConstraintKind::regex);
  p = parse_tgi_form(R"("grammar": {"type": "json_schema", "value": {"name": "x", "schema": {}}})");
  ASSERT_TRUE(p.constraint);
  EXPECT_EQ(p.constraint->source.text, "{}");
  for (const RefusedForm& c :
       {RefusedForm{R"("grammar": "root ::= \"x\"")", "grammar", "a type and a value"},
        RefusedForm{R"("grammar": {"type": "json"})", "grammar", "a type and a value"},
        RefusedForm{R"("grammar": {"type": "lark", "value": "x"})", "grammar", "grammar.type"},
        RefusedForm{R"("grammar": {"type": "regex", "value": 1})", "grammar", "grammar.value"},
        RefusedForm{R"("grammar": {"type": "json", "value": {}}, "ignore_eos": true)", "ignore_eos",
                    "grammar"}}) {
    expect_form_refused(parse_tgi_form(c.fields), c);
  }
}

}  // namespace
}  // namespace sluice
