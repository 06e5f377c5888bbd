// Reading patterns: those that are only classes of characters in a row, and the others for PCRE2.
#include <algorithm>
#include <cctype>
#include <optional>

#include "base/str.h"
#include "text/regex.h"
#include "text/unicode.h"

namespace sluice {

namespace {

constexpr size_t kMaxRepeat = 1000;

uint32_t bit(Category c) { return 1u << static_cast<uint32_t>(c); }

// The categories that "L", "Lu" ... name; 0: unknown.
uint32_t category_mask(std::string_view name) {
  static constexpr std::string_view kNames =
      "CnCcCfCoCsLuLlLtLmLoMnMcMeNdNlNoPcPdPsPePiPfPoSmScSkSoZsZlZp";
  uint32_t mask = 0;
  for (size_t i = 0; i < kNames.size() && (name.size() == 1 || name.size() == 2); i += 2) {
    if (kNames.substr(i, name.size()) == name) mask |= 1u << (i / 2);
  }
  return mask;
}

// Oniguruma's \w. Outside a class its Latin-1 part counts superscripts and fractions, too.
constexpr std::string_view kWordMembers =
    R"(\p{L}\p{M}\p{Nd}\p{Nl}\p{Pc}\x{24b6}-\x{24e9})"
    R"(\x{1f130}-\x{1f149}\x{1f150}-\x{1f169}\x{1f170}-\x{1f189})";
constexpr std::string_view kWordClass =
    R"(\p{L}\p{M}\p{Nd}\p{Nl}\p{Pc}\x{b2}\x{b3}\x{b9}\x{bc}-\x{be}\x{24b6}-\x{24e9})"
    R"(\x{1f130}-\x{1f149}\x{1f150}-\x{1f169}\x{1f170}-\x{1f189})";
// White_Space, which PCRE2's \s exceeds by U+180E; and all else.
constexpr std::string_view kSpaceClass =
    R"(\x{9}-\x{d}\x{20}\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f})"
    R"(\x{3000})";
constexpr std::string_view kNotSpaceClass =
    R"(\x{0}-\x{8}\x{e}-\x{1f}\x{21}-\x{84}\x{86}-\x{9f}\x{a1}-\x{167f}\x{1681}-\x{1fff})"
    R"(\x{200b}-\x{2027}\x{202a}-\x{202e}\x{2030}-\x{205e}\x{2060}-\x{2fff}\x{3001}-\x{10ffff})";

// Reads one pattern left to right.
class ClassParser {
 public:
  explicit ClassParser(std::string_view text) : text_(text) {}

  std::unique_ptr<ClassPattern> parse() {
    auto out = std::make_unique<ClassPattern>();
    bool repeated = false;
    while (!done()) {
      if (text_.substr(pos_) == "$" && repeated) {
        out->line_end = true;
        ++pos_;
        break;
      }
      CharSet set;
      if (repeated || !read_atom(set)) return nullptr;
      set.index();
      out->sets.push_back(std::move(set));
      size_t min = 1, max = 1;
      if (!read_quantifier(min, max)) return nullptr;
      if (min == 1 && max == 1) continue;
      if (min == 0 && max == 1 && out->sets.size() == 1 && !done()) {
        out->optional_first = true;
        continue;
      }
      if (min == 0) return nullptr;  // could match nothing
      repeated = true;
      out->min = min;
      out->max = max;
    }
    if (out->sets.empty() || (out->optional_first && out->sets.size() == 1)) return nullptr;
    // Looking for a line's end must not start over inside a run.
    if (out->line_end && (out->sets.size() > 1 || out->max != SIZE_MAX)) return nullptr;
    return out;
  }

 private:
  bool done() const { return pos_ >= text_.size(); }
  bool at(char c) const { return !done() && text_[pos_] == c; }
  bool take(char c) { return at(c) && ++pos_ > 0; }

