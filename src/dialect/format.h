// How models write tool calls and thinking: one row per format. From a row come the parser of the
// model's output (output_parser.h) and the grammar that makes it call (call_grammar.h).
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace sluice::dialect {

enum class CallShape : uint8_t {
  json,      // {"name": NAME, "arguments": ARGUMENTS}, alone or in a list
  named,     // NAME, then ARGUMENTS as JSON
  xml,       // <function=NAME><parameter=KEY>VALUE</parameter></function>
  pythonic,  // [NAME(KEY=VALUE, ...), ...]
  braces,    // NAME{KEY:VALUE, ...} with bare keys
  harmony,   // messages with a channel and a recipient
};

// A block is what stands between `begin` and `end`; it has one or more calls:
//   begin (call_begin before_name NAME after_name ARGUMENTS after_args call_end)+ end
// White space around these strings may be absent or more. Strings may be empty.
struct ToolFormat {
  std::string_view name;  // of --tool-format
  CallShape shape;
  // Any one of these alternatives, each with up to three strings that all stand in the template.
  // Rows further up in the table are tried first.
  std::string_view found_by[2][3];
  std::string_view not_by = {};  // a string of another format that looks alike
  std::string_view begin, end;
  // Another beginning and its end that models write: parsed, never asked for.
  std::string_view begin2 = {}, end2 = {};
  std::string_view call_begin = {}, call_end = {};
  std::string_view before_name = {}, after_name = {}, after_args = {};
  std::string_view id_mark = {};  // a call id may stand behind it, between name and after_name
  std::string_view between = {};  // calls of one block; JSON in lists: always a comma
  std::string_view name_key = "name", args_key = "arguments";
  std::string_view quote = {};  // around strings; empty: as JSON has them
  bool list = false;            // a block is a list [CALL, CALL]
  bool repeats = false;         // several calls are several blocks
  bool bare = false;            // a block may begin without `begin`, on a line of its own
  uint8_t id_length = 0;        // of call ids that the template takes; 0: any
};

struct ThinkFormat {
  std::string_view name;  // of --reasoning-format
  std::string_view begin, end;
};

std::span<const ToolFormat> tool_formats();
std::span<const ThinkFormat> think_formats();
// Null: none has that name.
const ToolFormat* tool_format_named(std::string_view name);
const ThinkFormat* think_format_named(std::string_view name);
// By the strings that the chat template has; null: it writes no format that we know.
const ToolFormat* find_tool_format(std::string_view chat_template);
const ThinkFormat* find_think_format(std::string_view chat_template);

// What a model's output is read as. Null: not written, or not to be looked for.
struct OutputFormat {
  const ToolFormat* tools = nullptr;
  const ThinkFormat* think = nullptr;
  bool is_harmony() const { return tools && tools->shape == CallShape::harmony; }
};
// Every string that marks something in this format: control tokens that spell a part of one must
// reach the parser.
std::vector<std::string_view> markers(const OutputFormat& format);

// Does a prompt that ends so leave the model within its thinking?
bool opens_thinking(const ThinkFormat& format, std::string_view prompt_end);

}  // namespace sluice::dialect
