// Which format a model's outputs are read as, by its chat template and the flags. Any thread.
#pragma once

#include <string_view>
#include <vector>

#include "server/chat_output.h"
#include "server/format_flags.h"
#include "server/openai.h"
#include "text/tokenizer.h"

namespace sluice {

dialect::OutputFormat choose_format(const FormatFlags& flags, std::string_view chat_template);
// Control tokens that spell a part of the format's marks, sorted.
std::vector<Token> mark_tokens(const dialect::OutputFormat& format, const Tokenizer& tokenizer);
// What a request with tools is refused with: the template knows none, or writes calls in a way that
// we do not know.
Refusal check_tools(const ToolFields& tools,
                    const FormatFlags& flags,
                    const dialect::OutputFormat& format,
                    std::string_view chat_template);
// The constraint of tool_choice `required`, of a named tool and of strict tools: the grammar of the
// model's own format. Refuses a second constraint.
Refusal enforce_calls(const ChatReading& reading, ChatFields& fields);
// Whether the request asks something of the thinking before its answer: that it ends within a
// budget, or that a constraint begins behind it.
bool plans_thinking(const ChatReading& reading, const ChatFields& fields);

}  // namespace sluice
