// Splits text into the pieces that byte-level BPE merges within: for each known pre-tokenizer, a
// hand-written equivalent of its regular expression. Linear in the text, no recursion. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace sluice {

// One row per pattern; several names in model files may share a row.
struct PreTokenizer {
  enum class Pattern : uint8_t {
    // 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
    gpt2,
    // every \p{N} alone first, then gpt2 on what lies between
    digits_gpt2,
    // (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,max_digits}
    // | ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
    llama3,
    // llama3 with [\p{L}\p{M}]+ for \p{L}+ and [^\s\p{L}\p{M}\p{N}]+ for [^\s\p{L}\p{N}]+
    llama3_marks,
  };
  Pattern pattern;
  int max_digits;      // llama3: length of a run of digits
  bool nfc;            // the text is normalised to NFC first
  bool ignore_merges;  // a piece that is a token is that token, whatever the merges say
  bool add_bos;        // where the file does not say
};

// nullptr for an unknown name.
const PreTokenizer* find_pre_tokenizer(std::string_view name);
std::string known_pre_tokenizers();  // "gpt-2, llama-bpe, ..."

// Replaces `ends` by the end offset of every piece of `text` (valid UTF-8), ascending; the last is
// text.size().
void pre_tokenize(const PreTokenizer& pre, std::string_view text, std::vector<uint32_t>& ends);

}  // namespace sluice
