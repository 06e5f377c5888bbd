#include "text/jinja/parser.h"

#include <algorithm>
#include <array>
#include <initializer_list>
#include <utility>

#include "base/str.h"
#include "text/jinja/expression_parser.h"

namespace sluice::jinja {
namespace {

using Ends = std::initializer_list<std::string_view>;

class Parser : ExpressionParser {
 public:
  explicit Parser(std::string_view source) : ExpressionParser(source) {}

  Program run() {
    program_.body = block_until({});
    return std::move(program_);
  }

 private:
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
          n->value = make_constant(cur().text);
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
    throw TemplateError{"unknown tag " + quote(tag), line};
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
      if (shape.params.size() >= kMaxParams) fail("too many parameters");
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
};

}  // namespace

Program parse_template(std::string_view source) { return Parser(source).run(); }

}  // namespace sluice::jinja
