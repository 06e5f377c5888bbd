// A model's vocabulary as constraints see it.
#pragma once

#include <memory>

#include "constrain/vocab_trie.h"
#include "text/tokenizer.h"

namespace sluice {

// Of `vocab` ids, which are all that the model can sample. Control tokens, and ids that the
// tokeniser does not know, stand for no text; end-of-text ids end an output.
std::shared_ptr<const constrain::VocabTrie> constraint_vocab(const Tokenizer& tokenizer, int vocab);

}  // namespace sluice
