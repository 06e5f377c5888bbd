// GBNF, llama.cpp's grammars: name ::= "text" [a-z] (x | y)* z{2,3} # comment
#include <algorithm>

#include "base/str.h"
#include "constrain/ebnf.h"
#include "constrain/pattern.h"

namespace sluice::constrain {

namespace {

class GbnfReader {
 public:
  GbnfReader(std::string_view text, RuleBuilder& builder) : text_(text), builder_(builder) {}

  Result<Ebnf> read() {
    Ebnf out;
    out.root = "root";
    for (skip(true); at_ < text_.size(); skip(true)) {
      std::string name = read_name();
      if (name.empty()) return wrong("a rule's name is expected");
      skip(false);
      if (!text_.substr(at_).starts_with("::=")) return wrong("::= is expected");
      at_ += 3;
      Result<EbnfExpr> body = read_options(0);
      if (!body) return body.error();
      if (!out.rules.emplace(name, std::move(*body)).second) {
        return wrong(strf("rule %s is defined twice", quote(name).c_str()));
      }
    }
    return out;
  }

 private:
  Error wrong(std::string what) const {
    size_t line = 1 + static_cast<size_t>(std::count(
                          text_.begin(),
                          text_.begin() + static_cast<long>(std::min(at_, text_.size())), '\n'));
    return {400, strf("grammar, line %zu: %s", line, what.c_str())};
  }

  void skip(bool lines) {
    while (at_ < text_.size()) {
      char c = text_[at_];
      if (c == '#') {
        while (at_ < text_.size() && text_[at_] != '\n') ++at_;
      } else if (c == ' ' || c == '\t' || (lines && (c == '\n' || c == '\r'))) {
        ++at_;
      } else {
        return;
      }
    }
  }

  std::string read_name() {
    size_t start = at_;
    auto is_name = [](char c) {
      return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
             c == '-' || c == '_';
    };
    while (at_ < text_.size() && is_name(text_[at_])) ++at_;
    return std::string(text_.substr(start, at_ - start));
  }

  // A name and ::= begin the next rule.
  bool at_rule() {
    size_t saved = at_;
    bool rule = !read_name().empty();
    skip(false);
    rule = rule && text_.substr(at_).starts_with("::=");
    at_ = saved;
    return rule;
  }

  Result<EbnfExpr> read_options(int depth) {
    if (depth > builder_.limits().max_depth) return wrong("groups are nested too deep");
    EbnfExpr alt{.kind = EbnfExpr::Kind::alt};
    alt.parts.push_back({});
    while (true) {
      skip(true);
      if (at_ >= text_.size() || text_[at_] == ')' || at_rule()) break;
      if (text_[at_] == '|') {
        ++at_;
        alt.parts.push_back({});
        continue;
      }
      Result<EbnfExpr> item = read_item(depth);
      if (!item) return item;
      alt.parts.back().parts.push_back(std::move(*item));
    }
    return alt;
  }

  Result<EbnfExpr> read_item(int depth) {
    EbnfExpr item{.kind = EbnfExpr::Kind::regex};
    char c = text_[at_];
    if (c == '"') {
      Result<std::string> text = read_text();
      if (!text) return text.error();
      item.regex = builder_.pool().literal(*text);
    } else if (c == '[') {
      Result<CodeSet> set = read_class(text_, at_);
      if (!set) return wrong(set.error().message);
      if (set->empty()) return wrong("an empty class");
      item.regex = builder_.speller().one_of(*set, Spelling::utf8);
    } else if (c == '.') {
      ++at_;
      item.regex = builder_.speller().any(Spelling::utf8);
    } else if (c == '(') {
      ++at_;
      Result<EbnfExpr> group = read_options(depth + 1);
      if (!group) return group;
      if (at_ >= text_.size() || text_[at_] != ')') return wrong("( without )");
      ++at_;
      item = std::move(*group);
    } else {
      item.kind = EbnfExpr::Kind::rule;
      item.rule = read_name();
      if (item.rule.empty())
        return wrong(strf("unexpected %s", quote(text_.substr(at_, 1)).c_str()));
    }
    return read_repeat(std::move(item));
  }

  Result<EbnfExpr> read_repeat(EbnfExpr item) {
    while (true) {
      skip(false);
      if (at_ >= text_.size()) return item;
      uint32_t min = 0, max = kUnbounded;
      char c = text_[at_];
      if (c == '*') {
        ++at_;
      } else if (c == '+') {
        min = 1, ++at_;
      } else if (c == '?') {
        max = 1, ++at_;
      } else if (c == '{') {
        size_t end = text_.find('}', at_);
        if (end == std::string_view::npos) return wrong("{ without }");
        std::string inner(text_.substr(at_ + 1, end - at_ - 1));
        size_t comma = inner.find(',');
        auto number = [](const std::string& s, uint32_t none) -> std::optional<uint32_t> {
          size_t a = s.find_first_not_of(' ');
          if (a == std::string::npos) return none;
          size_t b = s.find_last_not_of(' ');
          std::string digits = s.substr(a, b - a + 1);
          if (digits.size() > 7 || digits.find_first_not_of("0123456789") != std::string::npos) {
            return std::nullopt;
          }
          return static_cast<uint32_t>(std::stoul(digits));
        };
        auto low = number(inner.substr(0, comma), 0);
        auto high = comma == std::string::npos ? low : number(inner.substr(comma + 1), kUnbounded);
        if (!low || !high || *low > *high) return wrong("{m,n} is expected, with m up to n");
        min = *low, max = *high;
        at_ = end + 1;
      } else {
        return item;
      }
      EbnfExpr rep{.kind = EbnfExpr::Kind::rep, .min = min, .max = max};
      rep.parts.push_back(std::move(item));
      item = std::move(rep);
    }
  }

  Result<std::string> read_text() {
    std::string out;
    for (++at_; at_ < text_.size() && text_[at_] != '"';) {
      if (text_[at_] != '\\') {
        out += text_[at_++];
        continue;
      }
      size_t start = at_;
      char c = at_ + 1 < text_.size() ? text_[at_ + 1] : 0;
      size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
      if (digits > 0) {
        std::string hex(text_.substr(at_ + 2, digits));
        if (hex.size() != digits ||
            hex.find_first_not_of("0123456789abcdefABCDEF") != std::string::npos) {
          return wrong("an escape with too few hexadecimal digits");
        }
        unsigned long code = std::stoul(hex, nullptr, 16);
        if (code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) return wrong("no such character");
        append_utf8(out, static_cast<uint32_t>(code));
        at_ = start + 2 + digits;
        continue;
      }
      static constexpr std::string_view kFrom = "nrt\"\\[]/'", kTo = "\n\r\t\"\\[]/'";
      size_t known = kFrom.find(c);
      if (c == 0 || known == std::string_view::npos) return wrong("an unknown escape");
      out += kTo[known];
      at_ += 2;
    }
    if (at_ >= text_.size()) return wrong("a string without its closing quote");
    ++at_;
    return out;
  }

  std::string_view text_;
  size_t at_ = 0;
  RuleBuilder& builder_;
};

}  // namespace

Result<RuleId> build_gbnf(RuleBuilder& builder, std::string_view text) {
  Result<Ebnf> grammar = GbnfReader(text, builder).read();
  if (!grammar) return grammar.error();
  return build_ebnf(builder, std::move(*grammar));
}

}  // namespace sluice::constrain
