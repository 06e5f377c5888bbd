// Lark's grammars, the common subset: rules and terminals, strings, /regex/, [x] (x)* ~ n..m,
// "a".."z", %ignore, %import of a few common terminals. Priorities, templates and %declare are
// refused.
#include <algorithm>
#include <optional>

#include "base/str.h"
#include "constrain/ebnf.h"
#include "constrain/pattern.h"

namespace sluice::constrain {

namespace {

struct CommonTerminal {
  std::string_view name, pattern;
};
constexpr CommonTerminal kCommon[] = {
    {"DIGIT", "[0-9]"},
    {"HEXDIGIT", "[0-9a-fA-F]"},
    {"INT", "[0-9]+"},
    {"SIGNED_INT", "[+-]?[0-9]+"},
    {"DECIMAL", "[0-9]+\\.[0-9]*|\\.[0-9]+"},
    {"FLOAT", "[0-9]+[eE][+-]?[0-9]+|([0-9]+\\.[0-9]*|\\.[0-9]+)([eE][+-]?[0-9]+)?"},
    {"SIGNED_FLOAT", "[+-]?([0-9]+[eE][+-]?[0-9]+|([0-9]+\\.[0-9]*|\\.[0-9]+)([eE][+-]?[0-9]+)?)"},
    {"NUMBER", "([0-9]+\\.[0-9]*|\\.[0-9]+|[0-9]+)([eE][+-]?[0-9]+)?"},
    {"SIGNED_NUMBER", "[+-]?([0-9]+\\.[0-9]*|\\.[0-9]+|[0-9]+)([eE][+-]?[0-9]+)?"},
    {"ESCAPED_STRING", "\"([^\"\\\\\\n]|\\\\[^\\n])*\""},
    {"LCASE_LETTER", "[a-z]"},
    {"UCASE_LETTER", "[A-Z]"},
    {"LETTER", "[a-zA-Z]"},
    {"WORD", "[a-zA-Z]+"},
    {"CNAME", "[_a-zA-Z][_a-zA-Z0-9]*"},
    {"WS_INLINE", "[ \\t]+"},
    {"WS", "[ \\t\\f\\r\\n]+"},
    {"NEWLINE", "(\\r?\\n)+"},
};

class LarkReader {
 public:
  LarkReader(std::string_view text, RuleBuilder& builder) : text_(text), builder_(builder) {}

  Result<Ebnf> read() {
    out_.root = "start";
    for (skip(true); at_ < text_.size(); skip(true)) {
      if (text_[at_] == '%') {
        if (auto r = read_directive(); !r) return r.error();
        continue;
      }
      if (auto r = read_rule(); !r) return r.error();
    }
    if (!ignored_.parts.empty()) add_ignored();
    return std::move(out_);
  }

 private:
  Error wrong(std::string what) const {
    auto end = text_.begin() + static_cast<long>(std::min(at_, text_.size()));
    size_t line = 1 + static_cast<size_t>(std::count(text_.begin(), end, '\n'));
    return {400, strf("grammar, line %zu: %s", line, what.c_str())};
  }

  static bool is_name(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
  }

  void skip(bool lines) {
    while (at_ < text_.size()) {
      char c = text_[at_];
      if (text_.substr(at_).starts_with("//") || (c == '#' && lines)) {
        while (at_ < text_.size() && text_[at_] != '\n') ++at_;
      } else if (c == ' ' || c == '\t' || c == '\r' || (lines && c == '\n')) {
        ++at_;
      } else {
        return;
      }
    }
  }

  std::string read_name() {
    size_t start = at_;
    while (at_ < text_.size() && is_name(text_[at_])) ++at_;
    return std::string(text_.substr(start, at_ - start));
  }

  static bool is_terminal(const std::string& name) {
    size_t letter = name.find_first_not_of("_0123456789");
    return letter != std::string::npos && name[letter] >= 'A' && name[letter] <= 'Z';
  }

  Result<void> read_rule() {
    if (text_[at_] == '?' || text_[at_] == '!') ++at_;  // how trees are built
    std::string name = read_name();
    if (name.empty()) return wrong("a rule's name is expected");
    if (at_ < text_.size() && text_[at_] == '{') return wrong("templates are not supported");
    if (at_ < text_.size() && text_[at_] == '.') return wrong("priorities are not supported");
    skip(false);
    if (at_ >= text_.size() || text_[at_] != ':') return wrong(": is expected");
    ++at_;
    Result<EbnfExpr> body = read_options(0);
    if (!body) return body.error();
    if (!out_.rules.emplace(name, std::move(*body)).second) {
      return wrong(strf("rule %s is defined twice", quote(name).c_str()));
    }
    return {};
  }

