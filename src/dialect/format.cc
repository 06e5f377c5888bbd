#include "dialect/format.h"

#include <algorithm>

namespace sluice::dialect {

namespace {

constexpr std::string_view kBlockBegin = "<｜tool▁calls▁begin｜>";
constexpr std::string_view kBlockEnd = "<｜tool▁calls▁end｜>";
constexpr std::string_view kCallBegin = "<｜tool▁call▁begin｜>";
constexpr std::string_view kCallEnd = "<｜tool▁call▁end｜>";
constexpr std::string_view kSep = "<｜tool▁sep｜>";

constexpr ToolFormat kToolFormats[] = {
    // gpt-oss
    {.name = "harmony",
     .shape = CallShape::harmony,
     .found_by = {{"<|channel|>", "<|message|>"}},
     .begin = "<|start|>",
     .end = "<|call|>",
     .before_name = "functions.",
     .after_name = "<|message|>"},
    // DeepSeek V3, R1
    {.name = "deepseek",
     .shape = CallShape::named,
     .found_by = {{"<｜tool▁calls▁begin｜>", "```json"}},
     .begin = kBlockBegin,
     .end = kBlockEnd,
     .call_begin = kCallBegin,
     .call_end = kCallEnd,
     .before_name = "function<｜tool▁sep｜>",
     .after_name = "\n```json\n",
     .after_args = "\n```",
     .between = "\n"},
    // DeepSeek V3.1
    {.name = "deepseek-v3.1",
     .shape = CallShape::named,
     .found_by = {{"<｜tool▁calls▁begin｜>"}},
     .begin = kBlockBegin,
     .end = kBlockEnd,
     .call_begin = kCallBegin,
     .call_end = kCallEnd,
     .after_name = kSep},
    // Mistral from its tokenizer 11 on
    {.name = "mistral-v11",
     .shape = CallShape::named,
     .found_by = {{"[TOOL_CALLS]", "[ARGS]"}},
     .begin = "[TOOL_CALLS]",
     .end = "",
     .after_name = "[ARGS]",
     .id_mark = "[CALL_ID]",
     .repeats = true,
     .id_length = 9},
    // Mistral before
    {.name = "mistral",
     .shape = CallShape::json,
     .found_by = {{"[TOOL_CALLS]"}},
     .begin = "[TOOL_CALLS]",
     .end = "",
     .list = true,
     .id_length = 9},
    // Qwen3-Coder
    {.name = "qwen3-coder",
     .shape = CallShape::xml,
     .found_by = {{"<tool_call>", "<function=", "<parameter="}},
     .begin = "<tool_call>\n",
     .end = "\n</tool_call>",
     .begin2 = "<function=",
     .before_name = "<function=",
     .after_name = ">\n",
     .after_args = "</function>",
     .between = "\n",
     .repeats = true},
    // Phi-4-mini: its card has the first, its outputs the second
    {.name = "phi-4-mini",
     .shape = CallShape::json,
     .found_by = {{"<|tool_call|>", "<|/tool_call|>"}, {"functools["}},
     .begin = "functools",
     .end = "",
     .begin2 = "<|tool_call|>",
     .end2 = "<|/tool_call|>",
     .list = true},
    // Granite 3
    {.name = "granite",
     .shape = CallShape::json,
     .found_by = {{"<|tool_call|>"}},
     .begin = "<|tool_call|>",
     .end = "",
     .begin2 = "<tool_call>",
     .list = true},
    // Granite 20B for function calls
    {.name = "granite-20b-fc",
     .shape = CallShape::json,
     .found_by = {{"<function_call>"}},
     .begin = "<function_call>",
     .end = "",
     .between = "\n",
     .repeats = true},
    // FunctionGemma
    {.name = "function-gemma",
     .shape = CallShape::braces,
     .found_by = {{"<start_function_call>", "<escape>"}},
     .begin = "<start_function_call>",
     .end = "<end_function_call>",
     .before_name = "call:",
     .quote = "<escape>",
     .repeats = true},
    // Gemma 4
    {.name = "gemma-4",
     .shape = CallShape::braces,
     .found_by = {{"<|tool_call>", "<tool_call|>"}},
     .begin = "<|tool_call>",
     .end = "<tool_call|>",
     .before_name = "call:",
     .quote = "<|\"|>",
     .repeats = true},
    // Hermes, Qwen 2.5 and 3, Granite 4
    {.name = "hermes",
     .shape = CallShape::json,
     .found_by = {{"<tool_call>"}},
     .not_by = "arg_key",
     .begin = "<tool_call>\n",
     .end = "\n</tool_call>",
     .between = "\n",
     .repeats = true},
    // Llama 4, and small Llama 3.2 told to write Python; ToolACE, Gemma 3
    {.name = "pythonic",
     .shape = CallShape::pythonic,
     .found_by = {{"<|python_start|>"}, {"func_name1(param"}},
     .begin = "<|python_start|>",
     .end = "<|python_end|>",
     .between = ", ",
     .list = true,
     .bare = true},
    // Llama 3.1 to 3.3
    {.name = "llama3-json",
     .shape = CallShape::json,
     .found_by = {{"<|python_tag|>"}, {"\"parameters\": dictionary of argument name"}},
     .not_by = "<function=",
     .begin = "<|python_tag|>",
     .end = "",
     .between = "; ",
     .args_key = "parameters",
     .bare = true},
};

constexpr ThinkFormat kThinkFormats[] = {
    {"think", "<think>", "</think>"},
    {"mistral", "[THINK]", "[/THINK]"},
    {"seed", "<seed:think>", "</seed:think>"},
    {"gemma-4", "<|channel>thought", "<channel|>"},
    {"granite", "Here is my thought process:", "Here is my response:"},
};

bool has_all(std::string_view text, const std::string_view (&strings)[3]) {
  if (strings[0].empty()) return false;
  return std::all_of(std::begin(strings), std::end(strings),
                     [&](std::string_view s) { return text.find(s) != std::string_view::npos; });
}

}  // namespace

std::span<const ToolFormat> tool_formats() { return kToolFormats; }
std::span<const ThinkFormat> think_formats() { return kThinkFormats; }

const ToolFormat* tool_format_named(std::string_view name) {
  for (const ToolFormat& f : kToolFormats) {
    if (f.name == name) return &f;
  }
  return nullptr;
}

const ThinkFormat* think_format_named(std::string_view name) {
  for (const ThinkFormat& f : kThinkFormats) {
    if (f.name == name) return &f;
  }
  return nullptr;
}

const ToolFormat* find_tool_format(std::string_view chat_template) {
  for (const ToolFormat& f : kToolFormats) {
    if (!f.not_by.empty() && chat_template.find(f.not_by) != std::string_view::npos) continue;
    if (has_all(chat_template, f.found_by[0]) || has_all(chat_template, f.found_by[1])) return &f;
  }
  return nullptr;
}

const ThinkFormat* find_think_format(std::string_view chat_template) {
  for (const ThinkFormat& f : kThinkFormats) {
    if (chat_template.find(f.end) != std::string_view::npos) return &f;
  }
  return nullptr;
}

std::vector<std::string_view> markers(const OutputFormat& format) {
  std::vector<std::string_view> all;
  if (format.think) all = {format.think->begin, format.think->end};
  if (const ToolFormat* t = format.tools) {
    for (std::string_view s : {t->begin, t->end, t->begin2, t->end2, t->call_begin, t->call_end,
                               t->before_name, t->after_name, t->after_args, t->id_mark, t->quote})
      all.push_back(s);
  }
  if (format.is_harmony()) {
    for (std::string_view s : {"<|channel|>", "<|constrain|>", "<|end|>", "<|return|>"})
      all.push_back(s);
  }
  std::erase(all, "");
  return all;
}

bool opens_thinking(const ThinkFormat& format, std::string_view prompt_end) {
  size_t last = prompt_end.find_last_not_of(" \n\r\t");
  return last != std::string_view::npos && prompt_end.substr(0, last + 1).ends_with(format.begin);
}

}  // namespace sluice::dialect
