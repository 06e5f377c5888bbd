#include "constrain/pattern.h"

#include <algorithm>
#include <memory>
#include <optional>

#include "base/str.h"

namespace sluice::constrain {

namespace {

CodeSet digit_set() { return {{'0', '9'}}; }
CodeSet word_set() { return {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}}; }
// White space by both ECMA-262 and the languages that other validators are written in: what only
// one of them takes for it is in neither \s nor \S.
CodeSet space_set() {
  return {{9, 13},          {' ', ' '},       {0xA0, 0xA0},     {0x1680, 0x1680}, {0x2000, 0x200A},
          {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F}, {0x3000, 0x3000}};
}
CodeSet not_space_set() {
  CodeSet s = space_set();
  s.add(0x1C, 0x1F), s.add(0x85, 0x85), s.add(0xFEFF, 0xFEFF);
  return s.inverse();
}
CodeSet dot_set() { return CodeSet{{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}}.inverse(); }

struct Term;
using Terms = std::vector<Term>;

struct Term {
  enum class Kind : uint8_t { chars, text, group, begin, end, look } kind;
  CodeSet chars;
  std::string_view text{};     // characters one after the other
  std::vector<Terms> options;  // of a group or lookahead
  bool negative = false;
  uint32_t min = 1, max = 1;
};

class PatternReader {
 public:
  PatternReader(std::string_view text, int max_depth) : text_(text), max_depth_(max_depth) {}

  Result<std::vector<Terms>> read() {
    Result<std::vector<Terms>> options = read_options(0);
    if (options && at_ < text_.size()) return wrong("unbalanced )");
    return options;
  }

  Error wrong(std::string what) const {
    return {400, strf("pattern %s: %s at byte %zu", quote(text_).c_str(), what.c_str(), at_)};
  }

 private:
  Result<std::vector<Terms>> read_options(int depth) {
    if (depth > max_depth_) return wrong("groups are nested too deep");
    std::vector<Terms> options(1);
    while (at_ < text_.size() && text_[at_] != ')') {
      if (text_[at_] == '|') {
        ++at_;
        options.emplace_back();
        continue;
      }
      Result<Term> term = read_term(depth);
      if (!term) return term.error();
      options.back().push_back(std::move(*term));
    }
    return options;
  }

  Result<Term> read_term(int depth) {
    Term term{.kind = Term::Kind::chars, .chars = {}, .options = {}};
    char c = text_[at_];
    if (c == '^' || c == '$') {
      ++at_;
      term.kind = c == '^' ? Term::Kind::begin : Term::Kind::end;
      return term;
    }
    if (c == '(') {
      if (auto error = read_group(term, depth)) return *error;
    } else if (c == '[') {
      Result<CodeSet> set = read_class(text_, at_);
      if (!set) return wrong(set.error().message);
      term.chars = *set;
    } else if (c == '.') {
      ++at_;
      term.chars = dot_set();
    } else if (c == '\\') {
      Result<CodeSet> set = read_escape(text_, at_, Place::outside);
      if (!set) return wrong(set.error().message);
      term.chars = *set;
    } else if (c == '*' || c == '+' || c == '?') {
      return wrong(strf("nothing to repeat before %c", c));
    } else if (read_text(term)) {
      return term;
    }
    if (auto error = read_quantifier(term)) return *error;
    return term;
  }

  // Characters up to the next one that means something; false: a single one that is repeated.
  bool read_text(Term& term) {
    constexpr std::string_view kMeaning = "\\^$.[()*+?{|", kRepeats = "*+?{";
    const size_t begin = at_;
    size_t last = at_;
    uint32_t code = 0;
    do {
      last = at_;
      code = next_code(text_, at_);
    } while (at_ < text_.size() && kMeaning.find(text_[at_]) == kMeaning.npos);
    if (at_ < text_.size() && kRepeats.find(text_[at_]) != kRepeats.npos) {
      if (last == begin) {
        term.chars.add(code, code);
        return false;
      }
      at_ = last;
    }
    term.kind = Term::Kind::text;
    term.text = text_.substr(begin, at_ - begin);
    return true;
  }

  std::optional<Error> read_group(Term& term, int depth) {
    ++at_;
    term.kind = Term::Kind::group;
    if (at_ < text_.size() && text_[at_] == '?') {
      std::string_view rest = text_.substr(at_);
      if (rest.starts_with("?:")) {
        at_ += 2;
      } else if (rest.starts_with("?=") || rest.starts_with("?!")) {
        term.kind = Term::Kind::look;
        term.negative = rest[1] == '!';
        at_ += 2;
      } else if (rest.starts_with("?<=") || rest.starts_with("?<!")) {
        return wrong("lookbehind is not supported");
      } else if (rest.starts_with("?<") || rest.starts_with("?P<")) {
        size_t end = text_.find('>', at_);
        if (end == std::string_view::npos) return wrong("group name without >");
        at_ = end + 1;
      } else {
        return wrong("flags are not supported");
      }
    }
    Result<std::vector<Terms>> options = read_options(depth + 1);
    if (!options) return options.error();
    term.options = std::move(*options);
    if (at_ >= text_.size()) return wrong("( without )");
    ++at_;
    return std::nullopt;
  }

