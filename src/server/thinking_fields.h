// The request fields that say whether a model thinks before it answers, and for how long. Pure
// functions, any thread.
#pragma once

#include "server/fields.h"

namespace sluice {

// vLLM's thinking_token_budget and its other names, Anthropic's thinking {type, budget_tokens,
// display}, OpenRouter's reasoning {effort, max_tokens, enabled, exclude}. After the fields that
// sample and chat_template_kwargs, which come before these.
void read_thinking(Fields& fields, ChatFields& out);
// Tells a chat template whether to think, under both names that templates know. What is there
// already stays.
void set_thinking(json::object& template_kwargs, bool on);

}  // namespace sluice
