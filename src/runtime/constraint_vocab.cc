#include "runtime/constraint_vocab.h"

#include <algorithm>
#include <string_view>
#include <vector>

namespace sluice {

namespace {

// Control tokens that spell a part of one of `marks` are text too.
std::vector<std::string_view> token_texts(const Tokenizer& tokenizer,
                                          int vocab,
                                          std::initializer_list<std::string_view> marks) {
  std::vector<std::string_view> texts(static_cast<size_t>(vocab));
  const Token known = std::min<Token>(tokenizer.size(), vocab);
  for (Token t = 0; t < known; ++t) {
    std::string_view text = tokenizer.bytes(t);
    const bool is_text =
        !tokenizer.is_control(t) || std::ranges::any_of(marks, [&](std::string_view m) {
          return m.find(text) != std::string_view::npos;
        });
    if (is_text) texts[static_cast<size_t>(t)] = text;
  }
  return texts;
}

std::vector<Token> end_tokens(const Tokenizer& tokenizer, int vocab) {
  std::vector<Token> ends(tokenizer.eog().begin(), tokenizer.eog().end());
  std::erase_if(ends, [&](Token t) { return t < 0 || t >= vocab; });
  return ends;
}

}  // namespace

std::shared_ptr<const constrain::VocabTrie> constraint_vocab(const Tokenizer& tokenizer,
                                                             int vocab) {
  return std::make_shared<const constrain::VocabTrie>(token_texts(tokenizer, vocab, {}),
                                                      end_tokens(tokenizer, vocab));
}

std::shared_ptr<const constrain::ThinkMarks> think_marks(const Tokenizer& tokenizer,
                                                         int vocab,
                                                         std::string_view begin,
                                                         std::string_view end) {
  return std::make_shared<const constrain::ThinkMarks>(std::string(begin), std::string(end),
                                                       token_texts(tokenizer, vocab, {begin, end}),
                                                       end_tokens(tokenizer, vocab));
}

}  // namespace sluice
