// The patterns that most tokenizers split by, each as a hand-written equivalent of its regular
// expression: linear in the text, without a regular-expression engine. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace sluice {

struct KnownPattern {
  enum class Kind : uint8_t {
    // 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
    gpt2,
    // (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,max_digits}
    // | ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
    llama3,
    // llama3 with [\p{L}\p{M}]+ for \p{L}+ and [^\s\p{L}\p{M}\p{N}]+ for [^\s\p{L}\p{N}]+
    llama3_marks,
    // [^\r\n\p{L}\p{N}]?X*Y+C?|[^\r\n\p{L}\p{N}]?X+Y*C?|\p{N}{1,max_digits}
    // | ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+
    // X = [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}], Y = [\p{Ll}\p{Lm}\p{Lo}\p{M}], C = llama3's first part,
    // where `contractions`
    o200k,
    // P[A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)
    // |\s+, P being ASCII punctuation. Numbers and control characters match nothing.
    deepseek3,
  };
  Kind kind = Kind::gpt2;
  int max_digits = 0;
  bool contractions = false;
};

// By the exact text of the regular expression.
std::optional<KnownPattern> find_known_pattern(std::string_view regex);

// Appends to `ends` the end of every piece of `text` (valid UTF-8), each plus `base`; what the
// pattern does not match is a piece, too.
void split_known(const KnownPattern& pattern,
                 std::string_view text,
                 size_t base,
                 std::vector<uint32_t>& ends);

}  // namespace sluice