  std::optional<uint32_t> read_number() {
    size_t start = at_;
    uint64_t n = 0;
    while (at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9') {
      n = std::min<uint64_t>(n * 10 + static_cast<uint64_t>(text_[at_++] - '0'), UINT32_MAX - 1);
    }
    if (at_ == start) return std::nullopt;
    return static_cast<uint32_t>(n);
  }

  std::optional<Error> read_quantifier(Term& term) {
    if (at_ >= text_.size()) return std::nullopt;
    char c = text_[at_];
    if (c == '*') {
      term.min = 0, term.max = RegexPool::kInf, ++at_;
    } else if (c == '+') {
      term.max = RegexPool::kInf, ++at_;
    } else if (c == '?') {
      term.min = 0, ++at_;
    } else if (c == '{') {
      size_t start = at_++;
      std::optional<uint32_t> min = read_number(), max = min;
      if (min && at_ < text_.size() && text_[at_] == ',') {
        ++at_;
        max = read_number();
        if (!max) max = RegexPool::kInf;
      }
      if (!min || at_ >= text_.size() || text_[at_] != '}') {
        at_ = start;
        return wrong("{ that is no quantifier (write \\{)");
      }
      ++at_;
      if (*max < *min) return wrong("{m,n} with m > n");
      term.min = *min, term.max = *max;
    } else {
      return std::nullopt;
    }
    if (term.kind == Term::Kind::look) return wrong("a repeated lookahead is not supported");
    if (at_ < text_.size() && text_[at_] == '?') ++at_;  // lazy: the same language
    if (at_ < text_.size() && (text_[at_] == '+' || text_[at_] == '*')) {
      return wrong("possessive quantifiers are not supported");
    }
    return std::nullopt;
  }

 public:
  static uint32_t next_code(std::string_view text, size_t& at) {
    const uint8_t b = static_cast<uint8_t>(text[at++]);
    if (b < 0xC0) return b;
    const int more = b < 0xE0 ? 1 : b < 0xF0 ? 2 : 3;
    uint32_t code = b & (0x3Fu >> more);
    for (int i = 0; i < more && at < text.size(); ++i)
      code = code << 6 | (static_cast<uint8_t>(text[at++]) & 0x3F);
    return code;
  }

  static std::optional<uint32_t> read_hex(std::string_view text, size_t& at, size_t digits) {
    if (at + digits > text.size() || digits == 0) return std::nullopt;
    uint32_t n = 0;
    for (size_t i = 0; i < digits; ++i) {
      char c = text[at + i];
      int d = c >= '0' && c <= '9'   ? c - '0'
              : c >= 'a' && c <= 'f' ? c - 'a' + 10
              : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                     : -1;
      if (d < 0) return std::nullopt;
      n = n << 4 | static_cast<uint32_t>(d);
    }
    at += digits;
    return n;
  }

