#include "text/jinja/expression_parser.h"

#include <charconv>
#include <initializer_list>
#include <utility>

#include "base/str.h"
#include "text/jinja/bigint.h"

namespace sluice::jinja {

std::string ExpressionParser::described() const {
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
      return quote(cur().text);
  }
  return "";
}

void ExpressionParser::expect_op(std::string_view op) {
  if (!skip_op(op))
    fail(strf("expected '%s', got %s", std::string(op).c_str(), described().c_str()));
}

void ExpressionParser::expect_kind(TokenKind kind, const char* what) {
  if (cur().kind != kind) fail(strf("expected %s, got %s", what, described().c_str()));
  next();
}

std::string ExpressionParser::expect_name() {
  if (cur().kind != TokenKind::name) fail("expected a name, got " + described());
  std::string text = cur().text;
  next();
  return text;
}

NodePtr ExpressionParser::make(NodeKind kind, int line) {
  auto n = std::make_unique<Node>();
  n->kind = kind;
  n->line = line;
  return n;
}
NodePtr ExpressionParser::make(NodeKind kind, int line, NodePtr a, NodePtr b) {
  NodePtr n = make(kind, line);
  adopt(*n, std::move(a));
  if (b) adopt(*n, std::move(b));
  return n;
}
void ExpressionParser::adopt(Node& parent, NodePtr kid) {
  if (kid && (parent.depth = std::max(parent.depth, kid->depth + 1)) > kMaxTreeDepth) {
    fail("expression too deep");
  }
  parent.kids.push_back(std::move(kid));
}
void ExpressionParser::take_call(Node& n, std::unique_ptr<CallSite> site) {
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
int ExpressionParser::symbol(const std::string& name) {
  auto [it, fresh] = symbol_ids_.emplace(name, static_cast<int>(program_.symbols.size()));
  if (fresh) program_.symbols.push_back(name);
  return it->second;
}
NodePtr ExpressionParser::name_node(const std::string& name, int line) {
  bool implicit = name == "caller" || name == "varargs" || name == "kwargs";
  for (MacroShape* m : macros_) {
    if (!implicit) break;
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
NodePtr ExpressionParser::constant(Value v, int line) {
  NodePtr n = make(NodeKind::constant, line);
  n->value = std::move(v);
  return n;
}

NodePtr ExpressionParser::tuple_or_expression(TupleRules r) {
  int line = cur().line;
  NodePtr tuple = make(NodeKind::tuple, line);
  bool comma = false;
  for (;;) {
    if (!tuple->kids.empty()) expect_op(",");
    bool end = cur().kind == TokenKind::variable_end || cur().kind == TokenKind::block_end ||
               is_op(")") || (!r.end_name.empty() && is_name(r.end_name));
    if (end) break;
    adopt(*tuple, r.simple ? primary(r.attribute) : r.conditional ? expression() : or_expression());
    if (!is_op(",")) break;
    comma = true;
  }
  if (!comma && !tuple->kids.empty()) return std::move(tuple->kids[0]);
  if (!comma && !r.parenthesized) fail("expected an expression, got " + described());
  return tuple;
}

NodePtr ExpressionParser::expression() {
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
NodePtr ExpressionParser::chain(NodeKind kind,
                                std::string_view word,
                                bool is_word,
                                Operand operand) {
  int line = cur().line;
  NodePtr first = operand();
  NodePtr all;
  while (is_word ? skip_name(word) : skip_op(word)) {
    if (!all) all = make(kind, line, std::move(first));
    adopt(*all, operand());
  }
  return all ? std::move(all) : std::move(first);
}
NodePtr ExpressionParser::or_expression() {
  Nest nest(*this);
  return chain(NodeKind::or_, "or", true, [&] { return and_expression(); });
}
NodePtr ExpressionParser::and_expression() {
  return chain(NodeKind::and_, "and", true, [&] { return not_expression(); });
}
NodePtr ExpressionParser::not_expression() {
  int line = cur().line;
  if (!skip_name("not")) return comparison();
  Nest nest(*this);
  return make(NodeKind::not_, line, not_expression());
}

NodePtr ExpressionParser::comparison() {
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
NodePtr ExpressionParser::left_assoc(std::initializer_list<std::pair<std::string_view, Op>> ops,
                                     Operand operand) {
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
NodePtr ExpressionParser::sum() {
  return left_assoc({{"+", Op::add}, {"-", Op::sub}},
                    [&] { return chain(NodeKind::concat, "~", false, [&] { return product(); }); });
}
NodePtr ExpressionParser::product() {
  return left_assoc({{"*", Op::mul}, {"/", Op::div}, {"//", Op::floordiv}, {"%", Op::mod}}, [&] {
    return left_assoc({{"**", Op::pow}}, [&] { return unary(true); });
  });
}

NodePtr ExpressionParser::unary(bool with_filter) {
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

NodePtr ExpressionParser::primary(bool with_attribute) {
  int line = cur().line;
  switch (cur().kind) {
    case TokenKind::name:
      return name_primary(line, with_attribute);
    case TokenKind::string: {
      std::string text;
      for (; cur().kind == TokenKind::string; next()) text += cur().text;
      return constant(make_constant(std::move(text)), line);
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
void ExpressionParser::items(const Node& n, std::string_view close, Item item) {
  while (!is_op(close)) {
    if (!n.kids.empty()) expect_op(",");
    if (is_op(close)) break;
    item();
  }
  next();
}

NodePtr ExpressionParser::name_primary(int line, bool with_attribute) {
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

namespace {

// Text of the template itself is not charged to a rendering.
Value big_constant(std::string_view digits, int radix) {
  Meter meter(10'000'000, size_t{1} << 20);
  BigInt big(meter);
  BigInt::parse(meter, digits, radix, big);
  return {Kind::big_integer, make_constant(big.digits()).shared()};
}

}  // namespace

NodePtr ExpressionParser::number(int line) {
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
    if (ec == std::errc()) {
      v = Value::integer(i);
    } else {
      v = big_constant(std::string_view(begin, static_cast<size_t>(end - begin)), radix);
    }
  }
  next();
  return constant(std::move(v), line);
}

NodePtr ExpressionParser::postfix(NodePtr n) {
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

NodePtr ExpressionParser::subscript(int line) {
  NodePtr all = make(NodeKind::tuple, line);
  while (!is_op("]")) {
    if (!all->kids.empty()) expect_op(",");
    adopt(*all, slice_or_expression());
  }
  next();
  return all->kids.size() == 1 ? std::move(all->kids[0]) : std::move(all);
}

NodePtr ExpressionParser::slice_or_expression() {
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

std::unique_ptr<CallSite> ExpressionParser::call_site() {
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

void ExpressionParser::argument(CallSite& site) {
  auto ensure = [&](bool ok) {
    if (!ok) fail("arguments in the wrong order");
  };
  if (skip_op("*")) {
    ensure(!site.star && !site.star_star);
    site.star = expression();
  } else if (skip_op("**")) {
    ensure(!site.star_star);
    site.star_star = expression();
  } else if (cur().kind == TokenKind::name && look().kind == TokenKind::op && look().text == "=") {
    ensure(!site.star_star);
    if (site.kwargs.size() >= kMaxParams) fail("too many keyword arguments");
    std::string key = expect_name();
    next();
    for (const auto& [k, v] : site.kwargs) {
      if (k == key) fail("keyword argument repeated: " + quote(key));
    }
    site.kwargs.emplace_back(std::move(key), expression());
  } else {
    ensure(!site.star && !site.star_star && site.kwargs.empty());
    site.args.push_back(expression());
  }
}

std::string ExpressionParser::dotted_name() {
  std::string name = expect_name();
  while (skip_op(".")) name += "." + expect_name();
  return name;
}

// subject | f | g(...); `inline_first`: the first filter has no bar ({% filter f %}).
NodePtr ExpressionParser::filter_chain(NodePtr subject, bool inline_first) {
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

NodePtr ExpressionParser::filters(NodePtr n) {
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

NodePtr ExpressionParser::test(NodePtr subject, int line) {
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

}  // namespace sluice::jinja
