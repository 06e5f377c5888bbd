// Splits text into the pieces that a model tokenises one by one: the steps of a pre-tokenizer, as
// plain data. Linear in the text, no recursion. Pure functions over immutable steps.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/known_pattern.h"
#include "text/normalize.h"

namespace sluice {

// What becomes of the matches that a split is made at.
enum class SplitBehavior : uint8_t { removed, isolated, with_previous, with_next, contiguous };

struct PreTokenizerStep {
  enum class Kind : uint8_t {
    known,             // `known`, every match a piece
    split,             // at matches of `pattern`, or (`invert`) between them
    digits,            // every number alone or, under `contiguous`, runs of them
    punctuation,       // at punctuation characters
    whitespace,        // \w+|[^\w\s]+ are pieces, white space goes
    whitespace_split,  // white space goes
    bert,              // white space goes, every punctuation character is a piece
    fixed_length,      // `length` characters each
    prefix_space,      // a space before every piece that has none
    byte_level,        // every byte as its printable character
    metaspace,  // spaces as `replacement`, perhaps one more in front, perhaps a split at them
  };
  enum class Prepend : uint8_t { never, first, always };

  Kind kind = Kind::known;
  KnownPattern known;
  TextPattern pattern;
  SplitBehavior behavior = SplitBehavior::isolated;
  bool invert = false;
  size_t length = 1;
  std::string replacement;  // metaspace: one character
  Prepend prepend = Prepend::never;
  bool split = true;  // metaspace
};

// Pieces lie end to end in `text`.
struct Pieces {
  std::string_view text;  // the caller's, or `storage`
  std::string storage;
  std::vector<uint32_t> ends;  // ascending, no piece is empty; the last is text.size()
  bool at_start = false;       // the first piece begins where the whole input does
};

// The caller sets `text` (valid UTF-8), `ends` to its one end, and `at_start`.
Result<void> pre_tokenize(const std::vector<PreTokenizerStep>& steps,
                          RegexScratch& scratch,
                          Pieces& pieces);

// A pre-tokenizer that GGUF files name (tokenizer.ggml.pre).
struct NamedPreTokenizer {
  std::vector<PreTokenizerStep> steps;  // without byte_level
  bool nfc = false;                     // the text is normalised to NFC first
  bool ignore_merges = false;           // a piece that is a token is that token
  bool add_bos = false;                 // where the file does not say
};
// nullopt for an unknown name.
std::optional<NamedPreTokenizer> find_pre_tokenizer(std::string_view name);
std::string known_pre_tokenizers();  // "gpt-2, llama-bpe, ..."

}  // namespace sluice
