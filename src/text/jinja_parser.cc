#include "text/jinja_parser.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <initializer_list>
#include <unordered_map>

#include "base/str.h"
#include "text/jinja_lexer.h"

namespace sluice::jinja {
namespace {

using Ends = std::initializer_list<std::string_view>;

class Parser {
 public:
  explicit Parser(std::string_view source) : tokens_(tokenize(source)) {}

  Program run() {
    program_.body = block_until({});
    return std::move(program_);
  }

 private:
  // One level of recursion.
  struct Nest {
    explicit Nest(Parser& parser) : p(parser) {
      if (++p.nesting_ > kMaxParseDepth) p.fail("nested too deeply");
    }
    ~Nest() { --p.nesting_; }
    Parser& p;
  };

  // ---- tokens
  const LexToken& cur() const { return tokens_[at_]; }
  const LexToken& look() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  void next() {
    if (at_ + 1 < tokens_.size()) ++at_;
  }
  bool is_op(std::string_view op) const { return cur().kind == TokenKind::op && cur().text == op; }
  bool is_name(std::string_view n) const {
    return cur().kind == TokenKind::name && cur().text == n;
  }
  bool skip_op(std::string_view op) {
    bool hit = is_op(op);
    if (hit) next();
    return hit;
  }
  bool skip_name(std::string_view n) {
    bool hit = is_name(n);
    if (hit) next();
    return hit;
  }
  [[noreturn]] void fail(const std::string& message) const {
    throw TemplateError{message, cur().line};
  }
  std::string described() const {
    switch (cur().kind) {
      case TokenKind::eof:
        return "end of template";
      case TokenKind::data:
        return "template text";
      case TokenKind::variable_begin:
        return "'{{'";
      case TokenKind::variable_end:
        return "'}}'";
      case TokenKind::block_begin:
        return "'{%'";
      case TokenKind::block_end:
        return "'%}'";
      case TokenKind::name:
      case TokenKind::string:
      case TokenKind::integer:
      case TokenKind::real:
      case TokenKind::op:
        return quoted(cur().text);
    }
    return "";
  }
  void expect_op(std::string_view op) {
    if (!skip_op(op))
      fail(strf("expected '%s', got %s", std::string(op).c_str(), described().c_str()));
  }
  void expect_kind(TokenKind kind, const char* what) {
    if (cur().kind != kind) fail(strf("expected %s, got %s", what, described().c_str()));
    next();
  }
  std::string expect_name() {
    if (cur().kind != TokenKind::name) fail("expected a name, got " + described());
    std::string text = cur().text;
    next();
    return text;
  }

  // ---- nodes
  NodePtr make(NodeKind kind, int line) {
    auto n = std::make_unique<Node>();
    n->kind = kind;
    n->line = line;
    return n;
  }
  NodePtr make(NodeKind kind, int line, NodePtr a, NodePtr b = nullptr) {
    NodePtr n = make(kind, line);
    adopt(*n, std::move(a));
    if (b) adopt(*n, std::move(b));
    return n;
  }
  void adopt(Node& parent, NodePtr kid) {
    if (kid && (parent.depth = std::max(parent.depth, kid->depth + 1)) > kMaxTreeDepth) {
      fail("expression too deep");
    }
    parent.kids.push_back(std::move(kid));
  }
  void take_call(Node& n, std::unique_ptr<CallSite> site) {
    auto below = [&](const NodePtr& kid) {
      if (kid) n.depth = std::max(n.depth, kid->depth + 1);
    };
    for (const NodePtr& a : site->args) below(a);
    for (const auto& kw : site->kwargs) below(kw.second);
    below(site->star);
    below(site->star_star);
    if (n.depth > kMaxTreeDepth) fail("expression too deep");
    n.call = std::move(site);
  }
  int symbol(const std::string& name) {
    auto [it, fresh] = symbol_ids_.emplace(name, static_cast<int>(program_.symbols.size()));
    if (fresh) program_.symbols.push_back(name);
    return it->second;
  }
  NodePtr name_node(const std::string& name, int line) {
    for (MacroShape* m : macros_) {
      bool own = std::any_of(m->params.begin(), m->params.end(),
                             [&](const Param& p) { return p.name == name; });
      if (own) continue;
      m->takes_caller |= name == "caller";
      m->takes_varargs |= name == "varargs";
      m->takes_kwargs |= name == "kwargs";
    }
    NodePtr n = make(NodeKind::name, line);
    n->sym = symbol(name);
    n->text = name;
    return n;
  }
  NodePtr constant(Value v, int line) {
    NodePtr n = make(NodeKind::constant, line);
    n->value = std::move(v);
    return n;
  }

