#include "text/pretokenize.h"

#include "text/unicode.h"

namespace sluice {

namespace {

using Pattern = PreTokenizer::Pattern;

constexpr PreTokenizer kGpt2{Pattern::gpt2, 0, false, false, false};
constexpr PreTokenizer kDigitsGpt2{Pattern::digits_gpt2, 0, false, false, false};
constexpr PreTokenizer kLlama3{Pattern::llama3, 3, false, true, true};
constexpr PreTokenizer kDbrx{Pattern::llama3, 3, false, false, false};
constexpr PreTokenizer kQwen2{Pattern::llama3, 1, true, false, false};
constexpr PreTokenizer kStablelm2{Pattern::llama3, 1, false, false, false};
constexpr PreTokenizer kQwen35{Pattern::llama3_marks, 1, true, false, false};

struct NamedRow {
  std::string_view name;
  const PreTokenizer* row;
};

constexpr NamedRow kRows[] = {
    {"default", &kGpt2},
    {"gpt-2", &kGpt2},
    {"phi-2", &kGpt2},
    {"mpt", &kGpt2},
    {"olmo", &kGpt2},
    {"jais", &kGpt2},
    {"smollm", &kDigitsGpt2},
    {"starcoder", &kDigitsGpt2},
    {"refact", &kDigitsGpt2},
    {"command-r", &kDigitsGpt2},
    {"codeshell", &kDigitsGpt2},
    {"exaone", &kDigitsGpt2},
    {"llama3", &kLlama3},
    {"llama-v3", &kLlama3},
    {"llama-bpe", &kLlama3},
    {"falcon3", &kLlama3},
    {"pixtral", &kLlama3},
    {"lfm2", &kLlama3},
    {"dbrx", &kDbrx},
    {"smaug-bpe", &kDbrx},
    {"qwen2", &kQwen2},
    {"deepseek-r1-qwen", &kQwen2},
    {"stablelm2", &kStablelm2},
    {"qwen35", &kQwen35},
};

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

size_t llama3_end(const PreTokenizer& pre, std::string_view text, size_t pos) {
  const bool marks = pre.pattern == Pattern::llama3_marks;
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

void split_gpt2(std::string_view text, size_t base, std::vector<uint32_t>& ends) {
  for (size_t pos = 0; pos < text.size();) {
    pos = gpt2_end(text, pos);
    ends.push_back(static_cast<uint32_t>(base + pos));
  }
}

void split_digits_gpt2(std::string_view text, std::vector<uint32_t>& ends) {
  size_t begin = 0;
  for (size_t pos = 0; pos < text.size();) {
    CodePoint p = code_point_at(text, pos);
    if (p.cls == CharClass::number) {
      split_gpt2(text.substr(begin, pos - begin), begin, ends);
      begin = pos + p.size;
      ends.push_back(static_cast<uint32_t>(begin));
    }
    pos += p.size;
  }
  split_gpt2(text.substr(begin), begin, ends);
}

}  // namespace

const PreTokenizer* find_pre_tokenizer(std::string_view name) {
  for (const NamedRow& r : kRows) {
    if (r.name == name) return r.row;
  }
  return nullptr;
}

std::string known_pre_tokenizers() {
  std::string out;
  for (const NamedRow& r : kRows) {
    if (!out.empty()) out += ", ";
    out += r.name;
  }
  return out;
}

void pre_tokenize(const PreTokenizer& pre, std::string_view text, std::vector<uint32_t>& ends) {
  ends.clear();
  switch (pre.pattern) {
    case Pattern::gpt2:
      return split_gpt2(text, 0, ends);
    case Pattern::digits_gpt2:
      return split_digits_gpt2(text, ends);
    case Pattern::llama3:
    case Pattern::llama3_marks:
      for (size_t pos = 0; pos < text.size();) {
        pos = llama3_end(pre, text, pos);
        ends.push_back(static_cast<uint32_t>(pos));
      }
      return;
  }
}

}  // namespace sluice
