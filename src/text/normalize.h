// What happens to text before it is split: the steps of a tokenizer's normalizer, as plain data.
// Pure functions over immutable steps.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/charsmap.h"
#include "text/regex.h"
#include "text/special_tokens.h"

namespace sluice {

// A literal string or, where not null, a regular expression.
struct TextPattern {
  std::string literal;
  std::shared_ptr<const Regex> regex;

  // All matches, left to right and apart.
  Result<void> find_all(std::string_view text,
                        RegexScratch& scratch,
                        std::vector<TextRange>& out) const;
};

struct NormalizerStep {
  enum class Kind : uint8_t {
    nfc,
    nfd,
    nfkc,
    nfkd,
    lowercase,
    strip,          // white space on the `left`, on the `right`
    strip_accents,  // drops marks
    replace,        // `pattern` by `content`
    prepend,        // `content` before text that is not empty
    charsmap,       // grapheme by grapheme, as the tokenizers library does
    bert,
    nmt,         // drops control characters, makes odd spaces plain
    byte_level,  // every byte as its printable character
    sentencepiece,
  };
  Kind kind = Kind::nfc;
  bool left = false, right = false;
  TextPattern pattern;
  std::string content;
  bool clean = false, chinese = false, accents = false, lower = false;  // bert
  // sentencepiece; the map may be null. `user_defined` symbols pass as they are.
  std::shared_ptr<const Charsmap> charsmap;
  std::shared_ptr<const SpecialTokens> user_defined;
  bool dummy_prefix = false, remove_extra_spaces = false, escape_spaces = false;
};

// A text on its way through the steps.
struct NormalText {
  std::string_view text;  // the caller's, or `storage`
  std::string storage;
  std::vector<uint8_t> trusted;  // per byte of text; empty: nobody asks
  bool at_start = false;         // the first byte stems from the first byte of the whole input
};

Result<void> normalize(const std::vector<NormalizerStep>& steps,
                       RegexScratch& scratch,
                       NormalText& text);

}  // namespace sluice
