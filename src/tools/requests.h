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

// A conversation through the model's template, with the words that begin the answer. `tools`: null,
// or a list as the API has it.
Result<std::vector<TextSegment>> render_chat(const Session& session,
                                             json::array messages,
                                             json::value tools = nullptr);
Result<std::vector<Token>> encode_chat(const Session& session, json::array messages);

// Fills in what no flag chose: the model's sampling, and a limit of tokens.
void resolve_sampling(const Session& session, bool templated, SamplingOptions& options);

// Positions that one sequence may have.
size_t context_of(Session& session);
// After an answer that a limit has cut: which one, and what raises it. `raise`: "--max-tokens N".
std::string cut_note(Session& session, size_t prompt, size_t output, const char* raise);

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
