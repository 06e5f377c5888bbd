// Any bytes as a tokenizer.json: reading it ends, within limits, with a tokenizer or an error; a
// tokenizer encodes any text, and decodes what it gives.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "base/str.h"
#include "text/detokenizer.h"
#include "text/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view input(reinterpret_cast<const char*>(data), size);
  // What follows a NUL is text.
  std::string_view json = input.substr(0, input.find('\0'));
  std::string_view tail = json.size() < size ? input.substr(json.size() + 1) : json;
  auto spec = sluice::spec_from_json(json);
  if (!spec) return 0;
  auto tokenizer = sluice::Tokenizer::make(std::move(*spec));
  if (!tokenizer) return 0;
  const std::string texts[] = {"Hello, w\xC3\xB6rld 123  \n x", std::string(300, 'a'),
                               std::string(tail.substr(0, 512))};
  for (const std::string& text : texts) {
    for (bool trusted : {false, true}) {
      auto ids = (*tokenizer)->encode(text, {.add_special = trusted}, trusted);
      if (!ids) continue;
      for (sluice::Token t : *ids) {
        if (!(*tokenizer)->contains(t)) std::abort();
      }
      if (!sluice::valid_utf8(sluice::detokenize(**tokenizer, *ids))) std::abort();
    }
  }
  return 0;
}