  // ---- statements
  // Up to a block that starts with one of `ends` (left as the current token) or the end of the
  // template.
  Block block_until(Ends ends) {
    Nest nest(*this);
    Block out;
    for (;;) {
      int line = cur().line;
      switch (cur().kind) {
        case TokenKind::eof:
          if (ends.size() > 0) {
            fail(strf("unexpected end of template; '%s' is missing",
                      std::string(*ends.begin()).c_str()));
          }
          return out;
        case TokenKind::data: {
          NodePtr n = make(NodeKind::data, line);
          n->value = make_constant(Text(cur().text, true));
          out.push_back(std::move(n));
          next();
          break;
        }
        case TokenKind::variable_begin:
          next();
          out.push_back(make(NodeKind::output, line, tuple_or_expression({.conditional = true})));
          expect_kind(TokenKind::variable_end, "'}}'");
          break;
        case TokenKind::block_begin:
          next();
          if (std::any_of(ends.begin(), ends.end(), [&](auto e) { return is_name(e); })) return out;
          out.push_back(statement());
          expect_kind(TokenKind::block_end, "'%}'");
          break;
        default:
          fail("unexpected " + described());
      }
    }
  }

  // The rest of a block's own tag, then its body; stops at the name of the closing tag.
  Block body_until(Ends ends) {
    skip_op(":");
    expect_kind(TokenKind::block_end, "'%}'");
    return block_until(ends);
  }
  Block whole_body(std::string_view end) {
    Block b = body_until({end});
    next();
    return b;
  }

  NodePtr statement() {
    int line = cur().line;
    std::string tag = expect_name();
    if (tag == "if") return if_statement(line);
    if (tag == "for") return for_statement(line);
    if (tag == "set") return set_statement(line);
    if (tag == "macro") return macro_statement(line);
    if (tag == "call") return call_statement(line);
    if (tag == "filter") {
      NodePtr n = make(NodeKind::filter_block, line, filter_chain(nullptr, true));
      n->branches.push_back(captured_body("endfilter"));
      return n;
    }
    if (tag == "with") return with_statement(line);
    if (tag == "generation") return scope_statement(line, "endgeneration");
    if (tag == "block") {
      expect_name();
      skip_name("scoped");
      NodePtr n = scope_statement(line, "endblock");
      if (cur().kind == TokenKind::name) next();
      return n;
    }
    if (tag == "print") return print_statement(line);
    if (tag == "break" || tag == "continue") {
      if (loops_ == 0) fail(strf("'%s' outside of a loop", tag.c_str()));
      return make(tag == "break" ? NodeKind::break_ : NodeKind::continue_, line);
    }
    static constexpr std::array<std::string_view, 5> kForeign = {"include", "import", "from",
                                                                 "extends", "autoescape"};
    if (std::find(kForeign.begin(), kForeign.end(), tag) != kForeign.end()) {
      throw TemplateError{
          strf("{%% %s %%} is not supported: a chat template is one file", tag.c_str()), line};
    }
    throw TemplateError{"unknown tag " + quoted(tag), line};
  }

  NodePtr if_statement(int line) {
    NodePtr n = make(NodeKind::if_, line);
    for (;;) {
      adopt(*n, tuple_or_expression({}));
      n->branches.push_back(body_until({"endif", "elif", "else"}));
      if (skip_name("elif")) continue;
      if (skip_name("else")) n->orelse = body_until({"endif"});
      next();
      return n;
    }
  }

