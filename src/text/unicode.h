// Code points, their classes and normal forms: the part of Unicode that tokenizers need. Pure
// functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace sluice {

// \p{L}, \p{N}, \p{M}, \s (White_Space) of regular expressions; no character is in two of them.
enum class CharClass : uint8_t { other = 0, letter = 1, number = 2, mark = 3, space = 4 };

// clang-format off
enum class Category : uint8_t {
  cn, cc, cf, co, cs, lu, ll, lt, lm, lo, mn, mc, me, nd, nl,
  no, pc, pd, ps, pe, pi, pf, po, sm, sc, sk, so, zs, zl, zp,
};
// clang-format on

struct CodePoint {
  char32_t value = 0;
  uint32_t size = 0;  // bytes in UTF-8; 0 at the end of the text
  CharClass cls = CharClass::other;
};

CharClass char_class(char32_t c);
Category category(char32_t c);
// A word character of Rust's \w: alphabetic, mark, decimal digit, connector or joiner.
bool is_word(char32_t c);

// Sets as the library that defines tokenizer.json has them (parts of it follow Unicode 8).
bool is_numeric(char32_t c);       // Digits
bool is_punctuation(char32_t c);   // Punctuation, BertPreTokenizer; all ASCII symbols are in it
bool is_accent(char32_t c);        // StripAccents
bool is_bert_accent(char32_t c);   // BertNormalizer: strip_accents
bool is_bert_control(char32_t c);  // BertNormalizer: clean_text drops it

// Packed as kGraphemeRuns of unicode_tables.inc says; for graphemes.cc.
uint32_t grapheme_properties(char32_t c);

// The code point at byte `pos` of valid UTF-8; size 0 when pos is the end.
CodePoint code_point_at(std::string_view text, size_t pos);

void append_utf8(std::string& out, char32_t c);

// Looks at the sequence that starts s. size > 0: well-formed, that many bytes. size == 0: `bad`
// bytes are the maximal subpart of an ill-formed sequence (Unicode 3.9), or, where `truncated`, the
// beginning of a sequence that more bytes could complete.
struct Utf8Step {
  uint32_t size = 0;
  uint32_t bad = 0;
  bool truncated = false;
};
Utf8Step utf8_step(std::string_view s);

// Byte offset of the first ill-formed sequence.
std::optional<size_t> first_invalid_utf8(std::string_view s);

// Canonical composition (NFC) of valid UTF-8; nullopt where the text is NFC already, the usual
// case.
std::optional<std::string> to_nfc(std::string_view text);

enum class NormalForm : uint8_t { nfc, nfd, nfkc, nfkd };
// Appends the normal form of valid UTF-8. Linear but for sorting runs of marks.
void append_normal(NormalForm form, std::string_view text, std::string& out);
// True where text may be cut before c and each part brought to the form on its own.
bool is_boundary(NormalForm form, char32_t c);
// Lower case, one character at a time.
void append_lower(std::string& out, char32_t c);

}  // namespace sluice
