// The bodies of Ollama's /api/chat and /api/generate as chat requests. Pure functions, any thread.
#pragma once

#include "server/openai.h"

namespace sluice {

// A model is also known by NAME:latest. `name` becomes NAME.
void strip_tag(std::string& name);

// Both stream unless they say otherwise. Fields that are not Ollama's are those of
// /v1/chat/completions. Absent messages (`out.messages` empty) only ask whether the model is there.
Refusal parse_ollama_chat(const json::value& body, const RequestLimits& limits, ChatFields& out);

struct OllamaGenerateFields {
  ChatFields chat;  // the prompt as a message, unless `raw`
  std::string prompt;
  bool raw = false;  // the prompt goes to the model as it is
};
Refusal parse_ollama_generate(const json::value& body,
                              const RequestLimits& limits,
                              OllamaGenerateFields& out);

// The body of /api/embed as one of /v1/embeddings.
Refusal parse_ollama_embed(const json::value& body,
                           const RequestLimits& limits,
                           EmbeddingFields& out);

}  // namespace sluice