  NodePtr for_statement(int line) {
    NodePtr n = make(NodeKind::for_, line);
    adopt(*n, target("in", false));
    if (!skip_name("in")) fail("expected 'in', got " + described());
    adopt(*n, tuple_or_expression({.end_name = "recursive"}));
    adopt(*n, skip_name("if") ? expression() : nullptr);
    n->recursive = skip_name("recursive");
    ++loops_;
    n->branches.push_back(body_until({"endfor", "else"}));
    --loops_;
    if (skip_name("else")) n->orelse = body_until({"endfor"});
    next();
    return n;
  }

  NodePtr set_statement(int line) {
    NodePtr to = target("", true);
    if (skip_op("=")) {
      return make(NodeKind::set, line, std::move(to), tuple_or_expression({.conditional = true}));
    }
    NodePtr n = make(NodeKind::set_block, line, std::move(to));
    adopt(*n, is_op("|") ? filter_chain(nullptr, false) : nullptr);
    n->branches.push_back(captured_body("endset"));
    return n;
  }

  // A body whose output is collected: break and continue cannot leave it.
  Block captured_body(std::string_view end) {
    int outer_loops = std::exchange(loops_, 0);
    Block b = whole_body(end);
    loops_ = outer_loops;
    return b;
  }
  Block function_body(MacroShape& shape, std::string_view end) {
    macros_.push_back(&shape);
    Block b = captured_body(end);
    macros_.pop_back();
    return b;
  }

  NodePtr macro_statement(int line) {
    NodePtr n = make(NodeKind::macro, line);
    n->macro = std::make_unique<MacroShape>();
    n->macro->name = expect_name();
    n->sym = symbol(n->macro->name);
    signature(*n->macro);
    n->branches.push_back(function_body(*n->macro, "endmacro"));
    return n;
  }

  NodePtr call_statement(int line) {
    auto shape = std::make_unique<MacroShape>();
    shape->name = "caller";
    if (is_op("(")) signature(*shape);
    NodePtr call = expression();
    if (call->kind != NodeKind::call) fail("expected a call");
    NodePtr n = make(NodeKind::call_block, line, std::move(call));
    n->branches.push_back(function_body(*shape, "endcall"));
    n->macro = std::move(shape);
    return n;
  }

  void signature(MacroShape& shape) {
    expect_op("(");
    while (!is_op(")")) {
      if (!shape.params.empty()) expect_op(",");
      Param p;
      p.name = expect_name();
      p.sym = symbol(p.name);
      if (skip_op("=")) {
        p.fallback = expression();
      } else if (!shape.params.empty() && shape.params.back().fallback) {
        fail("non-default argument follows default argument");
      }
      shape.params.push_back(std::move(p));
    }
    next();
  }

  NodePtr with_statement(int line) {
    NodePtr n = make(NodeKind::with, line);
    while (cur().kind != TokenKind::block_end) {
      if (!n->kids.empty()) expect_op(",");
      adopt(*n, target("", false));
      expect_op("=");
      adopt(*n, expression());
    }
    n->branches.push_back(whole_body("endwith"));
    return n;
  }

  NodePtr scope_statement(int line, std::string_view end) {
    NodePtr n = make(NodeKind::scope, line);
    n->branches.push_back(captured_body(end));
    return n;
  }

  NodePtr print_statement(int line) {
    NodePtr n = make(NodeKind::output, line);
    while (cur().kind != TokenKind::block_end) {
      if (!n->kids.empty()) expect_op(",");
      adopt(*n, expression());
    }
    return n;
  }

  NodePtr target(std::string_view end_name, bool with_attribute) {
    NodePtr n =
        tuple_or_expression({.simple = true, .attribute = with_attribute, .end_name = end_name});
    check_target(*n);
    return n;
  }
  void check_target(const Node& n) const {
    bool ok =
        n.kind == NodeKind::name || n.kind == NodeKind::ns_attribute || n.kind == NodeKind::tuple;
    if (!ok) throw TemplateError{"cannot assign to this; use a name", n.line};
    if (n.kind != NodeKind::tuple) return;
    for (const NodePtr& k : n.kids) check_target(*k);
  }