  Result<void> read_directive() {
    ++at_;
    std::string name = read_name();
    skip(false);
    if (name == "ignore") {
      Result<EbnfExpr> what = read_options(0);
      if (!what) return what.error();
      ignored_.parts.push_back(std::move(*what));
      return {};
    }
    if (name == "import") {
      if (!text_.substr(at_).starts_with("common.")) {
        return wrong("only %import common.NAME is supported");
      }
      at_ += 7;
      std::string terminal = read_name(), alias = terminal;
      skip(false);
      if (text_.substr(at_).starts_with("->")) {
        at_ += 2;
        skip(false);
        alias = read_name();
      }
      for (const CommonTerminal& common : kCommon) {
        if (common.name != terminal) continue;
        Result<RegexId> r = build_pattern(common.pattern, builder_.pool(), builder_.speller(), {});
        if (!r) return r.error();
        out_.rules[alias] = {.kind = EbnfExpr::Kind::regex, .regex = *r};
        return {};
      }
      return wrong(strf("common.%s is not supported", terminal.c_str()));
    }
    return wrong(strf("%%%s is not supported", name.c_str()));
  }

  // The line after a body begins a rule, a directive, or goes on with |.
  bool at_end_of_body() {
    size_t saved = at_;
    skip(true);
    bool new_line = text_.substr(saved, at_ - saved).find('\n') != std::string_view::npos;
    bool ends = at_ >= text_.size() || (new_line && text_[at_] != '|');
    if (ends && at_ < text_.size() && depth_ > 0) ends = false;
    if (ends) at_ = saved;
    return ends;
  }

  Result<EbnfExpr> read_options(int depth) {
    if (depth > builder_.limits().max_depth) return wrong("groups are nested too deep");
    int outer = depth_;
    depth_ = depth;
    EbnfExpr alt{.kind = EbnfExpr::Kind::alt};
    alt.parts.push_back({});
    while (true) {
      if (at_end_of_body()) break;
      char c = text_[at_];
      if (c == ')' || c == ']') break;
      if (c == '|') {
        ++at_;
        alt.parts.push_back({});
        continue;
      }
      if (text_.substr(at_).starts_with("->")) {  // names a branch of the tree
        at_ += 2;
        skip(false);
        read_name();
        continue;
      }
      Result<EbnfExpr> item = read_item(depth);
      if (!item) return item;
      alt.parts.back().parts.push_back(std::move(*item));
    }
    depth_ = outer;
    return alt;
  }

  Result<EbnfExpr> read_item(int depth) {
    EbnfExpr item{.kind = EbnfExpr::Kind::regex};
    char c = text_[at_];
    if (c == '"') {
      Result<std::string> text = read_text();
      if (!text) return text.error();
      skip(false);
      if (text_.substr(at_).starts_with("..")) {
        at_ += 2;
        skip(false);
        if (at_ >= text_.size() || text_[at_] != '"') return wrong("\"a\"..\"z\" is expected");
        Result<std::string> last = read_text();
        if (!last) return last.error();
        std::vector<uint32_t> from = code_points_of(*text), to = code_points_of(*last);
        if (from.size() != 1 || to.size() != 1 || from[0] > to[0]) {
          return wrong("a range is between two characters, in order");
        }
        item.regex = builder_.speller().one_of({{from[0], to[0]}}, Spelling::utf8);
      } else {
        item.regex = builder_.pool().literal(*text);
      }
    } else if (c == '/') {
      size_t end = at_ + 1;
      while (end < text_.size() && text_[end] != '/' && text_[end] != '\n') {
        end += text_[end] == '\\' ? 2 : 1;
      }
      if (end >= text_.size() || text_[end] != '/') return wrong("/ without /");
      std::string pattern(text_.substr(at_ + 1, end - at_ - 1));
      at_ = end + 1;
      if (at_ < text_.size() && is_name(text_[at_]))
        return wrong("flags of /.../ are not supported");
      Result<RegexId> r =
          build_pattern(pattern, builder_.pool(), builder_.speller(),
                        {Spelling::utf8, PatternMatch::whole, builder_.limits().max_depth});
      if (!r) return wrong(r.error().message);
      item.regex = *r;
    } else if (c == '(' || c == '[') {
      ++at_;
      Result<EbnfExpr> group = read_options(depth + 1);
      if (!group) return group;
      if (at_ >= text_.size() || text_[at_] != (c == '(' ? ')' : ']')) {
        return wrong(strf("%c is not closed", c));
      }
      ++at_;
      item = std::move(*group);
      if (c == '[') {
        EbnfExpr maybe{.kind = EbnfExpr::Kind::rep, .min = 0, .max = 1};
        maybe.parts.push_back(std::move(item));
        item = std::move(maybe);
      }
    } else if (is_name(c)) {
      item.kind = EbnfExpr::Kind::rule;
      item.rule = read_name();
      if (at_ < text_.size() && text_[at_] == '{') return wrong("templates are not supported");
    } else {
      return wrong(strf("unexpected %s", quote(text_.substr(at_, 1)).c_str()));
    }
    return read_repeat(std::move(item));
  }

