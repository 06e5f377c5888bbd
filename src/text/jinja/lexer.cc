#include "text/jinja/lexer.h"

#include <algorithm>
#include <array>

#include "base/str.h"

namespace sluice::jinja {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

class Lexer {
 public:
  explicit Lexer(std::string_view source) : src_(normalized(source)) {}

  std::vector<LexToken> run() {
    while (pos_ < src_.size()) root();
    emit(TokenKind::eof, "");
    return std::move(tokens_);
  }

 private:
  // "\n" line ends, and without the last one (keep_trailing_newline is off).
  static std::string normalized(std::string_view s) {
    std::string out;
    out.reserve(s.size());
    for (size_t i = 0; i < s.size(); ++i) {
      if (s[i] == '\r') {
        out.push_back('\n');
        if (i + 1 < s.size() && s[i + 1] == '\n') ++i;
      } else {
        out.push_back(s[i]);
      }
    }
    if (!out.empty() && out.back() == '\n') out.pop_back();
    return out;
  }

  [[noreturn]] void fail(std::string message) const {
    throw TemplateError{std::move(message), line_};
  }

  void emit(TokenKind kind, std::string text) {
    if (tokens_.size() >= kMaxTokens) fail("the template has too many tokens");
    tokens_.push_back({kind, line_, std::move(text)});
  }

  // Moves to `end`, counting lines.
  void advance(size_t end) {
    line_ += static_cast<int>(std::count(src_.begin() + static_cast<std::ptrdiff_t>(pos_),
                                         src_.begin() + static_cast<std::ptrdiff_t>(end), '\n'));
    pos_ = end;
  }

  size_t skip_space(size_t i) const {
    while (i < src_.size()) {
      size_t next = i;
      if (!is_space(next_code_point(src_, next))) break;
      i = next;
    }
    return i;
  }

  bool at(size_t i, std::string_view s) const {
    return std::string_view(src_).substr(std::min(i, src_.size())).starts_with(s);
  }

  char sign_at(size_t i) const {
    return i < src_.size() && (src_[i] == '-' || src_[i] == '+') ? src_[i] : '\0';
  }

  // Text up to the tag at `tag` whose sign is given; blocks and comments may lose their indent.
  void emit_data(size_t tag, char sign, bool lstrip) {
    std::string_view text = std::string_view(src_).substr(pos_, tag - pos_);
    if (sign == '-') {
      text = text.substr(0, strip_space_range(text, false, true).end);
    } else if (sign != '+' && lstrip) {
      size_t line_begin = text.rfind('\n') + 1;  // npos + 1 == 0
      bool blank =
          strip_space_range(text.substr(line_begin), true, false).begin == text.size() - line_begin;
      if ((line_begin > 0 || line_starting_) && blank) text = text.substr(0, line_begin);
    }
    if (!text.empty()) emit(TokenKind::data, std::string(text));
    advance(tag);
  }

  void root() {
    size_t tag = pos_;
    while ((tag = src_.find('{', tag)) != std::string::npos) {
      if (tag + 1 < src_.size() &&
          std::string_view("%{#").find(src_[tag + 1]) != std::string::npos) {
        break;
      }
      ++tag;
    }
    if (tag == std::string::npos) {
      emit(TokenKind::data, src_.substr(pos_));
      advance(src_.size());
      return;
    }
    char kind = src_[tag + 1], sign = sign_at(tag + 2);
    emit_data(tag, sign, kind != '{');
    size_t inside = tag + (sign ? 3 : 2);
    if (kind == '#') {
      comment(inside);
    } else if (kind == '{') {
      expression(inside, TokenKind::variable_begin, TokenKind::variable_end, "}}");
    } else if (!raw(inside)) {
      expression(inside, TokenKind::block_begin, TokenKind::block_end, "%}");
    }
  }

  // Past "%}" or "#}" at `end`, whose sign was read before: '-' eats space, nothing eats a newline.
  void close_tag(size_t end, char sign, bool trim_newline) {
    end += 2;
    if (sign == '-') {
      end = skip_space(end);
    } else if (sign != '+' && trim_newline && at(end, "\n")) {
      ++end;
    }
    line_starting_ = end > 0 && src_[end - 1] == '\n';
    advance(end);
  }