  // ---- expressions
  struct TupleRules {
    bool conditional = false;  // a if b else c is allowed
    bool simple = false;       // names and literals only
    bool attribute = false;    // simple: a.b too
    bool parenthesized = false;
    std::string_view end_name = "";
  };

  NodePtr tuple_or_expression(TupleRules r) {
    int line = cur().line;
    NodePtr tuple = make(NodeKind::tuple, line);
    bool comma = false;
    for (;;) {
      if (!tuple->kids.empty()) expect_op(",");
      bool end = cur().kind == TokenKind::variable_end || cur().kind == TokenKind::block_end ||
                 is_op(")") || (!r.end_name.empty() && is_name(r.end_name));
      if (end) break;
      adopt(*tuple, r.simple        ? primary(r.attribute)
                    : r.conditional ? expression()
                                    : or_expression());
      if (!is_op(",")) break;
      comma = true;
    }
    if (!comma && !tuple->kids.empty()) return std::move(tuple->kids[0]);
    if (!comma && !r.parenthesized) fail("expected an expression, got " + described());
    return tuple;
  }

  NodePtr expression() {
    Nest nest(*this);
    int line = cur().line;
    NodePtr left = or_expression();
    while (skip_name("if")) {
      NodePtr condition = or_expression();
      NodePtr other = skip_name("else") ? expression() : nullptr;
      NodePtr n = make(NodeKind::ternary, line, std::move(left), std::move(condition));
      adopt(*n, std::move(other));
      left = std::move(n);
    }
    return left;
  }

  // a op b op c ... as one node with all operands.
  template <typename Operand>
  NodePtr chain(NodeKind kind, std::string_view word, bool is_word, Operand operand) {
    int line = cur().line;
    NodePtr first = operand();
    NodePtr all;
    while (is_word ? skip_name(word) : skip_op(word)) {
      if (!all) all = make(kind, line, std::move(first));
      adopt(*all, operand());
    }
    return all ? std::move(all) : std::move(first);
  }
  NodePtr or_expression() {
    Nest nest(*this);
    return chain(NodeKind::or_, "or", true, [&] { return and_expression(); });
  }
  NodePtr and_expression() {
    return chain(NodeKind::and_, "and", true, [&] { return not_expression(); });
  }
  NodePtr not_expression() {
    int line = cur().line;
    if (!skip_name("not")) return comparison();
    Nest nest(*this);
    return make(NodeKind::not_, line, not_expression());
  }

  NodePtr comparison() {
    int line = cur().line;
    NodePtr first = sum();
    NodePtr all;
    for (;;) {
      static const std::unordered_map<std::string_view, Op> kOps = {{"==", Op::eq}, {"!=", Op::ne},
                                                                    {"<", Op::lt},  {"<=", Op::le},
                                                                    {">", Op::gt},  {">=", Op::ge}};
      Op op = Op::in;
      if (auto it = kOps.find(cur().text); cur().kind == TokenKind::op && it != kOps.end()) {
        op = it->second;
      } else if (is_name("not") && look().kind == TokenKind::name && look().text == "in") {
        next();
        op = Op::not_in;
      } else if (!is_name("in")) {
        return all ? std::move(all) : std::move(first);
      }
      next();
      if (!all) all = make(NodeKind::compare, line, std::move(first));
      all->ops.push_back(op);
      adopt(*all, sum());
    }
  }

  template <typename Operand>
  NodePtr left_assoc(std::initializer_list<std::pair<std::string_view, Op>> ops, Operand operand) {
    NodePtr left = operand();
    for (;;) {
      auto it = std::find_if(ops.begin(), ops.end(), [&](const auto& o) { return is_op(o.first); });
      if (it == ops.end()) return left;
      int line = cur().line;
      next();
      left = make(NodeKind::binary, line, std::move(left), operand());
      left->op = it->second;
    }
  }
  NodePtr sum() {
    return left_assoc({{"+", Op::add}, {"-", Op::sub}}, [&] {
      return chain(NodeKind::concat, "~", false, [&] { return product(); });
    });
  }
  NodePtr product() {
    return left_assoc({{"*", Op::mul}, {"/", Op::div}, {"//", Op::floordiv}, {"%", Op::mod}}, [&] {
      return left_assoc({{"**", Op::pow}}, [&] { return unary(true); });
    });
  }

