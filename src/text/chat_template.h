// A model's chat template: the Jinja program that turns a conversation into prompt text.
// Immutable after parse(); render() may run on several threads at once. Follows jinja2 as
// `transformers` configures it (immutable sandbox, trim_blocks, lstrip_blocks, loop controls).
#pragma once

#include <chrono>
#include <cstdint>
#include <ctime>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/json.h"
#include "base/result.h"
#include "text/segment.h"

namespace sluice {

namespace jinja {
struct Program;
}

// A rendering that passes a limit fails. Steps and memory grow with the inputs: a step for each 8
// bytes of their values, and 8 times their memory.
struct TemplateLimits {
  uint64_t max_steps = 600'000;        // 60 to 160 ns each; text costs one per 32 to 256 bytes
  size_t max_output_bytes = 8u << 20;  // of the rendered prompt
  size_t max_memory_bytes = size_t{64} << 20;  // of all values alive at once, inputs included
  size_t max_new_bytes = 8u << 20;             // of those that the rendering makes
  int max_call_depth = 64;                     // macros and recursive loops
  Time max_time = std::chrono::seconds(1);     // for slow machines: steps end first
};

// What a rendering used.
struct TemplateCost {
  uint64_t steps = 0;
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
  const Clock* clock = nullptr;  // for limits.max_time; null: the machine's
};

class ChatTemplate {
 public:
  static Result<ChatTemplate> parse(std::string source);

  // Segments alternate in trust; empty text gives none.
  Result<std::vector<TextSegment>> render(const TemplateInputs& in,
                                          TemplateCost* cost = nullptr) const;

  const std::string& source() const { return *source_; }

 private:
  ChatTemplate() = default;
  std::shared_ptr<const std::string> source_;
  std::shared_ptr<const jinja::Program> program_;
};

// All segments as one string.
std::string joined(const std::vector<TextSegment>& segments);

}  // namespace sluice
