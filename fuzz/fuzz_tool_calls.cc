// Any bytes as a model's output (the first byte names the format, the second how thinking is
// written): the events are the same for the whole text and for pieces of it, and the arguments of a
// complete call are a JSON object.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/str.h"
#include "dialect/output_parser.h"

namespace {

using namespace sluice;
using namespace sluice::dialect;

std::shared_ptr<const ToolSet> make_tools() {
  return std::make_shared<const ToolSet>(*ToolSet::read(*parse_json(R"([
      {"type": "function", "function": {"name": "f", "parameters": {
          "properties": {"s": {"type": "string"}, "n": {"type": "number"}}}}},
      {"type": "function", "function": {"name": "g"}}])")));
}

std::string text_of(const std::vector<OutputEvent>& events) {
  std::string all;
  const OutputEvent* last = nullptr;
  for (const OutputEvent& e : events) {
    bool joins = last && last->kind == e.kind && last->call == e.call;
    if (!joins) all += strf("\n%d %d %d ", static_cast<int>(e.kind), e.call, e.complete);
    all += e.text;
    last = &e;
  }
  return all;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::shared_ptr<const ToolSet> kTools = make_tools();
  if (size < 2) return 0;
  OutputParser::Options options;
  options.tools = kTools;
  options.format.tools = &tool_formats()[data[0] % tool_formats().size()];
  size_t think = data[1] % (think_formats().size() + 1);
  if (think > 0) options.format.think = &think_formats()[think - 1];
  options.thinking = data[1] >= 128;
  std::string_view text(reinterpret_cast<const char*>(data + 2), size - 2);
  std::vector<OutputEvent> whole, parts;
  OutputParser a(options), b(options);
  a.push(text, whole);
  a.finish(whole);
  for (size_t at = 0, n = 0; at < text.size(); at += n) {
    n = std::min<size_t>(1 + data[at % size] % 7, text.size() - at);
    b.push(text.substr(at, n), parts);
  }
  b.finish(parts);
  if (text_of(whole) != text_of(parts)) std::abort();
  std::string arguments;
  for (const OutputEvent& e : whole) {
    if (e.kind == OutputEvent::Kind::call_begin) arguments.clear();
    if (e.kind == OutputEvent::Kind::arguments) arguments += e.text;
    if (e.kind == OutputEvent::Kind::call_end && e.complete && valid_utf8(arguments)) {
      Result<json::value> value = parse_json(arguments);
      bool surrogate = arguments.find("\\u") != std::string::npos;  // half a pair is JSON to some
      if (!surrogate && (!value || !value->is_object())) std::abort();
    }
  }
  return 0;
}