  NodePtr unary(bool with_filter) {
    int line = cur().line;
    NodePtr n;
    if (is_op("-") || is_op("+")) {
      Nest nest(*this);
      NodeKind kind = is_op("-") ? NodeKind::negate : NodeKind::plus;
      next();
      n = make(kind, line, unary(false));
    } else {
      n = primary(false);
    }
    n = postfix(std::move(n));
    return with_filter ? filters(std::move(n)) : std::move(n);
  }

  NodePtr primary(bool with_attribute) {
    int line = cur().line;
    switch (cur().kind) {
      case TokenKind::name:
        return name_primary(line, with_attribute);
      case TokenKind::string: {
        std::string text;
        for (; cur().kind == TokenKind::string; next()) text += cur().text;
        return constant(make_constant(Text(std::move(text), true)), line);
      }
      case TokenKind::integer:
      case TokenKind::real:
        return number(line);
      default:
        break;
    }
    if (skip_op("(")) {
      NodePtr n = tuple_or_expression({.conditional = true, .parenthesized = true});
      expect_op(")");
      return n;
    }
    if (skip_op("[")) {
      NodePtr n = make(NodeKind::list, line);
      items(*n, "]", [&] { adopt(*n, expression()); });
      return n;
    }
    if (skip_op("{")) {
      NodePtr n = make(NodeKind::dict, line);
      items(*n, "}", [&] {
        adopt(*n, expression());
        expect_op(":");
        adopt(*n, expression());
      });
      return n;
    }
    fail("unexpected " + described());
  }

  template <typename Item>
  void items(const Node& n, std::string_view close, Item item) {
    while (!is_op(close)) {
      if (!n.kids.empty()) expect_op(",");
      if (is_op(close)) break;
      item();
    }
    next();
  }

  NodePtr name_primary(int line, bool with_attribute) {
    std::string name = expect_name();
    if (name == "true" || name == "True") return constant(Value::boolean(true), line);
    if (name == "false" || name == "False") return constant(Value::boolean(false), line);
    if (name == "none" || name == "None") return constant(Value::none(), line);
    NodePtr n = name_node(name, line);
    if (with_attribute && skip_op(".")) {
      n->kind = NodeKind::ns_attribute;
      n->text = expect_name();
    }
    return n;
  }

  NodePtr number(int line) {
    const std::string& text = cur().text;
    Value v;
    if (cur().kind == TokenKind::real) {
      double d = 0;
      auto [end, ec] = std::from_chars(text.data(), text.data() + text.size(), d);
      if (ec != std::errc()) fail("number out of range");
      v = Value::real(d);
    } else {
      int radix = 10;
      if (text.size() > 2) {
        char c = static_cast<char>(text[1] | 32);
        radix = c == 'x' ? 16 : c == 'o' ? 8 : c == 'b' ? 2 : 10;
      }
      int64_t i = 0;
      const char* begin = text.data() + (radix == 10 ? 0 : 2);
      auto [end, ec] = std::from_chars(begin, text.data() + text.size(), i, radix);
      if (ec != std::errc()) fail("integer out of range (64 bits)");
      v = Value::integer(i);
    }
    next();
    return constant(std::move(v), line);
  }

  NodePtr postfix(NodePtr n) {
    for (;;) {
      int line = cur().line;
      if (skip_op(".")) {
        if (cur().kind == TokenKind::integer) {
          n = make(NodeKind::item, line, std::move(n), number(line));
        } else {
          n = make(NodeKind::attribute, line, std::move(n));
          n->text = expect_name();
        }
      } else if (skip_op("[")) {
        n = make(NodeKind::item, line, std::move(n), subscript(line));
      } else if (is_op("(")) {
        n = make(NodeKind::call, line, std::move(n));
        take_call(*n, call_site());
      } else {
        return n;
      }
    }
  }

  NodePtr subscript(int line) {
    NodePtr all = make(NodeKind::tuple, line);
    while (!is_op("]")) {
      if (!all->kids.empty()) expect_op(",");
      adopt(*all, slice_or_expression());
    }
    next();
    return all->kids.size() == 1 ? std::move(all->kids[0]) : std::move(all);
  }