  void comment(size_t begin) {
    size_t end = src_.find("#}", begin);
    if (end == std::string::npos) fail("missing end of comment tag");
    close_tag(end, end > begin ? sign_at(end - 1) : '\0', true);
  }

  // {% raw %} ... {% endraw %}; false if the block at `begin` is something else.
  bool raw(size_t begin) {
    size_t i = skip_space(begin);
    if (!at(i, "raw")) return false;
    i = skip_space(i + 3);
    char sign = sign_at(i) == '-' ? '-' : '\0';
    if (!at(i + (sign ? 1 : 0), "%}")) return false;
    close_tag(i + (sign ? 1 : 0), sign, false);
    for (size_t tag = pos_; (tag = src_.find("{%", tag)) != std::string::npos; ++tag) {
      char open = sign_at(tag + 2);
      size_t k = skip_space(tag + (open ? 3 : 2));
      if (!at(k, "endraw")) continue;
      k = skip_space(k + 6);
      char close = sign_at(k);
      if (!at(k + (close ? 1 : 0), "%}")) continue;
      emit_data(tag, open, true);
      close_tag(k + (close ? 1 : 0), close, true);
      return true;
    }
    fail("missing end of raw directive");
  }

  void expression(size_t begin, TokenKind open, TokenKind close, std::string_view end) {
    emit(open, "");
    advance(begin);
    std::string brackets;  // the closing ones that are due
    for (;;) {
      advance(skip_space(pos_));
      if (pos_ >= src_.size()) fail("unexpected end of template inside a tag");
      char sign = sign_at(pos_);
      bool block = close == TokenKind::block_end;
      if (sign == '+' && !block) sign = '\0';
      if (brackets.empty() && at(pos_ + (sign ? 1 : 0), end)) {
        emit(close, "");
        close_tag(pos_ + (sign ? 1 : 0), sign, block);
        return;
      }
      token(brackets);
    }
  }

  void token(std::string& brackets) {
    char c = src_[pos_];
    if (is_digit(c)) return number();
    size_t end = pos_;
    if (is_identifier_start(next_code_point(src_, end))) {
      for (size_t next = end; next < src_.size(); end = next) {
        if (!is_identifier_part(next_code_point(src_, next))) break;
      }
      emit(TokenKind::name, src_.substr(pos_, end - pos_));
      return advance(end);
    }
    if (c == '\'' || c == '"') return string(c);
    static constexpr std::array<std::string_view, 6> kLong = {"//", "**", "==", "!=", ">=", "<="};
    for (std::string_view op : kLong) {
      if (!at(pos_, op)) continue;
      emit(TokenKind::op, std::string(op));
      return advance(pos_ + 2);
    }
    if (std::string_view("+-/*%~[](){}><=.:|,;").find(c) == std::string_view::npos) {
      fail("unexpected character " + quote(std::string_view(src_).substr(pos_, end - pos_)));
    }
    balance(c, brackets);
    emit(TokenKind::op, std::string(1, c));
    advance(pos_ + 1);
  }

  void balance(char c, std::string& brackets) const {
    if (c == '{') brackets.push_back('}');
    if (c == '(') brackets.push_back(')');
    if (c == '[') brackets.push_back(']');
    if (c != '}' && c != ')' && c != ']') return;
    if (brackets.empty()) fail(strf("unexpected '%c'", c));
    if (brackets.back() != c) fail(strf("unexpected '%c', expected '%c'", c, brackets.back()));
    brackets.pop_back();
  }

  // Past digits of the given base that may be grouped by single underscores.
  size_t digits(size_t i, std::string_view allowed) const {
    while (i < src_.size()) {
      size_t k = src_[i] == '_' ? i + 1 : i;
      if (k >= src_.size() || allowed.find(src_[k]) == std::string_view::npos) break;
      i = k + 1;
    }
    return i;
  }

