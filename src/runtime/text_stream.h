// One choice's output as text: tokens in, whole characters out, held back while they may belong to
// a stop string. Used by one thread.
#pragma once

#include <span>
#include <string>

#include "core/events.h"
#include "text/detokenizer.h"
#include "text/tokenizer.h"

namespace sluice {

class TextStream {
 public:
  struct Options {
    bool skip_special = true;
    bool strip_leading_space = false;
    bool include_stop = false;      // keep the stop string in the text
    std::span<const Token> keep{};  // control tokens that skip_special leaves, sorted
  };
  TextStream(const Tokenizer& tokenizer, Options options);

  // The text that this event releases. With a finish everything left comes out.
  std::string take(const Event& event);

 private:
  bool shows(Token control) const;

  const Tokenizer* tokenizer_;
  Options options_;
  Detokenizer detokenizer_;
  std::string held_;  // bytes not yet given out
};

}  // namespace sluice
