#include "text/known_pattern.h"

#include "text/unicode.h"

namespace sluice {

namespace {

using Kind = KnownPattern::Kind;

struct KnownRegex {
  std::string_view regex;
  KnownPattern pattern;
};

// clang-format off
constexpr KnownRegex kKnown[] = {
    {R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)",
     {Kind::gpt2, 0, false}},
    {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
     {Kind::llama3, 3, false}},
    {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
     {Kind::llama3, 1, false}},
    {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
     {Kind::llama3_marks, 1, false}},
    {R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
     {Kind::o200k, 3, true}},
    {R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
     {Kind::o200k, 1, false}},
    {R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
     {Kind::deepseek3, 0, false}},
    // The same with line breaks as themselves.
    {"[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+",
     {Kind::deepseek3, 0, false}},
};
// clang-format on

bool is_newline(char32_t c) { return c == '\r' || c == '\n'; }

// Length of 's 't 're 've 'm 'll 'd at `pos` (which holds an apostrophe), else 0. Folding case, the
// long s (U+017F) counts as s, as it does for (?i:).
size_t contraction(std::string_view text, size_t pos, bool fold) {
  auto at = [&](size_t i) -> char {
    if (pos + i >= text.size()) return 0;
    char c = text[pos + i];
    return fold && c >= 'A' && c <= 'Z' ? static_cast<char>(c | 0x20) : c;
  };
  char a = at(1), b = at(2);
  if (a == 's' || a == 't' || a == 'm' || a == 'd') return 2;
  if ((a == 'r' || a == 'v') && b == 'e') return 3;
  if (a == 'l' && b == 'l') return 3;
  if (fold && a == '\xC5' && b == '\xBF') return 3;
  return 0;
}

// One pass over a run of white space that starts at a given place.
struct SpaceRun {
  size_t end = 0;
  size_t last = 0;          // where its last character starts
  size_t newlines_end = 0;  // after its last \r or \n; 0: has none
};

SpaceRun space_run(std::string_view text, size_t pos) {
  SpaceRun run{pos, pos, 0};
  for (CodePoint p = code_point_at(text, pos); p.cls == CharClass::space;
       p = code_point_at(text, run.end)) {
    run.last = run.end;
    run.end += p.size;
    if (is_newline(p.value)) run.newlines_end = run.end;
  }
  return run;
}

// \s+(?!\S)|\s+ : the last character of a run is left to what follows, unless it is all there is.
size_t space_end(std::string_view text, size_t pos, const SpaceRun& run) {
  return run.end == text.size() || run.last == pos ? run.end : run.last;
}

size_t gpt2_end(std::string_view text, size_t pos) {
  CodePoint p = code_point_at(text, pos);
  if (p.value == '\'') {
    if (size_t n = contraction(text, pos, false)) return pos + n;
  }
  size_t at = pos;
  if (p.value == ' ') p = code_point_at(text, ++at);
  if (p.size == 0 || p.cls == CharClass::space) return space_end(text, pos, space_run(text, pos));
  // Marks belong to [^\s\p{L}\p{N}].
  auto kind = [](CharClass c) { return c == CharClass::mark ? CharClass::other : c; };
  CharClass first = kind(p.cls);
  while (p.size != 0 && kind(p.cls) == first) {
    at += p.size;
    p = code_point_at(text, at);
  }
  return at;
}

size_t llama3_end(const KnownPattern& pre, std::string_view text, size_t pos) {
  const bool marks = pre.kind == Kind::llama3_marks;
  auto is_word = [&](const CodePoint& c) {
    return c.cls == CharClass::letter || (marks && c.cls == CharClass::mark);
  };
  auto is_symbol = [&](const CodePoint& c) {
    return c.size != 0 && (c.cls == CharClass::other || (!marks && c.cls == CharClass::mark));
  };
  auto word_end = [&](size_t at) {
    CodePoint c = code_point_at(text, at);
    while (is_word(c)) c = code_point_at(text, at += c.size);
    return at;
  };

  CodePoint p = code_point_at(text, pos);
  if (p.value == '\'') {
    if (size_t n = contraction(text, pos, true)) return pos + n;
  }
  if (is_word(p)) return word_end(pos);
  CodePoint q = code_point_at(text, pos + p.size);
  if (!is_newline(p.value) && p.cls != CharClass::number && is_word(q)) {
    return word_end(pos + p.size);
  }
  if (p.cls == CharClass::number) {
    size_t at = pos + p.size;
    for (int n = 1; n < pre.max_digits && q.cls == CharClass::number; ++n) {
      q = code_point_at(text, at += q.size);
    }
    return at;
  }
  if (is_symbol(p) || (p.value == ' ' && is_symbol(q))) {
    size_t at = pos + p.size;
    while (is_symbol(q)) q = code_point_at(text, at += q.size);
    while (is_newline(q.value)) q = code_point_at(text, at += q.size);
    return at;
  }
  SpaceRun run = space_run(text, pos);
  return run.newlines_end != 0 ? run.newlines_end : space_end(text, pos, run);
}

// Where a word of o200k ends that starts (after its prefix) at `pos`; npos: none is there.
// `lower`: it must have one of Y.
size_t o200k_word(std::string_view text, size_t pos, bool lower) {
  auto in_both = [](Category c) {
    return c == Category::lm || c == Category::lo || (c >= Category::mn && c <= Category::me);
  };
  size_t at = pos, last_both = text.npos;
  CodePoint p = code_point_at(text, at);
  Category c = category(p.value);
  for (; p.size != 0 && (c == Category::lu || c == Category::lt || in_both(c));
       c = category(p.value)) {
    at += p.size;
    if (in_both(c)) last_both = at;
    p = code_point_at(text, at);
  }
  if (!lower) return at > pos ? at : text.npos;
  if (p.size == 0 || c != Category::ll) return last_both;
  while (p.size != 0 && (c == Category::ll || in_both(c))) {
    p = code_point_at(text, at += p.size);
    c = category(p.value);
  }
  return at;
}

size_t o200k_end(const KnownPattern& pattern, std::string_view text, size_t pos) {
  CodePoint p = code_point_at(text, pos);
  const size_t next = pos + p.size;
  const bool prefix =
      !is_newline(p.value) && p.cls != CharClass::letter && p.cls != CharClass::number;
  for (bool lower : {true, false}) {
    size_t end = prefix ? o200k_word(text, next, lower) : text.npos;
    if (end == text.npos) end = o200k_word(text, pos, lower);
    if (end == text.npos) continue;
    bool quote = pattern.contractions && end < text.size() && text[end] == '\'';
    return quote ? end + contraction(text, end, true) : end;
  }
  CodePoint q = code_point_at(text, next);
  if (p.cls == CharClass::number) {
    size_t at = next;
    for (int n = 1; n < pattern.max_digits && q.cls == CharClass::number; ++n) {
      q = code_point_at(text, at += q.size);
    }
    return at;
  }
  auto is_symbol = [](const CodePoint& c) {
    return c.size != 0 && (c.cls == CharClass::other || c.cls == CharClass::mark);
  };
  if (is_symbol(p) || (p.value == ' ' && is_symbol(q))) {
    size_t at = next;
    while (is_symbol(q)) q = code_point_at(text, at += q.size);
    while (is_newline(q.value) || q.value == '/') q = code_point_at(text, at += q.size);
    return at;
  }
  SpaceRun run = space_run(text, pos);
  return run.newlines_end != 0 ? run.newlines_end : space_end(text, pos, run);
}

// pos itself where nothing matches.
size_t deepseek3_end(std::string_view text, size_t pos) {
  auto is_letter = [](char32_t c) { return (c | 0x20) >= 'a' && (c | 0x20) <= 'z'; };
  auto is_word_part = [](const CodePoint& c) {
    return c.cls == CharClass::letter || c.cls == CharClass::mark;
  };
  auto is_symbol = [](const CodePoint& c) {
    Category gc = category(c.value);
    return c.size != 0 && gc >= Category::pc && gc <= Category::so;
  };
  CodePoint p = code_point_at(text, pos);
  size_t at = pos + p.size;
  CodePoint q = code_point_at(text, at);
  if (p.value > ' ' && p.value < 0x7F && p.cls == CharClass::other && is_letter(q.value)) {
    while (is_letter(q.value)) q = code_point_at(text, at += q.size);
    return at;
  }
  bool prefix = !is_newline(p.value) && !is_symbol(p) && is_word_part(q);
  if (is_word_part(p) || prefix) {
    while (is_word_part(q)) q = code_point_at(text, at += q.size);
    return at;
  }
  if (is_symbol(p) || (p.value == ' ' && is_symbol(q))) {
    while (is_symbol(q)) q = code_point_at(text, at += q.size);
    while (is_newline(q.value)) q = code_point_at(text, at += q.size);
    return at;
  }
  if (p.cls != CharClass::space) return pos;
  SpaceRun run = space_run(text, pos);
  return run.newlines_end != 0 ? run.newlines_end : space_end(text, pos, run);
}

void split_deepseek3(std::string_view text, size_t base, std::vector<uint32_t>& ends) {
  size_t gap = 0;  // where what matches nothing begins
  for (size_t pos = 0; pos < text.size();) {
    size_t end = deepseek3_end(text, pos);
    if (end == pos) {
      pos += code_point_at(text, pos).size;
      continue;
    }
    if (gap < pos) ends.push_back(static_cast<uint32_t>(base + pos));
    ends.push_back(static_cast<uint32_t>(base + end));
    gap = pos = end;
  }
  if (gap < text.size()) ends.push_back(static_cast<uint32_t>(base + text.size()));
}

template <typename End>
void split_all(std::string_view text, size_t base, std::vector<uint32_t>& ends, End end_at) {
  for (size_t pos = 0; pos < text.size();) {
    pos = end_at(pos);
    ends.push_back(static_cast<uint32_t>(base + pos));
  }
}

}  // namespace

std::optional<KnownPattern> find_known_pattern(std::string_view regex) {
  for (const KnownRegex& k : kKnown) {
    if (k.regex == regex) return k.pattern;
  }
  return std::nullopt;
}

void split_known(const KnownPattern& pattern,
                 std::string_view text,
                 size_t base,
                 std::vector<uint32_t>& ends) {
  switch (pattern.kind) {
    case Kind::gpt2:
      return split_all(text, base, ends, [&](size_t pos) { return gpt2_end(text, pos); });
    case Kind::llama3:
    case Kind::llama3_marks:
      return split_all(text, base, ends,
                       [&](size_t pos) { return llama3_end(pattern, text, pos); });
    case Kind::o200k:
      return split_all(text, base, ends, [&](size_t pos) { return o200k_end(pattern, text, pos); });
    case Kind::deepseek3:
      return split_deepseek3(text, base, ends);
  }
}

}  // namespace sluice
