#include "server/chat_output.h"

#include <gtest/gtest.h>

#include <string>

#include "base/json.h"
#include "server/chat_reading.h"
#include "server/openai.h"

namespace sluice {
namespace {

Refusal parse_chat_text(const std::string& text, ChatFields& out) {
  Result<json::value> v = parse_json(text);
  EXPECT_TRUE(v) << text;
  return parse_chat(*v, {}, out);
}

constexpr const char* kTool =
    R"({"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}})";

// Fields beside a question and one tool.
Refusal with_tool(const std::string& fields, ChatFields& out) {
  return parse_chat_text(R"({"messages": [{"role": "user", "content": "hi"}], "tools": [)" +
                             std::string(kTool) + "]" + fields + "}",
                         out);
}

ChatReading hermes_reading() {
  ChatFields f;
  EXPECT_FALSE(with_tool("", f));
  ChatReading r;
  r.parser.format = {dialect::tool_format_named("hermes"), dialect::think_format_named("think")};
  r.parser.tools = f.tools.set;
  return r;
}

constexpr std::string_view kOutput =
    "<think>\nHm \"so\".\n</think>\n\nI will.\n<tool_call>\n{\"name\": \"f\", \"arguments\": "
    "{\"a\": [1]}}\n</tool_call>\n<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>";

std::function<std::string()> counted_ids() {
  return [n = 0]() mutable { return "call_" + std::to_string(n++); };
}

json::object whole_message(const ChatReading& reading) {
  ChatOutput output(reading, counted_ids());
  output.push(kOutput, true);
  std::string text = "{";
  output.write_message(text).finish();
  return parse_json(text + "}").value().as_object();
}

TEST(ChatOutput, AWholeMessageHasCallsAndReasoning) {
  json::object m = whole_message(hermes_reading());
  EXPECT_EQ(m.at("content"), "I will.\n");
  EXPECT_EQ(m.at("reasoning"), "Hm \"so\".");
  EXPECT_EQ(m.at("reasoning_content"), "Hm \"so\".");
  EXPECT_EQ(
      json::serialize(m.at("tool_calls")),
      R"([{"id":"call_0","type":"function","function":{"name":"f","arguments":"{\"a\": [1]}"}},)"
      R"({"id":"call_1","type":"function","function":{"name":"f","arguments":"{}"}}])");
}

TEST(ChatOutput, OneCallOnlyIfAskedFor) {
  ChatReading reading = hermes_reading();
  reading.parallel = false;
  reading.include_reasoning = false;
  json::object m = whole_message(reading);
  EXPECT_EQ(m.at("tool_calls").as_array().size(), 1u);
  EXPECT_TRUE(m.at("reasoning").is_null());
}

// The deltas of a stream, put together, are the whole message: id and name come once and first.
TEST(ChatOutput, DeltasMakeTheSameMessage) {
  json::object whole = whole_message(hermes_reading());
  for (size_t step : {size_t{1}, size_t{3}, size_t{1000}}) {
    ChatOutput output(hermes_reading(), counted_ids());
    std::string content, reasoning;
    json::array calls;
    for (size_t at = 0; at < kOutput.size(); at += step) {
      output.push(kOutput.substr(at, step), at + step >= kOutput.size());
      if (!output.pending()) continue;
      std::string text = "{";
      output.append_delta(text);
      EXPECT_FALSE(output.pending());
      json::object delta = parse_json(text + "}").value().as_object();
      if (const json::value* v = delta.if_contains("content")) content += v->as_string();
      if (const json::value* v = delta.if_contains("reasoning_content"))
        reasoning += v->as_string();
      const json::value* list = delta.if_contains("tool_calls");
      for (const json::value& v : list ? list->as_array() : json::array()) {
        const json::object& o = v.as_object();
        auto index = static_cast<size_t>(o.at("index").as_int64());
        const json::object& f = o.at("function").as_object();
        if (index == calls.size()) {
          calls.push_back(
              json::object{{"id", o.at("id")},
                           {"type", o.at("type")},
                           {"function", json::object{{"name", f.at("name")}, {"arguments", ""}}}});
        } else {
          EXPECT_FALSE(o.contains("id") || f.contains("name"));
        }
        json::value& arguments = calls.at(index).at("function").at("arguments");
        arguments = std::string(arguments.as_string()) + std::string(f.at("arguments").as_string());
      }
    }
    EXPECT_EQ(whole.at("content"), json::value(content));
    EXPECT_EQ(whole.at("reasoning"), json::value(reasoning));
    EXPECT_EQ(json::serialize(whole.at("tool_calls")), json::serialize(calls));
    EXPECT_TRUE(output.called());
  }
}

