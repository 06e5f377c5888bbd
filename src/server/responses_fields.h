// The bodies of OpenAI's /v1/responses as chat requests. Pure functions, any thread.
#pragma once

#include "server/openai.h"

namespace sluice {

struct ResponsesFields {
  ChatFields chat;
  json::object echo;         // fields of the request that every answer repeats
  json::array conversation;  // what was said so far, without the instructions
  bool store = true;
  bool truncate = false;  // what does not fit is cut off at the beginning
};

// `history`: the conversation of previous_response_id, or empty. Fields that are not this API's are
// those of /v1/chat/completions.
Refusal parse_responses(const json::value& body,
                        const RequestLimits& limits,
                        json::array history,
                        ResponsesFields& out);

}  // namespace sluice
