// A model's chat template: the Jinja program that turns a conversation into prompt text.
// Immutable after parse(); render() may run on several threads at once. Follows jinja2 as
// `transformers` configures it (immutable sandbox, trim_blocks, lstrip_blocks, loop controls).
#pragma once

#include <cstdint>
#include <ctime>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "text/segment.h"

namespace sluice {

namespace jinja {
struct Program;
}

struct TemplateLimits {
  uint64_t max_steps = 1'000'000;              // evaluation steps; text costs one per 256 bytes
  size_t max_output_bytes = 8u << 20;          // of the rendered prompt
  size_t max_memory_bytes = size_t{64} << 20;  // of all values alive at once
  int max_call_depth = 64;                     // macros and recursive loops
};

// What the template sees. Strings of messages, tools, documents and extra are untrusted in the
// output; the template's own literals and the special tokens are trusted.
struct TemplateInputs {
  json::value messages;
  json::value tools;      // null: none
  json::value documents;  // null: none
  json::object extra;     // further variables by name; they win over the special tokens
  bool add_generation_prompt = true;
  std::string bos_token, eos_token;
  std::vector<std::pair<std::string, std::string>>
      special_tokens;  // others: {"pad_token", "<pad>"}
  std::tm now{};       // local time, for strftime_now()
  TemplateLimits limits;
};

class ChatTemplate {
 public:
  static Result<ChatTemplate> parse(std::string source);

  // Segments alternate in trust; empty text gives none.
  Result<std::vector<TextSegment>> render(const TemplateInputs& in) const;

  const std::string& source() const { return *source_; }

 private:
  ChatTemplate() = default;
  std::shared_ptr<const std::string> source_;
  std::shared_ptr<const jinja::Program> program_;
};

// All segments as one string.
std::string joined(const std::vector<TextSegment>& segments);

}  // namespace sluice
