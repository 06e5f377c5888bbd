#include "runtime/constraint_vocab.h"

#include <algorithm>
#include <string_view>
#include <vector>

namespace sluice {

std::shared_ptr<const constrain::VocabTrie> constraint_vocab(const Tokenizer& tokenizer,
                                                             int vocab) {
  std::vector<std::string_view> bytes(static_cast<size_t>(vocab));
  const Token known = std::min<Token>(tokenizer.size(), vocab);
  for (Token t = 0; t < known; ++t) {
    if (!tokenizer.is_control(t)) bytes[static_cast<size_t>(t)] = tokenizer.bytes(t);
  }
  std::vector<Token> ends(tokenizer.eog().begin(), tokenizer.eog().end());
  std::erase_if(ends, [&](Token t) { return t < 0 || t >= vocab; });
  return std::make_shared<const constrain::VocabTrie>(bytes, ends);
}

}  // namespace sluice