  // At a backslash.
  enum class Place : uint8_t { outside, in_class, in_inverse_class };
  static Result<CodeSet> read_escape(std::string_view text, size_t& at, Place place) {
    if (at + 1 >= text.size()) return Error{400, "\\ at the end"};
    char c = text[at + 1];
    const bool inverse = place == Place::in_inverse_class;  // its complement takes no more
    auto one = [&](uint32_t code) { return CodeSet{{code, code}}; };
    at += 2;
    switch (c) {
      case 'd':
        return digit_set();
      case 'D':
        return digit_set().inverse();
      case 'w':
        return word_set();
      case 'W':
        return word_set().inverse();
      case 's':
        return inverse ? not_space_set().inverse() : space_set();
      case 'S':
        return inverse ? space_set().inverse() : not_space_set();
      case 't':
        return one('\t');
      case 'n':
        return one('\n');
      case 'r':
        return one('\r');
      case 'f':
        return one('\f');
      case 'v':
        return one('\v');
      case 'b':
        if (place != Place::outside) return one('\b');
        return Error{400, "\\b is not supported"};
      case 'B':
        return Error{400, "\\B is not supported"};
      case 'p':
      case 'P':
        return Error{400, strf("\\%c{...} is not supported", c)};
      case '0':
        return one(0);
      case 'c':
        if (at < text.size()) return one(static_cast<uint32_t>(text[at++]) & 31);
        return Error{400, "\\c without a letter"};
      case 'x':
        if (auto code = read_hex(text, at, 2)) return one(*code);
        return Error{400, "\\x without two hexadecimal digits"};
      case 'u':
        if (at < text.size() && text[at] == '{') {
          size_t end = text.find('}', ++at);
          if (end == std::string_view::npos || end - at > 6) return Error{400, "\\u{ without }"};
          auto code = read_hex(text, at, end - at);
          if (!code || *code > 0x10FFFF) return Error{400, "\\u{...} is no code point"};
          ++at;
          return one(*code);
        }
        if (auto code = read_hex(text, at, 4)) {
          if (*code >= 0xD800 && *code < 0xDC00 && text.substr(at).starts_with("\\u")) {
            size_t next = at + 2;
            auto low = read_hex(text, next, 4);
            if (low && *low >= 0xDC00 && *low < 0xE000) {
              at = next;
              return one(0x10000 + ((*code - 0xD800) << 10) + (*low - 0xDC00));
            }
          }
          if (*code >= 0xD800 && *code < 0xE000) return Error{400, "a lone surrogate"};
          return one(*code);
        }
        return Error{400, "\\u without four hexadecimal digits"};
      default:
        break;
    }
    if (c >= '1' && c <= '9') return Error{400, strf("backreference \\%c is not supported", c)};
    if (c == 'k') return Error{400, "backreference \\k is not supported"};
    if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')) {
      return Error{400, strf("\\%c is not supported", c)};
    }
    at -= 1;
    return one(next_code(text, at));
  }

 private:
  std::string_view text_;
  size_t at_ = 0;
  int max_depth_;
};

class PatternBuilder {
 public:
  PatternBuilder(RegexPool& pool, CodeSpeller& speller, const PatternOptions& options)
      : pool_(pool), speller_(speller), options_(options) {
    any_ = pool_.star(speller_.any(options.spelling));
  }

  Result<RegexId> build(std::vector<Terms> options) {
    std::vector<RegexId> out;
    size_t expanded = 0;
    for (size_t i = 0; i < options.size() && !pool_.failed(); ++i) {
      if (expand(options, i)) {
        if (++expanded > 2'000) return Error{400, "too many anchored alternatives"};
        --i;
        continue;
      }
      Result<RegexId> r = build_top(options[i]);
      if (!r) return r;
      out.push_back(*r);
    }
    return pool_.any_of(std::move(out));
  }

 private:
  static bool has_edges(const std::vector<Terms>& options) {
    for (const Terms& terms : options) {
      for (const Term& t : terms) {
        if (t.kind == Term::Kind::begin || t.kind == Term::Kind::end ||
            t.kind == Term::Kind::look) {
          return true;
        }
        if (t.kind == Term::Kind::group && has_edges(t.options)) return true;
      }
    }
    return false;
  }

  // A group with anchors or lookahead inside is written out, so that they stand outside groups.
  static bool expand(std::vector<Terms>& options, size_t i) {
    for (size_t k = 0; k < options[i].size(); ++k) {
      Term& t = options[i][k];
      if (t.kind != Term::Kind::group || t.min != 1 || t.max != 1 || !has_edges(t.options)) {
        continue;
      }
      Terms whole = std::move(options[i]);
      std::vector<Terms> inner = std::move(whole[k].options);
      std::vector<Terms> out;
      for (Terms& part : inner) {
        Terms terms(whole.begin(), whole.begin() + static_cast<long>(k));
        terms.insert(terms.end(), part.begin(), part.end());
        terms.insert(terms.end(), whole.begin() + static_cast<long>(k) + 1, whole.end());
        out.push_back(std::move(terms));
      }
      options.erase(options.begin() + static_cast<long>(i));
      options.insert(options.begin() + static_cast<long>(i), out.begin(), out.end());
      return true;
    }
    return false;
  }

  Result<RegexId> build_top(const Terms& terms) {
    size_t first = 0, last = terms.size();
    bool search = options_.match == PatternMatch::search;
    bool open_left = search, open_right = search;
    while (first < last && terms[first].kind == Term::Kind::begin) open_left = false, ++first;
    while (last > first && terms[last - 1].kind == Term::Kind::end) open_right = false, --last;
    RegexId r = open_right ? any_ : RegexPool::kEps;
    for (size_t i = last; i-- > first;) {
      const Term& t = terms[i];
      if (t.kind == Term::Kind::look) {
        if (auto error = build_look(t, r)) return *error;
        continue;
      }
      // ^ behind what can only match nothing, $ before it: written out by nobody.
      if (t.kind == Term::Kind::begin) {
        bool only_looks = true;
        for (size_t k = first; k < i; ++k) only_looks &= terms[k].kind == Term::Kind::look;
        if (!only_looks) return Error{400, "^ in the middle is not supported"};
        open_left = false;
        continue;
      }
      if (t.kind == Term::Kind::end) return Error{400, "$ in the middle is not supported"};
      Result<RegexId> joined = build_before(t, r);
      if (!joined) return joined;
      r = *joined;
    }
    return open_left ? pool_.concat(any_, r) : r;
  }

  std::optional<Error> build_look(const Term& t, RegexId& rest) {
    std::vector<RegexId> options;
    for (const Terms& terms : t.options) {
      size_t last = terms.size();
      bool closed = false;
      while (last > 0 && terms[last - 1].kind == Term::Kind::end) closed = true, --last;
      RegexId r = closed ? RegexPool::kEps : any_;
      for (size_t i = last; i-- > 0;) {
        Result<RegexId> joined = build_before(terms[i], r);
        if (!joined) return joined.error();
        r = *joined;
      }
      options.push_back(r);
    }
    RegexId seen = pool_.any_of(std::move(options));
    rest = pool_.all_of({rest, t.negative ? pool_.complement(seen) : seen});
    return std::nullopt;
  }

  // The term, then `rest`.
  Result<RegexId> build_before(const Term& t, RegexId rest) {
    if (t.kind == Term::Kind::text) return speller_.literal(t.text, options_.spelling, rest);
    Result<RegexId> one = build_term(t);
    if (!one) return one;
    return pool_.concat(*one, rest);
  }

  Result<RegexId> build_term(const Term& t) {
    switch (t.kind) {
      case Term::Kind::chars:
        return pool_.repeat(speller_.one_of(t.chars, options_.spelling), t.min, t.max);
      case Term::Kind::text:
        return speller_.literal(t.text, options_.spelling);
      case Term::Kind::begin:
        return Error{400, "^ in a group is not supported"};
      case Term::Kind::end:
        return Error{400, "$ in a group is not supported"};
      case Term::Kind::look:
        return Error{400, "lookahead in a group is not supported"};
      case Term::Kind::group:
        break;
    }
    std::vector<RegexId> options;
    for (const Terms& terms : t.options) {
      if (pool_.failed()) return RegexPool::kEmpty;
      RegexId r = RegexPool::kEps;
      for (size_t i = terms.size(); i-- > 0;) {
        Result<RegexId> joined = build_before(terms[i], r);
        if (!joined) return joined;
        r = *joined;
      }
      options.push_back(r);
    }
    return pool_.repeat(pool_.any_of(std::move(options)), t.min, t.max);
  }

  RegexPool& pool_;
  CodeSpeller& speller_;
  const PatternOptions& options_;
  RegexId any_;
};

}  // namespace

