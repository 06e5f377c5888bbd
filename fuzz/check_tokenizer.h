// What the harnesses of tokenizer formats hold every tokenizer to.
#pragma once

#include <cstdlib>
#include <string>
#include <string_view>

#include "base/str.h"
#include "text/detokenizer.h"
#include "text/tokenizer.h"

namespace sluice {

// It encodes a few texts and `extra`, gives only tokens that it has, and decodes them to text.
inline void check_tokenizer(const Tokenizer& tokenizer, std::string_view extra) {
  const std::string texts[] = {"Hello, w\xC3\xB6rld 123  \n x", std::string(300, 'a'),
                               std::string(extra)};
  for (const std::string& text : texts) {
    for (bool trusted : {false, true}) {
      auto ids = tokenizer.encode(text, {.add_special = trusted}, trusted);
      if (!ids) continue;
      for (Token t : *ids) {
        if (!tokenizer.contains(t)) std::abort();
      }
      if (!valid_utf8(detokenize(tokenizer, *ids))) std::abort();
    }
  }
}

}  // namespace sluice