  std::optional<uint32_t> read_number() {
    size_t start = at_;
    while (at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9') ++at_;
    if (at_ == start || at_ - start > 7) return std::nullopt;
    return static_cast<uint32_t>(std::stoul(std::string(text_.substr(start, at_ - start))));
  }

  Result<EbnfExpr> read_repeat(EbnfExpr item) {
    while (true) {
      skip(false);
      uint32_t min = 0, max = kUnbounded;
      char c = at_ < text_.size() ? text_[at_] : 0;
      if (c == '*') {
        ++at_;
      } else if (c == '+') {
        min = 1, ++at_;
      } else if (c == '?') {
        max = 1, ++at_;
      } else if (c == '~') {
        ++at_;
        skip(false);
        std::optional<uint32_t> low = read_number(), high = low;
        skip(false);
        if (low && text_.substr(at_).starts_with("..")) {
          at_ += 2;
          skip(false);
          high = read_number();
        }
        if (!low || !high || *low > *high) return wrong("~ n or ~ n..m is expected");
        min = *low, max = *high;
      } else {
        return item;
      }
      EbnfExpr rep{.kind = EbnfExpr::Kind::rep, .min = min, .max = max};
      rep.parts.push_back(std::move(item));
      item = std::move(rep);
    }
  }

  // A JSON-like string; a letter behind it would be a flag.
  Result<std::string> read_text() {
    std::string out;
    for (++at_; at_ < text_.size() && text_[at_] != '"'; ++at_) {
      if (text_[at_] == '\n') return wrong("a string without its closing quote");
      if (text_[at_] != '\\') {
        out += text_[at_];
        continue;
      }
      static constexpr std::string_view kFrom = "nrtf\"\\/", kTo = "\n\r\t\f\"\\/";
      char c = ++at_ < text_.size() ? text_[at_] : 0;
      size_t known = kFrom.find(c);
      if (c == 0 || known == std::string_view::npos) return wrong("an unknown escape");
      out += kTo[known];
    }
    if (at_ >= text_.size()) return wrong("a string without its closing quote");
    ++at_;
    if (at_ < text_.size() && is_name(text_[at_]))
      return wrong("flags of \"...\" are not supported");
    return out;
  }

  // Ignored text may stand before and behind every terminal that a rule names.
  void add_ignored() {
    EbnfExpr any{.kind = EbnfExpr::Kind::alt, .parts = ignored_.parts};
    EbnfExpr loop{.kind = EbnfExpr::Kind::rep, .min = 0, .max = kUnbounded};
    loop.parts.push_back(std::move(any));
    const std::string kName = "ignored text";
    out_.rules[kName] = std::move(loop);
    for (auto& [name, expr] : out_.rules) {
      if (!is_terminal(name) && name != kName) pad(expr, kName);
    }
    if (auto start = out_.rules.find(out_.root); start != out_.rules.end()) {
      EbnfExpr whole{.kind = EbnfExpr::Kind::seq};
      whole.parts.push_back({.kind = EbnfExpr::Kind::rule, .rule = kName});
      whole.parts.push_back({.kind = EbnfExpr::Kind::rule, .rule = out_.root});
      out_.rules["start of the text"] = std::move(whole);
      out_.root = "start of the text";
    }
  }

  static void pad(EbnfExpr& e, const std::string& ignored) {
    bool terminal =
        e.kind == EbnfExpr::Kind::regex || (e.kind == EbnfExpr::Kind::rule && is_terminal(e.rule));
    if (!terminal) {
      for (EbnfExpr& part : e.parts) pad(part, ignored);
      return;
    }
    EbnfExpr padded{.kind = EbnfExpr::Kind::seq};
    padded.parts.push_back(std::move(e));
    padded.parts.push_back({.kind = EbnfExpr::Kind::rule, .rule = ignored});
    e = std::move(padded);
  }

  std::string_view text_;
  size_t at_ = 0;
  int depth_ = 0;
  RuleBuilder& builder_;
  Ebnf out_;
  EbnfExpr ignored_{.kind = EbnfExpr::Kind::alt};
};

}  // namespace

Result<RuleId> build_lark(RuleBuilder& builder, std::string_view text) {
  Result<Ebnf> grammar = LarkReader(text, builder).read();
  if (!grammar) return grammar.error();
  return build_ebnf(builder, std::move(*grammar));
}

}  // namespace sluice::constrain