Result<CodeSet> read_class(std::string_view text, size_t& at) {
  ++at;
  bool inverted = at < text.size() && text[at] == '^';
  if (inverted) ++at;
  CodeSet set;
  auto item = [&]() -> Result<CodeSet> {
    using Place = PatternReader::Place;
    if (text[at] == '\\')
      return PatternReader::read_escape(text, at,
                                        inverted ? Place::in_inverse_class : Place::in_class);
    uint32_t code = PatternReader::next_code(text, at);
    return CodeSet{{code, code}};
  };
  auto single = [](const CodeSet& s) {
    return s.ranges().size() == 1 && s.ranges()[0].lo == s.ranges()[0].hi;
  };
  while (at < text.size() && text[at] != ']') {
    Result<CodeSet> low = item();
    if (!low) return low;
    if (at + 1 < text.size() && text[at] == '-' && text[at + 1] != ']' && single(*low)) {
      ++at;
      Result<CodeSet> high = item();
      if (!high) return high;
      if (!single(*high)) {  // [a-\d]: a dash and a class
        set.add(*low), set.add('-', '-'), set.add(*high);
        continue;
      }
      uint32_t from = low->ranges()[0].lo, to = high->ranges()[0].lo;
      if (from > to) return Error{400, "a range in [ ] is out of order"};
      set.add(from, to);
    } else {
      set.add(*low);
    }
  }
  if (at >= text.size()) return Error{400, "[ without ]"};
  ++at;
  return inverted ? set.inverse() : set;
}

Result<RegexId> build_pattern(std::string_view pattern,
                              RegexPool& pool,
                              CodeSpeller& speller,
                              const PatternOptions& options) {
  if (!valid_utf8(pattern)) return Error{400, "the pattern is not valid UTF-8"};
  PatternReader reader(pattern, options.max_depth);
  Result<std::vector<Terms>> terms = reader.read();
  if (!terms) return terms.error();
  Result<RegexId> r = PatternBuilder(pool, speller, options).build(std::move(*terms));
  if (!r)
    return Error{400, strf("pattern %s: %s", quote(pattern).c_str(), r.error().message.c_str())};
  return r;
}

}  // namespace sluice::constrain
