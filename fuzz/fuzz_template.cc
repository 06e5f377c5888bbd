// Any bytes as a chat template: parsing and rendering end, within limits, with text or an error.
// A finding is also what takes very long for its steps (a step is about 60 ns; 100 times that with
// the sanitizers), or a rendering with more output than its limit. The time is the thread's own,
// and its limit generous: a busy or slow machine is no finding. Run with -malloc_limit_mb=64.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
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
               .max_new_bytes = 1 << 20,
               .max_call_depth = 32};
  return in;
}

}  // namespace

[[noreturn]] static void finding(const char* what, double value) {
  std::fprintf(stderr, "finding: %s (%g)\n", what, value);
  std::abort();
}

static double thread_seconds() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const sluice::TemplateInputs kInputs = make_inputs();
  double start = thread_seconds();
  auto parsed = sluice::ChatTemplate::parse(std::string(reinterpret_cast<const char*>(data), size));
  double took = thread_seconds() - start;
  if (took > 1 + 100e-6 * static_cast<double>(size)) finding("seconds to parse", took);
  if (!parsed) return 0;
  sluice::TemplateCost cost;
  start = thread_seconds();
  auto out = parsed->render(kInputs, &cost);
  took = thread_seconds() - start;
  if (took > 1 + 30e-6 * static_cast<double>(cost.steps)) finding("seconds to render", took);
  if (cost.steps > kInputs.limits.max_steps + 4096) {
    finding("steps", static_cast<double>(cost.steps));
  }
  if (!out) return 0;
  // Segments are non-empty and alternate in trust.
  size_t bytes = 0;
  for (size_t i = 0; i < out->size(); ++i) {
    if ((*out)[i].text.empty()) std::abort();
    if (i > 0 && (*out)[i].trusted == (*out)[i - 1].trusted) std::abort();
    bytes += (*out)[i].text.size();
  }
  if (bytes > kInputs.limits.max_output_bytes) {
    finding("bytes of output", static_cast<double>(bytes));
  }
  return 0;
}
