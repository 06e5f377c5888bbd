// Any bytes as a SentencePiece model: reading it ends, within limits, with a tokenizer or an error;
// a tokenizer encodes any text, and decodes what it gives.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>

#include "check_tokenizer.h"
#include "text/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view input(reinterpret_cast<const char*>(data), size);
  auto spec = sluice::spec_from_sentencepiece(input);
  if (!spec) return 0;
  auto tokenizer = sluice::Tokenizer::make(std::move(*spec));
  if (tokenizer)
    sluice::check_tokenizer(**tokenizer, input.substr(size - std::min<size_t>(size, 64)));
  return 0;
}
