// Tokens to text as they arrive: gives out whole characters only. One per stream, used by one
// thread.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "base/token.h"
#include "text/tokenizer.h"

namespace sluice {

struct DetokenizeOptions {
  bool skip_special = true;          // control tokens give no text
  bool strip_leading_space = false;  // the one space that SentencePiece put before the first word
};

class Detokenizer {
 public:
  explicit Detokenizer(const Tokenizer& tokenizer, DetokenizeOptions options = {})
      : tokenizer_(&tokenizer), strip_(options.strip_leading_space), skip_(options.skip_special) {}

  // The text that this token completes: valid UTF-8, perhaps empty. Ill-formed bytes become U+FFFD,
  // one for each maximal subpart; of byte tokens (<0xE2>) one for each byte, as the tokenizers
  // library has it.
  std::string push(Token token);
  std::string push_bytes(std::string_view bytes);
  // What is left, as U+FFFD: an incomplete character. The detokenizer is then as new, but strips no
  // more.
  std::string flush();
  // Bytes held back until their character is complete; at most 3.
  size_t num_pending() const { return num_pending_; }

 private:
  std::string give_up_pending();

  const Tokenizer* tokenizer_;
  char pending_[4] = {};
  uint8_t num_pending_ = 0;
  bool strip_;
  bool skip_;
  bool by_byte_ = false;  // the last token was a byte token
  bool space_ = false;    // held back: the last one is no text to this tokenizer
};

// All at once. With strip_leading_space as the tokenizer adds it, encode's inverse for valid text.
// Byte tokens in a row that are not UTF-8 as a whole are each U+FFFD, as in the tokenizers library;
// a stream gives out the characters among them before it knows.
std::string detokenize(const Tokenizer& tokenizer,
                       std::span<const Token> tokens,
                       DetokenizeOptions options = {});

}  // namespace sluice
