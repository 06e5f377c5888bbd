// The request fields of tool calls and reasoning, and what messages say about earlier calls. Pure
// functions, any thread.
#pragma once

#include "server/fields.h"

namespace sluice {

// tools, tool_choice, parallel_tool_calls, include_reasoning and the like.
void read_tools(Fields& fields, ChatFields& out);
// tool_calls, tool_call_id and reasoning of message number `at`, in the form that chat templates
// take: arguments as an object, reasoning as reasoning_content. False: refused.
bool read_turn(Fields& fields, json::object& message, size_t at);

}  // namespace sluice