  NodePtr slice_or_expression() {
    int line = cur().line;
    NodePtr first = is_op(":") ? nullptr : expression();
    if (!skip_op(":")) return first;
    NodePtr n = make(NodeKind::slice, line);
    adopt(*n, std::move(first));
    auto bound = [&] { return is_op(":") || is_op("]") || is_op(",") ? nullptr : expression(); };
    adopt(*n, bound());
    adopt(*n, skip_op(":") ? bound() : nullptr);
    return n;
  }

  std::unique_ptr<CallSite> call_site() {
    auto site = std::make_unique<CallSite>();
    expect_op("(");
    bool first = true;
    while (!is_op(")")) {
      if (!first) {
        expect_op(",");
        if (is_op(")")) break;
      }
      first = false;
      argument(*site);
    }
    next();
    return site;
  }

  void argument(CallSite& site) {
    auto ensure = [&](bool ok) {
      if (!ok) fail("arguments in the wrong order");
    };
    if (skip_op("*")) {
      ensure(!site.star && !site.star_star);
      site.star = expression();
    } else if (skip_op("**")) {
      ensure(!site.star_star);
      site.star_star = expression();
    } else if (cur().kind == TokenKind::name && look().kind == TokenKind::op &&
               look().text == "=") {
      ensure(!site.star_star);
      std::string key = expect_name();
      next();
      for (const auto& [k, v] : site.kwargs) {
        if (k == key) fail("keyword argument repeated: " + quoted(key));
      }
      site.kwargs.emplace_back(std::move(key), expression());
    } else {
      ensure(!site.star && !site.star_star && site.kwargs.empty());
      site.args.push_back(expression());
    }
  }

  std::string dotted_name() {
    std::string name = expect_name();
    while (skip_op(".")) name += "." + expect_name();
    return name;
  }

  // subject | f | g(...); `inline_first`: the first filter has no bar ({% filter f %}).
  NodePtr filter_chain(NodePtr subject, bool inline_first) {
    while (inline_first || is_op("|")) {
      if (!inline_first) next();
      inline_first = false;
      NodePtr n = make(NodeKind::filter, cur().line, std::move(subject));
      n->text = dotted_name();
      take_call(*n, is_op("(") ? call_site() : std::make_unique<CallSite>());
      subject = std::move(n);
    }
    return subject;
  }

  NodePtr filters(NodePtr n) {
    for (;;) {
      int line = cur().line;
      if (is_op("|")) {
        n = filter_chain(std::move(n), false);
      } else if (skip_name("is")) {
        n = test(std::move(n), line);
      } else if (is_op("(")) {
        n = make(NodeKind::call, line, std::move(n));
        take_call(*n, call_site());
      } else {
        return n;
      }
    }
  }

  NodePtr test(NodePtr subject, int line) {
    bool negated = skip_name("not");
    NodePtr n = make(NodeKind::test, line, std::move(subject));
    n->text = dotted_name();
    bool argument_follows = cur().kind == TokenKind::name || cur().kind == TokenKind::string ||
                            cur().kind == TokenKind::integer || cur().kind == TokenKind::real ||
                            is_op("[") || is_op("{");
    auto site = std::make_unique<CallSite>();
    if (is_op("(")) {
      site = call_site();
    } else if (argument_follows && !is_name("else") && !is_name("or") && !is_name("and")) {
      if (is_name("is")) fail("tests with 'is' cannot be chained");
      site->args.push_back(postfix(primary(false)));
    }
    take_call(*n, std::move(site));
    return negated ? make(NodeKind::not_, line, std::move(n)) : std::move(n);
  }

  std::vector<LexToken> tokens_;
  size_t at_ = 0;
  int nesting_ = 0;
  int loops_ = 0;  // around this point, within the current function body
  std::vector<MacroShape*> macros_;
  std::unordered_map<std::string, int> symbol_ids_;
  Program program_;
};

}  // namespace

Program parse_template(std::string_view source) { return Parser(source).run(); }

}  // namespace sluice::jinja
