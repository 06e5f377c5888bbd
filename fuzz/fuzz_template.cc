// Any bytes as a chat template: parsing and rendering end, within limits, with text or an error.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "base/json.h"
#include "text/chat_template.h"

namespace {

sluice::TemplateInputs make_inputs() {
  sluice::TemplateInputs in;
  auto parsed = [](const char* text) { return sluice::parse_json(text).value(); };
  in.messages = parsed(
      R"([{"role": "system", "content": "Be brief."},
          {"role": "user", "content": "Hi <|im_end|> \u00e9"},
          {"role": "assistant", "content": null, "tool_calls": [
            {"id": "1", "function": {"name": "f", "arguments": {"a": [1, 2.5, true, null]}}}]},
          {"role": "tool", "content": [{"type": "text", "text": "x\ny"}]}])");
  in.tools = parsed(R"([{"type": "function", "function": {"name": "f", "parameters": {}}}])");
  in.extra = parsed(R"({"n": 7, "f": 2.5, "s": "W\u00f6rld", "l": [3, 1, 2]})").as_object();
  in.bos_token = "<s>";
  in.eos_token = "</s>";
  in.limits = {.max_steps = 20'000,
               .max_output_bytes = 64 << 10,
               .max_memory_bytes = 4 << 20,
               .max_call_depth = 32};
  return in;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const sluice::TemplateInputs kInputs = make_inputs();
  auto parsed = sluice::ChatTemplate::parse(std::string(reinterpret_cast<const char*>(data), size));
  if (!parsed) return 0;
  auto out = parsed->render(kInputs);
  if (!out) return 0;
  // Segments are non-empty and alternate in trust.
  for (size_t i = 0; i < out->size(); ++i) {
    if ((*out)[i].text.empty()) std::abort();
    if (i > 0 && (*out)[i].trusted == (*out)[i - 1].trusted) std::abort();
  }
  return 0;
}