  void number() {
    static constexpr std::string_view kDec = "0123456789";
    size_t end = pos_;
    auto prefix = [&](char lower, char upper, std::string_view allowed) {
      if (src_[pos_] != '0' || pos_ + 1 >= src_.size()) return false;
      if (src_[pos_ + 1] != lower && src_[pos_ + 1] != upper) return false;
      end = digits(pos_ + 2, allowed);
      return end > pos_ + 2;
    };
    bool real = false;
    if (!prefix('x', 'X', "0123456789abcdefABCDEF") && !prefix('o', 'O', "01234567") &&
        !prefix('b', 'B', "01")) {
      end = digits(pos_, kDec);
      bool after_dot = pos_ > 0 && src_[pos_ - 1] == '.';
      size_t frac = end;
      if (!after_dot && at(end, ".") && end + 1 < src_.size() && is_digit(src_[end + 1])) {
        frac = digits(end + 1, kDec);
        real = true;
      }
      size_t exp = frac;
      if (!after_dot && exp < src_.size() && (src_[exp] == 'e' || src_[exp] == 'E')) {
        ++exp;
        if (sign_at(exp)) ++exp;
        if (exp < src_.size() && is_digit(src_[exp])) frac = digits(exp, kDec), real = true;
      }
      if (real) {
        end = frac;
      } else if (src_[pos_] == '0') {
        end = digits(pos_, "0");
      }
    }
    std::string text = src_.substr(pos_, end - pos_);
    std::erase(text, '_');
    emit(real ? TokenKind::real : TokenKind::integer, std::move(text));
    advance(end);
  }

  void string(char quote) {
    size_t end = pos_ + 1;
    while (end < src_.size() && src_[end] != quote) end += src_[end] == '\\' ? 2 : 1;
    if (end >= src_.size()) fail("unterminated string");
    emit(TokenKind::string, unescaped(std::string_view(src_).substr(pos_ + 1, end - pos_ - 1)));
    advance(end + 1);
  }

  std::string unescaped(std::string_view s) const {
    std::string out;
    out.reserve(s.size());
    for (size_t i = 0; i < s.size();) {
      if (s[i] != '\\' || i + 1 >= s.size()) {
        out.push_back(s[i++]);
        continue;
      }
      char c = s[i + 1];
      static constexpr std::string_view kFrom = "\\'\"abfnrtv", kTo = "\\'\"\a\b\f\n\r\t\v";
      size_t simple = kFrom.find(c);
      i += 2;
      if (simple != std::string_view::npos) {
        out.push_back(kTo[simple]);
      } else if (c == '\n') {
        continue;
      } else if (c >= '0' && c <= '7') {
        size_t n = 1;
        while (n < 3 && i - 1 + n < s.size() && s[i - 1 + n] >= '0' && s[i - 1 + n] <= '7') ++n;
        append_code(out, s.substr(i - 1, n), 8);
        i += n - 1;
      } else if (c == 'x' || c == 'u' || c == 'U') {
        size_t n = c == 'x' ? 2 : c == 'u' ? 4 : 8;
        if (i + n > s.size()) fail(strf("truncated \\%c escape in a string", c));
        append_code(out, s.substr(i, n), 16);
        i += n;
      } else if (c == 'N') {
        fail("\\N{...} escapes are not supported; use \\u");
      } else {
        out.push_back('\\');
        out.push_back(c);
      }
    }
    return out;
  }

  void append_code(std::string& out, std::string_view digits_text, int radix) const {
    char32_t c = 0;
    for (char d : digits_text) {
      int v = is_digit(d) ? d - '0' : (d | 32) >= 'a' && (d | 32) <= 'f' ? (d | 32) - 'a' + 10 : 99;
      if (v >= radix) fail("bad digit in a string escape");
      c = c * static_cast<char32_t>(radix) + static_cast<char32_t>(v);
    }
    if (c > 0x10FFFF || (c >= 0xD800 && c <= 0xDFFF)) fail("a string escape names no character");
    append_utf8(out, c);
  }

  std::string src_;
  size_t pos_ = 0;
  int line_ = 1;
  bool line_starting_ = true;  // the last tag ended with a line
  std::vector<LexToken> tokens_;
};

}  // namespace

std::vector<LexToken> tokenize(std::string_view source) { return Lexer(source).run(); }

}  // namespace sluice::jinja