  std::optional<size_t> read_number() {
    size_t begin = pos_, n = 0;
    while (!done() && text_[pos_] >= '0' && text_[pos_] <= '9' && n <= kMaxRepeat) {
      n = n * 10 + static_cast<size_t>(text_[pos_++] - '0');
    }
    return pos_ > begin && n <= kMaxRepeat ? std::optional<size_t>(n) : std::nullopt;
  }

  bool read_quantifier(size_t& min, size_t& max) {
    if (take('+')) {
      max = SIZE_MAX;
    } else if (take('?')) {
      min = 0;
    } else if (take('{')) {
      std::optional<size_t> low = read_number(), high = low;
      if (!low) return false;
      if (take(',')) {
        high = SIZE_MAX;
        if (!at('}') && !(high = read_number())) return false;
      }
      if (!take('}') || *high < *low || *low == 0) return false;
      min = *low;
      max = *high;
    } else {
      return !at('*');
    }
    return !at('?') && !at('+') && !at('*') && !at('{');  // lazy, possessive, nested
  }

  bool read_atom(CharSet& set) {
    if (take('[')) return read_class(set);
    if (at('\\')) return read_escape(set);
    if (std::string_view("^$.|?*+(){}]").find(text_[pos_]) != text_.npos) return false;
    char32_t c = read_char();
    set.ranges.push_back({c, c});
    return true;
  }

  char32_t read_char() {
    CodePoint p = code_point_at(text_, pos_);
    pos_ += p.size;
    return p.value;
  }

  bool read_class(CharSet& set) {
    if (take('^')) set.negated = true;
    for (bool first = true; !done(); first = false) {
      if (at(']') && !first) return ++pos_ > 0;
      if (at('[') || at(']') || text_.substr(pos_, 2) == "&&") return false;
      size_t before = set.ranges.size();
      if (at('\\')) {
        if (!read_escape(set)) return false;
      } else {
        char32_t c = read_char();
        set.ranges.push_back({c, c});
      }
      if (set.ranges.size() == before || !at('-') || text_.substr(pos_, 2) == "-]") continue;
      ++pos_;
      CharSet last;
      if (done() || at('[') || (at('\\') ? !read_escape(last) : false)) return false;
      if (last.ranges.empty() && last.categories == 0 && !last.space) {
        char32_t c = read_char();
        last.ranges.push_back({c, c});
      }
      if (last.ranges.size() != 1 || last.ranges[0].first < set.ranges.back().first) return false;
      set.ranges.back().second = last.ranges[0].first;
    }
    return false;
  }

  // Adds what an escape stands for.
  bool read_escape(CharSet& set) {
    ++pos_;
    if (done()) return false;
    char c = text_[pos_++];
    static constexpr std::string_view kNames = "nrtfvae", kValues = "\n\r\t\f\v\a\x1B";
    if (size_t i = kNames.find(c); i != kNames.npos) {
      char32_t value = static_cast<uint8_t>(kValues[i]);
      set.ranges.push_back({value, value});
      return true;
    }
    if (c == 's') return set.space = true;
    if (c == 'd') return (set.categories |= bit(Category::nd)) != 0;
    if (c == 'p' || c == 'P') {
      size_t close = text_.find('}', pos_);
      if (!take('{') || close == text_.npos) return false;
      uint32_t mask = category_mask(text_.substr(pos_, close - pos_));
      pos_ = close + 1;
      set.categories |= c == 'p' ? mask : ~mask & ((1u << 30) - 1);
      return mask != 0;
    }
    bool symbol = static_cast<uint8_t>(c) < 0x80 && !std::isalnum(static_cast<unsigned char>(c));
    if (!symbol) return false;
    set.ranges.push_back({static_cast<uint8_t>(c), static_cast<uint8_t>(c)});
    return true;
  }

  std::string_view text_;
  size_t pos_ = 0;
};

class Translator {
 public:
  explicit Translator(std::string_view text) : text_(text) {}

