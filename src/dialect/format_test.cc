#include "dialect/format.h"

#include <gtest/gtest.h>

#include <set>

#include "dialect/marker_scan.h"
#include "dialect/tool_set.h"

namespace sluice::dialect {

TEST(Format, RowsAreConsistent) {
  std::set<std::string_view> names;
  for (const ToolFormat& f : tool_formats()) {
    EXPECT_TRUE(names.insert(f.name).second) << f.name;
    EXPECT_EQ(tool_format_named(f.name), &f);
    EXPECT_FALSE(f.begin.empty()) << f.name;
    EXPECT_FALSE(f.found_by[0][0].empty()) << f.name;
    std::string_view a = trimmed(f.begin), b = trimmed(f.begin2);
    EXPECT_FALSE(!b.empty() && (a.starts_with(b) || b.starts_with(a))) << f.name;
    for (const ThinkFormat& t : think_formats())
      EXPECT_FALSE(t.begin.starts_with(a) || a.starts_with(t.begin)) << f.name;
  }
  EXPECT_EQ(tool_format_named("none"), nullptr);
}

TEST(Format, FoundByTheTemplatesMarkers) {
  struct {
    const char* text;
    const char* name;
  } const kCases[] = {
      {"return JSON within <tool_call></tool_call> tags", "hermes"},
      {"'<tool_call>\\n<function=' + name + '>\\n<parameter=' + k", "qwen3-coder"},
      {"[TOOL_CALLS][", "mistral"},
      {"'[TOOL_CALLS]' + name + '[ARGS]'", "mistral-v11"},
      {"<｜tool▁calls▁begin｜>...```json", "deepseek"},
      {"<｜tool▁calls▁begin｜>...<｜tool▁sep｜>", "deepseek-v3.1"},
      {"<|channel|>analysis<|message|>", "harmony"},
      {"<|tool_call|>", "granite"},
      {"<|tool_call|>[..]<|/tool_call|>", "phi-4-mini"},
      {"functools[{\"name\": ...", "phi-4-mini"},
      {"{{- \"<|python_tag|>\" }}", "llama3-json"},
      {"[func_name1(params_name1=params_value1)]", "pythonic"},
      {"<start_function_call>call:f{a:<escape>x<escape>}", "function-gemma"},
      {"<|tool_call>call:f{}<tool_call|>", "gemma-4"},
      {"<function_call> {}", "granite-20b-fc"},
      {"<tool_call>NAME\n<arg_key>", nullptr},
      {"{{ messages[0].content }}", nullptr},
  };
  for (const auto& c : kCases) {
    const ToolFormat* found = find_tool_format(c.text);
    EXPECT_STREQ(found ? std::string(found->name).c_str() : nullptr, c.name) << c.text;
  }
  EXPECT_EQ(find_think_format("content.split('</think>')")->name, "think");
  EXPECT_EQ(find_think_format("no such thing"), nullptr);
}

TEST(Format, APromptMayOpenTheThinking) {
  const ThinkFormat& think = *think_format_named("think");
  EXPECT_TRUE(opens_thinking(think, "<|im_start|>assistant\n<think>\n"));
  EXPECT_FALSE(opens_thinking(think, "<|im_start|>assistant\n<think>\n\n</think>\n\n"));
  EXPECT_FALSE(opens_thinking(think, ""));
}

TEST(ToolSet, BadToolsAreNamed) {
  auto refused = [](const char* text) {
    Result<ToolSet> set = ToolSet::read(*parse_json(text));
    return set ? std::string("accepted") : set.error().message;
  };
  EXPECT_EQ(refused("{}"), "tools must be a list");
  EXPECT_EQ(refused(R"([{"type": "web_search"}])"), "tools[0].type must be \"function\"");
  EXPECT_NE(refused(R"([{"function": {"name": "f"}}])").find("tools[0] must be"),
            std::string::npos);
  EXPECT_NE(refused(R"([{"type": "function", "function": {"name": "a b"}}])").find("name"),
            std::string::npos);
  EXPECT_EQ(refused(R"([{"type": "function", "function": {"name": "f", "parameters": 3}}])"),
            "tools[0].function.parameters must be a JSON schema");
  EXPECT_EQ(refused(R"([{"type": "function", "function": {"name": "f"}},
                        {"type": "function", "function": {"name": "f"}}])"),
            "tools[1]: there is another tool 'f'");
  EXPECT_EQ(refused(R"([{"type": "function", "function": {"name": "f", "strict": true}}])"),
            "accepted");
}

}  // namespace sluice::dialect
