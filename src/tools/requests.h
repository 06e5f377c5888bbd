// From options and text to a request that an engine takes: sampling checked, prompts encoded.
// Pure functions over a session.
#pragma once

#include <string>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "runtime/session.h"
#include "runtime/text_stream.h"
#include "tools/commands.h"

namespace sluice {

// The message names the option: "--temperature must be ...".
Result<void> check_sampling(const SamplingSpec& spec);

// A conversation through the model's template, with the words that begin the answer.
Result<std::vector<Token>> encode_chat(const Session& session, json::array messages);

struct Prepared {
  std::vector<Token> prompt;
  Request request;
  TextStream::Options text;
};

// `special`: special tokens stay in the text.
Result<Prepared> prepare(const Session& session,
                         std::vector<Token> prompt,
                         const SamplingOptions& sampling,
                         bool special);

}  // namespace sluice
