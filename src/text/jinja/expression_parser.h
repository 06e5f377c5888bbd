// Parses the expressions of a Jinja template. Holds what the parser of statements (parser.cc)
// shares with it: reading tokens and making nodes. Used by one parse, on its thread.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/keyed_hash.h"
#include "text/jinja/ast.h"
#include "text/jinja/lexer.h"
#include "text/jinja/parser.h"

namespace sluice::jinja {

class ExpressionParser {
 protected:
  explicit ExpressionParser(std::string_view source) : tokens_(tokenize(source)) {}
  ~ExpressionParser() = default;

  // One level of recursion.
  struct Nest {
    explicit Nest(ExpressionParser& parser) : p(parser) {
      if (++p.nesting_ > kMaxParseDepth) p.fail("nested too deeply");
    }
    ~Nest() { --p.nesting_; }
    ExpressionParser& p;
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
  std::string described() const;  // the current token, for messages
  void expect_op(std::string_view op);
  void expect_kind(TokenKind kind, const char* what);
  std::string expect_name();

  // ---- nodes
  NodePtr make(NodeKind kind, int line);
  NodePtr make(NodeKind kind, int line, NodePtr a, NodePtr b = nullptr);
  void adopt(Node& parent, NodePtr kid);
  void take_call(Node& n, std::unique_ptr<CallSite> site);
  int symbol(const std::string& name);
  NodePtr name_node(const std::string& name, int line);
  NodePtr constant(Value v, int line);

  // ---- expressions
  struct TupleRules {
    bool conditional = false;  // a if b else c is allowed
    bool simple = false;       // names and literals only
    bool attribute = false;    // simple: a.b too
    bool parenthesized = false;
    std::string_view end_name = "";
  };
  NodePtr tuple_or_expression(TupleRules r);
  NodePtr expression();
  NodePtr or_expression();
  NodePtr primary(bool with_attribute);
  NodePtr filter_chain(NodePtr subject, bool inline_first);

  Program program_;
  std::vector<MacroShape*> macros_;  // the bodies around this point
  int loops_ = 0;                    // around this point, within the current function body

 private:
  template <typename Operand>
  NodePtr chain(NodeKind kind, std::string_view word, bool is_word, Operand operand);
  NodePtr and_expression();
  NodePtr not_expression();
  NodePtr comparison();
  template <typename Operand>
  NodePtr left_assoc(std::initializer_list<std::pair<std::string_view, Op>> ops, Operand operand);
  NodePtr sum();
  NodePtr product();
  NodePtr unary(bool with_filter);
  template <typename Item>
  void items(const Node& n, std::string_view close, Item item);
  NodePtr name_primary(int line, bool with_attribute);
  NodePtr number(int line);
  NodePtr postfix(NodePtr n);
  NodePtr subscript(int line);
  NodePtr slice_or_expression();
  std::unique_ptr<CallSite> call_site();
  void argument(CallSite& site);
  std::string dotted_name();
  NodePtr filters(NodePtr n);
  NodePtr test(NodePtr subject, int line);

  std::vector<LexToken> tokens_;
  size_t at_ = 0;
  int nesting_ = 0;
  std::unordered_map<std::string, int, KeyedHash, std::equal_to<>> symbol_ids_;
};

}  // namespace sluice::jinja