  Result<std::string> run() {
    while (pos_ < text_.size()) {
      char c = text_[pos_];
      std::string_view rest = text_.substr(pos_);
      Result<void> ok;
      if (c == '\\') {
        ok = escape();
      } else if (in_class_) {
        ok = class_char(rest);
      } else if (c == '[') {
        in_class_ = true;
        copy(rest.starts_with("[^]")                            ? 3
             : rest.starts_with("[^") || rest.starts_with("[]") ? 2
                                                                : 1);
      } else if (rest.starts_with("(?")) {
        ok = group(rest);
      } else if (c == '{') {
        ok = repeat(rest);
      } else {
        copy(1);
      }
      if (!ok) return ok.error();
    }
    return std::move(out_);
  }

 private:
  void copy(size_t n) {
    out_.append(text_.substr(pos_, n));
    pos_ += n;
  }

  Result<void> class_char(std::string_view rest) {
    if (rest.starts_with("&&")) return Error{400, "it intersects classes (&&)"};
    if (rest.starts_with("[:")) {
      size_t close = rest.find(":]");
      if (close == rest.npos) return Error{400, "a class has no end"};
      copy(close + 2);
      return {};
    }
    if (rest[0] == '[') return Error{400, "it has a class within a class"};
    if (rest[0] == ']') in_class_ = false;
    copy(1);
    return {};
  }

  // (?m) lets the dot match line breaks in Ruby's syntax, which is (?s) elsewhere.
  Result<void> group(std::string_view rest) {
    size_t end = rest.find_first_not_of("imx-", 2);
    if (end != rest.npos && end > 2 && (rest[end] == ':' || rest[end] == ')')) {
      for (char c : rest.substr(0, end)) out_ += c == 'm' ? 's' : c;
      pos_ += end;
    } else {
      copy(2);
    }
    return {};
  }

  Result<void> repeat(std::string_view rest) {
    size_t end = rest.find_first_not_of("0123456789,", 1);
    if (end == rest.npos || rest[end] != '}' || end == 1) {
      copy(1);
      return {};
    }
    if (end + 1 < rest.size() && rest[end + 1] == '+') {
      return Error{400, "it repeats a repetition ({...}+)"};
    }
    if (rest[1] == ',') {
      out_ += "{0";
      ++pos_;
      copy(end);
    } else {
      copy(end + 1);
    }
    return {};
  }

  Result<void> escape() {
    if (pos_ + 1 >= text_.size()) return Error{400, "it ends in a backslash"};
    auto put = [&](std::string_view members, bool negated) {
      if (in_class_) {
        out_.append(members);
      } else {
        out_.append(negated ? "[^" : "[").append(members).append("]");
      }
      pos_ += 2;
    };
    switch (text_[pos_ + 1]) {
      case 's':
        put(kSpaceClass, false);
        return {};
      case 'S':
        put(kNotSpaceClass, false);
        return {};
      case 'w':
        put(in_class_ ? kWordMembers : kWordClass, false);
        return {};
      case 'W':
        if (in_class_) return Error{400, "it has \\W within a class"};
        put(kWordClass, true);
        return {};
      case 'h':
        put("0-9a-fA-F", false);
        return {};
      case 'H':
        if (in_class_) return Error{400, "it has \\H within a class"};
        put("0-9a-fA-F", true);
        return {};
      case 'u':
        if (pos_ + 6 > text_.size()) return Error{400, "\\u has no four digits"};
        out_.append("\\x{").append(text_.substr(pos_ + 2, 4)).append("}");
        pos_ += 6;
        return {};
      case 'Q':
      case 'E':
        out_ += text_[pos_ + 1];  // letters to Oniguruma
        pos_ += 2;
        return {};
      default:
        copy(1);
        copy(std::max<size_t>(code_point_at(text_, pos_).size, 1));
        return {};
    }
  }

  std::string_view text_;
  size_t pos_ = 0;
  bool in_class_ = false;
  std::string out_;
};

}  // namespace

std::unique_ptr<ClassPattern> parse_class_pattern(std::string_view pattern) {
  return ClassParser(pattern).parse();
}

Result<std::string> translate_pattern(std::string_view pattern) {
  return Translator(pattern).run();
}

}  // namespace sluice
