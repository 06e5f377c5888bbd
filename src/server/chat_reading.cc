#include "server/chat_reading.h"

#include <algorithm>
#include <utility>

#include "dialect/call_grammar.h"

namespace sluice {

dialect::OutputFormat choose_format(const FormatFlags& flags, std::string_view chat_template) {
  return {flags.tools.empty() ? dialect::find_tool_format(chat_template)
                              : dialect::tool_format_named(flags.tools),
          flags.reasoning.empty() ? dialect::find_think_format(chat_template)
                                  : dialect::think_format_named(flags.reasoning)};
}

std::vector<Token> mark_tokens(const dialect::OutputFormat& format, const Tokenizer& tokenizer) {
  std::vector<Token> kept;
  std::vector<std::string_view> marks = dialect::markers(format);
  if (marks.empty()) return kept;
  for (Token t = 0; t < tokenizer.size(); ++t) {
    if (!tokenizer.is_control(t)) continue;
    std::string_view text = tokenizer.bytes(t);
    if (!text.empty() && std::any_of(marks.begin(), marks.end(), [&](std::string_view m) {
          return m.find(text) != std::string_view::npos;
        }))
      kept.push_back(t);
  }
  return kept;
}

Refusal check_tools(const ToolFields& tools,
                    const FormatFlags& flags,
                    const dialect::OutputFormat& format,
                    std::string_view chat_template) {
  if (!tools.active()) return {};
  if (chat_template.find("tools") == std::string_view::npos)
    return ApiError{400,
                    "this model's chat template knows no tools: describe them in the messages, or "
                    "use another model",
                    "tools", "unsupported_parameter"};
  if (!format.tools && flags.tools != "none")
    return ApiError{400,
                    "how this model writes tool calls is not known: serve it with --tool-format",
                    "tools", "unsupported_parameter"};
  return {};
}

Refusal enforce_calls(const ChatReading& reading, ChatFields& fields) {
  const ToolFields& tools = fields.tools;
  const bool calls_follow = tools.must_call() || tools.strict();
  const std::string by = calls_follow ? tools.constrained_by() : "";
  auto refuse = [](const std::string& param, std::string message) {
    return ApiError{400, std::move(message), param, "unsupported_parameter"};
  };
  if (fields.constraint && calls_follow)
    return refuse(by, fields.constraint->name + " and " + by +
                          " both constrain the answer: send one of them");
  if (!calls_follow) return {};
  dialect::OutputFormat format = reading.parser.format;
  // Then the constraint begins behind the thinking.
  if (reading.thinking_open || fields.thinking_budget) format.think = nullptr;
  Result<constrain::ConstraintSource> calls =
      dialect::call_constraint(format, *tools.set, {tools.must_call(), tools.name, tools.parallel});
  if (!calls) return refuse(by, calls.error().message);
  fields.constraint = ConstraintField{by, std::move(*calls)};
  return {};
}

bool plans_thinking(const ChatReading& reading, const ChatFields& fields) {
  const bool bounded =
      fields.thinking_budget && (reading.think || reading.parser.format.is_harmony());
  return bounded || (fields.constraint && reading.thinking_open);
}

}  // namespace sluice
