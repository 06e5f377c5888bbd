#include "text/unicode.h"

#include <algorithm>
#include <iterator>
#include <vector>

namespace sluice {

namespace {

struct Decomposition {
  uint32_t whole, first, second;
};
struct Composition {
  uint32_t first, second, whole;
};
struct Compatibility {
  uint32_t whole;
  uint16_t at;
  uint8_t size;
};
struct CasePair {
  uint32_t upper, lower;
};

#include "text/unicode_tables.inc"

// The value packed into the low `bits` of the run that holds c; 0 before the first run.
template <size_t N>
uint32_t run_value(const uint32_t (&runs)[N], int bits, char32_t c) {
  uint32_t key = static_cast<uint32_t>(c) << bits | ((1u << bits) - 1);
  const uint32_t* it = std::upper_bound(std::begin(runs), std::end(runs), key);
  return it == std::begin(runs) ? 0 : it[-1] & ((1u << bits) - 1);
}

template <typename T, size_t N, typename Key>
const T* find_row(const T (&rows)[N], Key T::*key, char32_t c) {
  const T* it = std::lower_bound(std::begin(rows), std::end(rows), c,
                                 [key](const T& row, char32_t v) { return row.*key < v; });
  return it != std::end(rows) && it->*key == c ? it : nullptr;
}

constexpr uint32_t kBlock = 128;

uint8_t properties(char32_t c) {
  return c < 0x110000 ? kProperties[kPropertyBlock[c / kBlock] * kBlock + c % kBlock] : 0;
}

uint8_t combining_class(char32_t c) {
  return c < 0x300 ? 0 : static_cast<uint8_t>(run_value(kCombiningRuns, 8, c));
}

// Hangul syllables compose by arithmetic (Unicode 3.12).
constexpr char32_t kSBase = 0xAC00, kLBase = 0x1100, kVBase = 0x1161, kTBase = 0x11A7;
constexpr char32_t kLCount = 19, kVCount = 21, kTCount = 28, kSCount = kLCount * kVCount * kTCount;

struct Unit {
  char32_t c;
  uint8_t ccc;
};

void append_decomposed(char32_t c, std::vector<Unit>& out) {
  if (c - kSBase < kSCount) {
    char32_t s = c - kSBase;
    out.push_back({kLBase + s / (kVCount * kTCount), 0});
    out.push_back({kVBase + s % (kVCount * kTCount) / kTCount, 0});
    if (s % kTCount != 0) out.push_back({kTBase + s % kTCount, 0});
    return;
  }
  // Only the first half of a step decomposes further, at most three times.
  char32_t tail[8];
  int num_tail = 0;
  for (;;) {
    const Decomposition* it = find_row(kDecompositions, &Decomposition::whole, c);
    if (it == nullptr) break;
    if (it->second != 0) tail[num_tail++] = it->second;
    c = it->first;
  }
  out.push_back({c, combining_class(c)});
  while (num_tail > 0) {
    char32_t t = tail[--num_tail];
    out.push_back({t, combining_class(t)});
  }
}

// 0 when the pair has no composition.
char32_t composed(char32_t a, char32_t b) {
  if (a - kLBase < kLCount && b - kVBase < kVCount) {
    return kSBase + ((a - kLBase) * kVCount + (b - kVBase)) * kTCount;
  }
  if (a - kSBase < kSCount && (a - kSBase) % kTCount == 0 && b - kTBase - 1 < kTCount - 1) {
    return a + (b - kTBase);
  }
  const Composition* it =
      std::lower_bound(std::begin(kCompositions), std::end(kCompositions), Composition{a, b, 0},
                       [](const Composition& x, const Composition& y) {
                         return x.first != y.first ? x.first < y.first : x.second < y.second;
                       });
  bool found = it != std::end(kCompositions) && it->first == a && it->second == b;
  return found ? it->whole : 0;
}

void sort_marks(std::vector<Unit>& units) {
  for (size_t i = 0; i < units.size();) {
    size_t j = i;
    while (j < units.size() && units[j].ccc != 0) ++j;
    if (j - i > 1) {
      std::stable_sort(units.begin() + static_cast<ptrdiff_t>(i),
                       units.begin() + static_cast<ptrdiff_t>(j),
                       [](const Unit& a, const Unit& b) { return a.ccc < b.ccc; });
    }
    i = std::max(j, i + 1);
  }
}

// In place over canonically ordered units; returns the new count.
size_t compose(std::vector<Unit>& units) {
  constexpr size_t kNone = SIZE_MAX;
  size_t starter = kNone, out = 0;
  int last_ccc = -1;  // of the last unit kept after the starter; -1: none
  for (const Unit u : units) {
    if (starter != kNone && last_ccc < static_cast<int>(u.ccc)) {
      if (char32_t whole = composed(units[starter].c, u.c); whole != 0) {
        units[starter].c = whole;
        continue;
      }
    }
    if (u.ccc == 0) {
      starter = out;
      last_ccc = -1;
    } else {
      last_ccc = u.ccc;
    }
    units[out++] = u;
  }
  return out;
}

bool composes(NormalForm form) { return form == NormalForm::nfc || form == NormalForm::nfkc; }
bool is_compatible(NormalForm form) { return form == NormalForm::nfkc || form == NormalForm::nfkd; }

// The decomposition of c that the form begins with.
void append_form(NormalForm form, char32_t c, std::vector<Unit>& out) {
  const Compatibility* whole =
      is_compatible(form) ? find_row(kCompatibility, &Compatibility::whole, c) : nullptr;
  if (whole == nullptr) return append_decomposed(c, out);
  for (uint32_t i = 0; i < whole->size; ++i) {
    char32_t part = kCompatibilityPool[whole->at + i];
    out.push_back({part, combining_class(part)});
  }
}

bool nfc_suspect(char32_t c) { return run_value(kNfcSuspectRuns, 1, c) != 0; }

void append_nfc(std::string_view text, std::vector<Unit>& units, std::string& out) {
  units.clear();
  for (size_t pos = 0; pos < text.size();) {
    CodePoint p = code_point_at(text, pos);
    append_decomposed(p.value, units);
    pos += p.size;
  }
  sort_marks(units);
  size_t n = compose(units);
  for (size_t i = 0; i < n; ++i) append_utf8(out, units[i].c);
}

}  // namespace

Category category(char32_t c) { return static_cast<Category>(properties(c) & 31); }
bool is_word(char32_t c) { return (properties(c) & 64) != 0; }
bool is_numeric(char32_t c) { return (run_value(kLibraryRuns, 5, c) & 1) != 0; }
bool is_punctuation(char32_t c) { return (run_value(kLibraryRuns, 5, c) & 2) != 0; }
bool is_accent(char32_t c) { return (run_value(kLibraryRuns, 5, c) & 4) != 0; }
bool is_bert_accent(char32_t c) { return (run_value(kLibraryRuns, 5, c) & 8) != 0; }
bool is_bert_control(char32_t c) { return (run_value(kLibraryRuns, 5, c) & 16) != 0; }
uint32_t grapheme_properties(char32_t c) { return run_value(kGraphemeRuns, 7, c); }

CharClass char_class(char32_t c) {
  uint8_t p = properties(c);
  if ((p & 32) != 0) return CharClass::space;
  Category gc = static_cast<Category>(p & 31);
  if (gc >= Category::lu && gc <= Category::lo) return CharClass::letter;
  if (gc >= Category::mn && gc <= Category::me) return CharClass::mark;
  if (gc >= Category::nd && gc <= Category::no) return CharClass::number;
  return CharClass::other;
}

CodePoint code_point_at(std::string_view text, size_t pos) {
  if (pos >= text.size()) return {};
  auto byte = [&](size_t i) { return static_cast<uint8_t>(text[pos + i]); };
  uint8_t b = byte(0);
  if (b < 0x80) {
    CharClass cls = CharClass::other;
    if ((b | 0x20) >= 'a' && (b | 0x20) <= 'z') {
      cls = CharClass::letter;
    } else if (b >= '0' && b <= '9') {
      cls = CharClass::number;
    } else if (b == ' ' || (b >= 9 && b <= 13)) {
      cls = CharClass::space;
    }
    return {b, 1, cls};
  }
  CodePoint p;
  if (b < 0xE0) {
    p.size = 2;
    p.value = static_cast<char32_t>((b & 0x1F) << 6 | (byte(1) & 0x3F));
  } else if (b < 0xF0) {
    p.size = 3;
    p.value = static_cast<char32_t>((b & 0x0F) << 12 | (byte(1) & 0x3F) << 6 | (byte(2) & 0x3F));
  } else {
    p.size = 4;
    p.value = static_cast<char32_t>((b & 0x07) << 18 | (byte(1) & 0x3F) << 12 |
                                    (byte(2) & 0x3F) << 6 | (byte(3) & 0x3F));
  }
  p.cls = char_class(p.value);
  return p;
}

void append_utf8(std::string& out, char32_t c) {
  auto put = [&](char32_t b) { out.push_back(static_cast<char>(b)); };
  if (c < 0x80) {
    put(c);
  } else if (c < 0x800) {
    put(0xC0 | c >> 6), put(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    put(0xE0 | c >> 12), put(0x80 | (c >> 6 & 0x3F)), put(0x80 | (c & 0x3F));
  } else {
    put(0xF0 | c >> 18), put(0x80 | (c >> 12 & 0x3F)), put(0x80 | (c >> 6 & 0x3F));
    put(0x80 | (c & 0x3F));
  }
}

Utf8Step utf8_step(std::string_view s) {
  if (s.empty()) return {0, 0, true};
  uint8_t b = static_cast<uint8_t>(s[0]);
  if (b < 0x80) return {1, 0, false};
  uint32_t need = b >= 0xC2 && b <= 0xDF   ? 2
                  : b >= 0xE0 && b <= 0xEF ? 3
                  : b >= 0xF0 && b <= 0xF4 ? 4
                                           : 0;
  if (need == 0) return {0, 1, false};
  for (uint32_t i = 1; i < need; ++i) {
    if (i == s.size()) return {0, i, true};
    uint8_t c = static_cast<uint8_t>(s[i]);
    uint8_t lo = 0x80, hi = 0xBF;
    if (i == 1) {  // the second byte rules out overlong forms, surrogates and values above U+10FFFF
      if (b == 0xE0) lo = 0xA0;
      if (b == 0xED) hi = 0x9F;
      if (b == 0xF0) lo = 0x90;
      if (b == 0xF4) hi = 0x8F;
    }
    if (c < lo || c > hi) return {0, i, false};
  }
  return {need, 0, false};
}

std::optional<size_t> first_invalid_utf8(std::string_view s) {
  for (size_t pos = 0; pos < s.size();) {
    if (static_cast<uint8_t>(s[pos]) < 0x80) {
      ++pos;
      continue;
    }
    Utf8Step step = utf8_step(s.substr(pos));
    if (step.size == 0) return pos;
    pos += step.size;
  }
  return std::nullopt;
}

std::optional<std::string> to_nfc(std::string_view text) {
  // Only runs of suspects change, each together with the character before it: what is no suspect
  // does not join what precedes it.
  std::string out;
  std::vector<Unit> units;
  size_t done = 0;      // text[0, done) is in out
  size_t previous = 0;  // where the character before pos starts
  for (size_t pos = 0; pos < text.size();) {
    if (static_cast<uint8_t>(text[pos]) < 0xCC) {  // below U+0300 nothing is suspect
      previous = pos++;
      while (pos < text.size() && (static_cast<uint8_t>(text[pos]) & 0xC0) == 0x80) ++pos;
      continue;
    }
    CodePoint p = code_point_at(text, pos);
    if (!nfc_suspect(p.value)) {
      previous = pos;
      pos += p.size;
      continue;
    }
    size_t begin = std::max(done, previous);
    while (p.size != 0 && nfc_suspect(p.value)) p = code_point_at(text, pos += p.size);
    out.append(text, done, begin - done);
    append_nfc(text.substr(begin, pos - begin), units, out);
    done = previous = pos;
  }
  if (done == 0) return std::nullopt;
  out.append(text, done);
  if (out == text) return std::nullopt;
  return out;
}

bool is_boundary(NormalForm form, char32_t c) {
  if (c < 0x300) return true;
  const Compatibility* whole =
      is_compatible(form) ? find_row(kCompatibility, &Compatibility::whole, c) : nullptr;
  if (whole != nullptr) {
    c = kCompatibilityPool[whole->at];
  } else if (c - kSBase < kSCount) {
    c = kLBase;
  } else {
    while (const Decomposition* d = find_row(kDecompositions, &Decomposition::whole, c)) {
      c = d->first;
    }
  }
  return combining_class(c) == 0 && !(composes(form) && nfc_suspect(c));
}

void append_normal(NormalForm form, std::string_view text, std::string& out) {
  std::vector<Unit> units;
  for (size_t pos = 0; pos < text.size();) {
    CodePoint p = code_point_at(text, pos);
    append_form(form, p.value, units);
    pos += p.size;
  }
  sort_marks(units);
  size_t n = composes(form) ? compose(units) : units.size();
  for (size_t i = 0; i < n; ++i) append_utf8(out, units[i].c);
}

void append_lower(std::string& out, char32_t c) {
  if (c < 0x80) {
    out.push_back(static_cast<char>(c >= 'A' && c <= 'Z' ? c | 0x20 : c));
    return;
  }
  const CasePair* pair = find_row(kLower, &CasePair::upper, c);
  append_utf8(out, pair != nullptr ? pair->lower : c);
  if (c == 0x130) append_utf8(out, 0x307);
}

}  // namespace sluice
