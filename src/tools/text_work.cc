#include "tools/text_work.h"

#include "base/str.h"

namespace sluice {

std::unique_ptr<Tokenizer> numbered_words(int vocab) {
  VocabSpec spec;
  spec.kind = VocabSpec::Kind::spm;
  spec.tokens.emplace_back("<unk>");
  spec.types.push_back(TokenType::unknown);
  for (int t = 1; t < vocab; ++t) {
    spec.tokens.push_back(strf("\u2581word%d", t));
    spec.types.push_back(TokenType::normal);
  }
  spec.scores.assign(spec.tokens.size(), 0);
  spec.unk = 0;
  return std::move(Tokenizer::make(std::move(spec)).value());
}

}  // namespace sluice