TEST(ToolFields, AreRead) {
  ChatFields f;
  ASSERT_FALSE(with_tool(R"(, "parallel_tool_calls": false, "tool_choice": "auto")", f));
  EXPECT_TRUE(f.tools.active());
  EXPECT_FALSE(f.tools.parallel);
  EXPECT_EQ(f.tools.list.as_array().size(), 1u);
  ChatFields none;
  ASSERT_FALSE(with_tool(R"(, "tool_choice": "none")", none));
  EXPECT_FALSE(none.tools.active());
  ChatFields named;
  ASSERT_FALSE(
      with_tool(R"(, "tool_choice": {"type": "function", "function": {"name": "f"}})", named));
  EXPECT_EQ(named.tools.choice, ToolFields::Choice::named);
  for (const char* bad : {R"(, "tool_choice": "maybe")", R"(, "tool_choice": {"type": "function"})",
                          R"(, "tool_choice": {"type": "function", "function": {"name": "g"}})",
                          R"(, "parallel_tool_calls": 1)", R"(, "reasoning_format": "x")"}) {
    ChatFields g;
    EXPECT_TRUE(with_tool(bad, g)) << bad;
  }
}

TEST(ToolFields, EarlierCallsAreGivenToTheTemplateAsObjects) {
  ChatFields f;
  Refusal refused = parse_chat_text(R"({"messages": [
      {"role": "user", "content": "hi"},
      {"role": "assistant", "content": null, "reasoning": "hm", "tool_calls": [{"id": "1",
        "type": "function", "function": {"name": "f", "arguments": "{\"a\": 1}"}}]},
      {"role": "tool", "tool_call_id": "1", "content": "<tool_call>{}</tool_call>"},
      {"role": "assistant", "content": "x", "tool_calls": []}]})",
                                    f);
  ASSERT_FALSE(refused) << refused->message;
  const json::object& call = f.messages[1].at("tool_calls").as_array()[0].as_object();
  EXPECT_EQ(call.at("function").at("arguments").at("a"), 1);
  EXPECT_EQ(f.messages[1].at("reasoning_content"), "hm");
  EXPECT_FALSE(f.messages[3].as_object().contains("tool_calls"));
  for (const char* bad :
       {R"("tool_calls": 1)", R"("tool_calls": [{}])", R"("reasoning": 3)", R"("tool_call_id": [])",
        R"("tool_calls": [{"function": {"name": "f", "arguments": "{"}}])",
        R"("tool_calls": [{"function": {"name": "f", "arguments": "[]"}}])",
        R"("tool_calls": [{"id": 7, "function": {"name": "f"}}])"}) {
    ChatFields g;
    Refusal r = parse_chat_text(
        std::string(R"({"messages": [{"role": "assistant", "content": "x", )") + bad + "}]}", g);
    ASSERT_TRUE(r) << bad;
    EXPECT_TRUE(r->param.starts_with("messages[0].")) << r->param;
  }
}

TEST(ChatReading, ToolsNeedATemplateThatKnowsThem) {
  ChatFields f;
  ASSERT_FALSE(with_tool("", f));
  dialect::OutputFormat hermes = choose_format({}, "{{ tools }} <tool_call>");
  EXPECT_FALSE(check_tools(f.tools, {}, hermes, "{{ tools }} <tool_call>"));
  EXPECT_TRUE(check_tools(f.tools, {}, hermes, "{{ messages }}"));
  EXPECT_TRUE(check_tools(f.tools, {}, {}, "{{ tools }}"));
  EXPECT_FALSE(check_tools({}, {}, {}, ""));
  EXPECT_FALSE(check_tools(f.tools, {"none", ""}, {}, "{{ tools }}"));
  EXPECT_EQ(choose_format({"none", "none"}, "<tool_call> </think>").tools, nullptr);
  EXPECT_EQ(choose_format({"granite", ""}, "").tools->name, "granite");
}

}  // namespace
}  // namespace sluice
