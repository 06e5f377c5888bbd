// The request fields of OpenAI, Anthropic, Ollama, vLLM, llama.cpp, SGLang and TGI that this server
// knows, and what becomes of each. A field that would change the answer is honoured or refused,
// never ignored. docs/api.md shows the same table; a test compares them. Any thread.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace sluice {

enum class FieldFate : uint8_t {
  honoured,  // read by the endpoint's parser
  alias,     // stands for the field `note`
  refused,   // 400 with `note`, unless its value is one of `off`
  harmless,  // ignored: it changes nothing that is answered here, because of `note`
};

// Endpoints, as bits.
enum FieldPlace : uint8_t {
  kChat = 1,
  kText = 2,        // /v1/completions
  kEmbedding = 4,   // /v1/embeddings
  kGenerate = 8,    // the `parameters` of /models/NAME/generate
  kMessages = 16,   // /v1/messages; what is in no row is taken as by kChat
  kResponses = 32,  // /v1/responses; likewise
  kOllama = 64,     // /api/chat and /api/generate; likewise
};

struct KnownField {
  std::string_view name;
  uint8_t places;  // of FieldPlace
  FieldFate fate;
  std::string_view note;      // by fate, see above; honoured: what else to know, or empty
  std::string_view off = "";  // values, as JSON with bars between, that ask for nothing
};

inline constexpr size_t kNumFieldPlaces = 7;

std::span<const KnownField> known_fields();
// Null: nobody's that we know.
const KnownField* find_field(std::string_view name, FieldPlace place);
const char* fate_name(FieldFate fate);

}  // namespace sluice
