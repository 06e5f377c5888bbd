#include "dialect/call_grammar.h"

#include <gtest/gtest.h>

#include <random>

#include "base/str.h"
#include "constrain/test_vocab.h"
#include "dialect/output_parser.h"

namespace sluice::dialect {
namespace {

using constrain::accepts;
using constrain::Constraint;
using constrain::Matcher;
using constrain::VocabTrie;

std::shared_ptr<const ToolSet> grammar_tools() {
  return std::make_shared<const ToolSet>(*ToolSet::read(*parse_json(R"([
      {"type": "function", "function": {"name": "weather", "strict": true, "parameters": {
          "type": "object", "additionalProperties": false, "required": ["city"],
          "properties": {"city": {"type": "string"}, "days": {"type": "integer"},
                         "unit": {"enum": ["C", "F"]}, "long": {"type": "boolean"}}}}},
      {"type": "function", "function": {"name": "now", "strict": true, "parameters": {
          "type": "object", "additionalProperties": false, "properties": {}}}}])")));
}

std::shared_ptr<const Constraint> compiled(const OutputFormat& format, const CallRules& rules) {
  Result<constrain::ConstraintSource> source = call_constraint(format, *grammar_tools(), rules);
  EXPECT_TRUE(source) << (source ? "" : source.error().message);
  if (!source) return nullptr;
  auto c = Constraint::compile(*source, constrain::test_trie(), {});
  EXPECT_TRUE(c) << (c ? "" : c.error().message) << source->text;
  return c ? *c : nullptr;
}

OutputFormat named(std::string_view tools, std::string_view think = "") {
  return {tool_format_named(tools), think_format_named(think)};
}

struct Sample {
  const char* format;
  const char* text;
} const kCalls[] = {
    {"hermes",
     "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Rome\"}}\n</tool_call>"},
    {"qwen3-coder",
     "<tool_call>\n<function=weather>\n<parameter=city>\nRome\n</parameter>\n"
     "<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>"},
    {"llama3-json", "{\"name\": \"weather\", \"parameters\": {\"city\": \"Rome\", \"days\": 3}}"},
    {"pythonic", "[weather(city=\"Rome\", long=True)]"},
    {"mistral", "[TOOL_CALLS][{\"name\": \"weather\", \"arguments\": {\"city\": \"Rome\"}}]"},
    {"mistral-v11", "[TOOL_CALLS]weather[ARGS]{\"city\": \"Rome\"}"},
    {"deepseek",
     "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n"
     "{\"city\": \"Rome\"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>"},
    {"deepseek-v3.1",
     "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>"
     "{\"city\": \"Rome\"}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"},
    {"phi-4-mini", "functools[{\"name\": \"weather\", \"arguments\": {\"city\": \"Rome\"}}]"},
    {"granite", "<|tool_call|>[{\"name\": \"weather\", \"arguments\": {\"city\": \"Rome\"}}]"},
    {"granite-20b-fc",
     "<function_call>{\"name\": \"weather\", \"arguments\": {\"city\": \"Rome\"}}"},
    {"function-gemma",
     "<start_function_call>call:weather{city:<escape>Rome<escape>,days:3}"
     "<end_function_call>"},
    {"gemma-4", "<|tool_call>call:weather{city:<|\"|>Rome<|\"|>}<tool_call|>"},
    {"harmony",
     "<|channel|>commentary to=functions.weather <|constrain|>json<|message|>"
     "{\"city\": \"Rome\"}"},
};

TEST(CallGrammar, EveryFormatAcceptsItsCallsAndNothingElse) {
  size_t formats = 0;
  for (const Sample& s : kCalls) {
    SCOPED_TRACE(s.format);
    ++formats;
    std::shared_ptr<const Constraint> c = compiled(named(s.format), {});
    ASSERT_TRUE(c);
    EXPECT_TRUE(accepts(c, s.text)) << s.text;
    EXPECT_FALSE(accepts(c, "Hello."));
    EXPECT_FALSE(accepts(c, ""));
    EXPECT_FALSE(accepts(c, std::string(s.text).substr(0, std::string(s.text).size() - 2)));
    std::string other = s.text;
    other.replace(other.find("weather"), 7, "whether");
    EXPECT_FALSE(accepts(c, other));
    std::shared_ptr<const Constraint> only_now = compiled(named(s.format), {.name = "now"});
    EXPECT_FALSE(accepts(only_now, s.text));
    std::shared_ptr<const Constraint> only = compiled(named(s.format), {.name = "weather"});
    EXPECT_TRUE(accepts(only, s.text));
  }
  EXPECT_EQ(formats, tool_formats().size());
}

TEST(CallGrammar, SeveralCallsIfParallel) {
  std::string one = kCalls[0].text, two = one + "\n" + one;
  EXPECT_TRUE(accepts(compiled(named("hermes"), {}), two));
  EXPECT_FALSE(accepts(compiled(named("hermes"), {.parallel = false}), two));
  EXPECT_TRUE(accepts(compiled(named("hermes"), {}), one + "\n"));  // need not be another call
  EXPECT_FALSE(accepts(compiled(named("hermes"), {}), one + "\nAnd"));
  EXPECT_FALSE(accepts(compiled(named("hermes"), {.name = "weather"}), two));
  std::string list = "[weather(city=\"a\"), now()]";
  EXPECT_TRUE(accepts(compiled(named("pythonic"), {}), list));
  EXPECT_FALSE(accepts(compiled(named("pythonic"), {.parallel = false}), list));
}

TEST(CallGrammar, ThinkingComesFirst) {
  std::string call = kCalls[0].text;
  auto c = compiled(named("hermes", "think"), {});
  EXPECT_TRUE(accepts(c, call));
  EXPECT_TRUE(accepts(c, "<think>\nHm.\n</think>\n\n" + call));
  EXPECT_TRUE(accepts(
      compiled(named("harmony"), {}),
      "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant" + std::string(kCalls[13].text)));
}

TEST(CallGrammar, StrictToolsLeaveTextFree) {
  auto c = compiled(named("hermes"), {.required = false});
  EXPECT_TRUE(accepts(c, "Hello."));
  EXPECT_TRUE(accepts(c, "I will.\n" + std::string(kCalls[0].text)));
  EXPECT_FALSE(accepts(c, "<tool_call>\n{\"name\": \"weather\", \"arguments\": {}}\n</tool_call>"));
  EXPECT_FALSE(call_constraint(named("llama3-json"), *grammar_tools(), {.required = false}));
}

TEST(CallGrammar, WhatAFormatCannotSayIsNamed) {
  ToolSet tools = *ToolSet::read(*parse_json(R"([{"type": "function", "function": {"name": "f",
      "parameters": {"properties": {"id": {"type": "string", "pattern": "^a$"}}}}}])"));
  auto c = call_constraint(named("qwen3-coder"), tools, {});
  ASSERT_FALSE(c);
  EXPECT_NE(c.error().message.find("pattern of 'id'"), std::string::npos) << c.error().message;
  EXPECT_TRUE(call_constraint(named("hermes"), tools, {}));
}

// A random walk through the masks gives texts that the parser reads as complete calls.
// A tool whose grammar would be much larger than itself.
TEST(CallGrammar, ToolsThatAreTooLargeAreRefused) {
  auto refusal = [](const char* format, int num, std::string defs, std::string value) {
    json::object properties;
    for (int i = 0; i < num; ++i) properties[strf("p%d", i)] = *parse_json(value);
    json::object parameters{{"type", "object"}, {"properties", std::move(properties)}};
    if (!defs.empty()) parameters["$defs"] = json::object{{"d", {{"description", defs}}}};
    json::array list{{{"type", "function"},
                      {"function", {{"name", "big"}, {"parameters", std::move(parameters)}}}}};
    Result<constrain::ConstraintSource> source =
        call_constraint(named(format), *ToolSet::read(list), {});
    return source ? std::string() : source.error().message;
  };
  const char* number = R"({"type": "integer"})";
  for (const char* format : {"pythonic", "function-gemma"}) {
    EXPECT_EQ(refusal(format, 40, "", number), "") << format;
    EXPECT_NE(refusal(format, 5000, "", number).find("'big'"), std::string::npos) << format;
  }
  for (const char* format : {"qwen3-coder", "pythonic", "function-gemma"}) {
    EXPECT_NE(refusal(format, 100, std::string(100'000, 'x'), number).find("'big'"),
              std::string::npos)
        << format;
  }
}

// The other beginning of a call, which the parser reads too, is no way around the schema.
TEST(CallGrammar, StrictToolsHaveNoSecondWayIn) {
  std::shared_ptr<const Constraint> c = compiled(named("qwen3-coder"), {.required = false});
  ASSERT_TRUE(c);
  EXPECT_TRUE(accepts(c, "a < b"));
  EXPECT_FALSE(accepts(c, "so <function=weather>\n</function>"));
}

TEST(CallGrammar, WhatTheGrammarAllowsTheParserReads) {
  std::mt19937_64 random(3);
  std::shared_ptr<const VocabTrie> trie = constrain::test_trie();
  for (const ToolFormat& f : tool_formats()) {
    SCOPED_TRACE(f.name);
    std::shared_ptr<const Constraint> c = compiled({&f, nullptr}, {});
    ASSERT_TRUE(c);
    int finished = 0;
    for (int round = 0; round < 12; ++round) {
      Matcher matcher(c);
      std::string text;
      std::vector<uint32_t> mask(trie->mask_words());
      while (text.size() < 600 && !(matcher.can_end() && random() % 2 == 0)) {
        ASSERT_TRUE(matcher.fill_mask(mask));
        std::vector<Token> allowed;
        for (Token t = 2; t < static_cast<Token>(trie->vocab_size()); ++t) {
          if (mask[static_cast<size_t>(t) / 32] >> (t % 32) & 1) allowed.push_back(t);
        }
        if (allowed.empty()) break;
        // Characters that end something come up more often.
        Token chosen = allowed[random() % allowed.size()];
        for (int i = 0; i < 4; ++i) {
          Token t = allowed[random() % allowed.size()];
          std::string_view b = trie->bytes(t);
          if (b.find_first_of("\"}])</|") != std::string_view::npos) chosen = t;
        }
        ASSERT_TRUE(matcher.accept(chosen));
        text += trie->bytes(chosen);
      }
      if (!matcher.can_end()) continue;
      ++finished;
      std::vector<OutputEvent> events;
      OutputParser parser({{&f, nullptr}, grammar_tools(), false});
      parser.push(text, events);
      parser.finish(events);
      EXPECT_GT(parser.num_calls(), 0) << text;
      for (const OutputEvent& e : events) {
        EXPECT_TRUE(e.complete) << text;
        EXPECT_NE(e.kind, OutputEvent::Kind::content) << text;
      }
    }
    EXPECT_GT(finished, 0);
  }
}

}  // namespace
}  // namespace sluice::dialect
