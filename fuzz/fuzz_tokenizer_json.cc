// Any bytes as a tokenizer.json: reading it ends, within limits, with a tokenizer or an error; a
// tokenizer encodes any text, and decodes what it gives.
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>

#include "check_tokenizer.h"
#include "text/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view input(reinterpret_cast<const char*>(data), size);
  // What follows a NUL is text.
  std::string_view json = input.substr(0, input.find('\0'));
  std::string_view tail = json.size() < size ? input.substr(json.size() + 1) : json;
  auto spec = sluice::spec_from_json(json);
  if (!spec) return 0;
  auto tokenizer = sluice::Tokenizer::make(std::move(*spec));
  if (tokenizer) sluice::check_tokenizer(**tokenizer, tail.substr(0, 512));
  return 0;
}
