// Anthropic's request bodies as chat requests. Pure functions, any thread.
#pragma once

#include "server/openai.h"

namespace sluice {

// The body of /v1/messages; `counting`: of /v1/messages/count_tokens, which needs no max_tokens.
// Fields that are not Anthropic's are those of /v1/chat/completions.
Refusal parse_messages(const json::value& body,
                       const RequestLimits& limits,
                       bool counting,
                       ChatFields& out);

}  // namespace sluice
