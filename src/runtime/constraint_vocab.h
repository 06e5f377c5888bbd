// A model's vocabulary as constraints see it.
#pragma once

#include <memory>

#include "constrain/think_marks.h"
#include "constrain/vocab_trie.h"
#include "text/tokenizer.h"

namespace sluice {

// Of `vocab` ids, which are all that the model can sample. Control tokens, and ids that the
// tokeniser does not know, stand for no text; end-of-text ids end an output.
std::shared_ptr<const constrain::VocabTrie> constraint_vocab(const Tokenizer& tokenizer, int vocab);
// The same ids as thinking sees them: control tokens that spell a part of a mark are text.
std::shared_ptr<const constrain::ThinkMarks> think_marks(const Tokenizer& tokenizer,
                                                         int vocab,
                                                         std::string_view begin,
                                                         std::string_view end);

}  // namespace sluice
