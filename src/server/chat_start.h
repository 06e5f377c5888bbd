// What the APIs that answer conversations share: from checked fields to a generation, and from its
// output to parts. Io threads.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "server/generation.h"

namespace sluice {

// Renders, tokenises and starts a chat; answers the call when something is wrong. `answer` writes
// it.
void start_chat(Service& service,
                Call call,
                ChatFields fields,
                const std::function<std::unique_ptr<Answer>(ChatReading)>& answer);
// Reads a choice's text by the model's format, with ids of calls that begin with `id`; null: there
// is nothing to look for.
std::unique_ptr<ChatOutput> read_output(Service& service,
                                        const ChatReading& reading,
                                        const char* id);
// Parts produced since the previous call.
std::vector<OutputPart> take_parts(Choice& choice);

}  // namespace sluice
