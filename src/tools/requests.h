// From options and text to a request that an engine takes: sampling checked, prompts encoded.
// Pure functions over a session.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "runtime/session.h"
#include "runtime/text_stream.h"
#include "server/chat_output.h"
#include "tools/commands.h"

namespace sluice {

// The message names the option: "--temperature must be ...".
Result<void> check_sampling(const SamplingSpec& spec);

// A conversation through the model's template, with the words that begin the answer. `tools`: null,
// or a list as the API has it.
Result<std::vector<TextSegment>> render_chat(const Session& session,
                                             json::array messages,
                                             json::value tools = nullptr);

struct EncodedPrompt {
  std::vector<Token> tokens;
  std::string end;  // the template's last words, which may open the model's thinking
};
Result<EncodedPrompt> encode_chat(const Session& session, json::array messages);

// Thinking that the prompt's end opened and nothing bounds; a constraint begins behind it.
Result<std::shared_ptr<const constrain::Thinking>> free_thinking(
    const Session& session, const dialect::ThinkFormat& format);

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
  // Takes thinking and answer apart where a constraint begins behind thinking that the prompt
  // opened; absent: the text is the answer.
  std::optional<ChatReading> reading;
};

// `special`: special tokens stay in the text.
Result<Prepared> prepare(const Session& session,
                         EncodedPrompt prompt,
                         const SamplingOptions& sampling,
                         bool special);

}  // namespace sluice
