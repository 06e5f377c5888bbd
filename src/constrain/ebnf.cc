#include "constrain/ebnf.h"

#include <algorithm>
#include <functional>
#include <set>

#include "base/str.h"

namespace sluice::constrain {

namespace {

using Kind = EbnfExpr::Kind;

class EbnfCompiler {
 public:
  EbnfCompiler(RuleBuilder& builder, Ebnf grammar)
      : builder_(builder), pool_(builder.pool()), grammar_(std::move(grammar)) {}

  Result<RuleId> compile() {
    if (!grammar_.rules.count(grammar_.root)) {
      return Error{400, strf("grammar: there is no rule %s", quote(grammar_.root).c_str())};
    }
    for (auto& [name, expr] : grammar_.rules) {
      if (auto r = check_names(name, expr); !r) return r.error();
    }
    for (auto& [name, expr] : grammar_.rules) turn_left_recursion(name, expr);
    find_nullable();
    find_productive();
    for (const auto& [name, expr] : grammar_.rules) {
      if (!productive_.count(name)) {
        return Error{400, strf("grammar: rule %s matches no text", quote(name).c_str())};
      }
    }
    if (auto r = check_left_recursion(); !r) return r.error();
    find_recursive();
    Result<RuleId> root = rule(grammar_.root);
    while (root && !pending_.empty()) {
      std::string name = pending_.back();
      pending_.pop_back();
      Result<RuleId> body = build(grammar_.rules[name]);
      if (!body) return body;
      builder_.rules().rules[made_[name]].parts = {*body};
      if (builder_.exceeded()) break;
    }
    return root;
  }

 private:
  Result<void> check_names(const std::string& name, const EbnfExpr& e) {
    if (e.kind == Kind::rule && !grammar_.rules.count(e.rule)) {
      return Error{400, strf("grammar: rule %s names %s, which is not defined", quote(name).c_str(),
                             quote(e.rule).c_str())};
    }
    for (const EbnfExpr& part : e.parts) {
      if (auto r = check_names(name, part); !r) return r;
    }
    return {};
  }

  // a: a x | y  becomes  a: y x*
  static void turn_left_recursion(const std::string& name, EbnfExpr& e) {
    if (e.kind != Kind::alt) return;
    std::vector<EbnfExpr> tails, others;
    for (EbnfExpr& option : e.parts) {
      bool left = option.kind == Kind::seq && option.parts.size() > 1 &&
                  option.parts[0].kind == Kind::rule && option.parts[0].rule == name;
      bool itself = option.kind == Kind::rule && option.rule == name;
      if (itself) continue;  // a: a adds nothing
      if (left) {
        option.parts.erase(option.parts.begin());
        tails.push_back(std::move(option));
      } else {
        others.push_back(std::move(option));
      }
    }
    if (tails.empty()) {
      e.parts = std::move(others);
      return;
    }
    EbnfExpr loop{.kind = Kind::rep, .min = 0, .max = kUnbounded};
    loop.parts.push_back({.kind = Kind::alt, .parts = std::move(tails)});
    EbnfExpr whole{.kind = Kind::seq};
    whole.parts.push_back({.kind = Kind::alt, .parts = std::move(others)});
    whole.parts.push_back(std::move(loop));
    e = std::move(whole);
  }

  bool nullable(const EbnfExpr& e) const {
    switch (e.kind) {
      case Kind::regex:
        return pool_.nullable(e.regex);
      case Kind::rule:
        return nullable_.count(e.rule) > 0;
      case Kind::seq:
        return std::all_of(e.parts.begin(), e.parts.end(),
                           [&](const EbnfExpr& p) { return nullable(p); });
      case Kind::alt:
        return std::any_of(e.parts.begin(), e.parts.end(),
                           [&](const EbnfExpr& p) { return nullable(p); });
      case Kind::rep:
        return e.min == 0 || nullable(e.parts[0]);
    }
    return false;
  }

  bool productive(const EbnfExpr& e) {
    switch (e.kind) {
      case Kind::regex:
        return !pool_.is_empty(e.regex);
      case Kind::rule:
        return productive_.count(e.rule) > 0;
      case Kind::seq:
        return std::all_of(e.parts.begin(), e.parts.end(),
                           [&](const EbnfExpr& p) { return productive(p); });
      case Kind::alt:
        return std::any_of(e.parts.begin(), e.parts.end(),
                           [&](const EbnfExpr& p) { return productive(p); });
      case Kind::rep:
        return e.min == 0 || productive(e.parts[0]);
    }
    return false;
  }

  void grow(std::set<std::string>& set, const std::function<bool(const EbnfExpr&)>& test) {
    for (bool more = true; more;) {
      more = false;
      for (const auto& [name, expr] : grammar_.rules) {
        if (!builder_.budget().spend(10)) return;
        if (!set.count(name) && test(expr)) more = set.insert(name).second;
      }
    }
  }
  void find_nullable() {
    grow(nullable_, [&](const EbnfExpr& e) { return nullable(e); });
  }
  void find_productive() {
    grow(productive_, [&](const EbnfExpr& e) { return productive(e); });
  }

  // Rules that may come first in e.
  void firsts(const EbnfExpr& e, std::set<std::string>& out) const {
    if (e.kind == Kind::rule) out.insert(e.rule);
    for (const EbnfExpr& part : e.parts) {
      firsts(part, out);
      if (e.kind == Kind::seq && !nullable(part)) return;
    }
  }

  static void named(const EbnfExpr& e, std::set<std::string>& out) {
    if (e.kind == Kind::rule) out.insert(e.rule);
    for (const EbnfExpr& part : e.parts) named(part, out);
  }

  // Depth first without recursion in C++; calls `back` for a rule that reaches itself.
  Result<void> visit(const std::function<std::set<std::string>(const EbnfExpr&)>& next,
                     const std::function<Result<void>(const std::string&)>& back) {
    std::map<std::string, int> color;
    for (const auto& [root, expr] : grammar_.rules) {
      if (color[root] != 0) continue;
      std::vector<std::pair<std::string, std::vector<std::string>>> stack;
      auto push = [&](const std::string& name) {
        color[name] = 1;
        std::set<std::string> set = next(grammar_.rules[name]);
        stack.push_back({name, {set.begin(), set.end()}});
      };
      push(root);
      while (!stack.empty()) {
        if (!builder_.budget().spend(10)) return {};
        if (stack.back().second.empty()) {
          color[stack.back().first] = 2;
          stack.pop_back();
          continue;
        }
        std::string name = stack.back().second.back();
        stack.back().second.pop_back();
        if (color[name] == 1) {
          for (size_t i = stack.size(); i-- > 0;) {  // the whole cycle
            if (auto r = back(stack[i].first); !r) return r;
            if (stack[i].first == name) break;
          }
        } else if (color[name] == 0) {
          push(name);
        }
      }
    }
    return {};
  }

  Result<void> check_left_recursion() {
    return visit(
        [&](const EbnfExpr& e) {
          std::set<std::string> out;
          firsts(e, out);
          return out;
        },
        [](const std::string& name) -> Result<void> {
          return Error{400, strf("grammar: rule %s begins with itself by way of others; write it "
                                 "with repetition (*, +)",
                                 quote(name).c_str())};
        });
  }

  // A rule that reaches a cycle stays a rule; others are regular expressions.
  void find_recursive() {
    auto all = [&](const EbnfExpr& e) {
      std::set<std::string> out;
      named(e, out);
      return out;
    };
    (void)visit(all, [&](const std::string& name) -> Result<void> {
      recursive_.insert(name);
      return {};
    });
    grow(recursive_, [&](const EbnfExpr& e) {
      std::set<std::string> out = all(e);
      return std::any_of(out.begin(), out.end(),
                         [&](const std::string& n) { return recursive_.count(n) > 0; });
    });
  }

  bool regular(const EbnfExpr& e) const {
    if (e.kind == Kind::rule) return !recursive_.count(e.rule);
    return std::all_of(e.parts.begin(), e.parts.end(),
                       [&](const EbnfExpr& p) { return regular(p); });
  }

  RegexId regex(const EbnfExpr& e) {
    switch (e.kind) {
      case Kind::regex:
        return e.regex;
      case Kind::rule: {
        auto found = regexes_.find(e.rule);
        if (found != regexes_.end()) return found->second;
        RegexId r = regex(grammar_.rules[e.rule]);
        return regexes_[e.rule] = r;
      }
      case Kind::seq: {
        RegexId r = RegexPool::kEps;
        for (size_t i = e.parts.size(); i-- > 0;) r = pool_.concat(regex(e.parts[i]), r);
        return r;
      }
      case Kind::alt: {
        std::vector<RegexId> options;
        for (const EbnfExpr& p : e.parts) options.push_back(regex(p));
        return pool_.any_of(std::move(options));
      }
      case Kind::rep:
        return pool_.repeat(regex(e.parts[0]), e.min, e.max);
    }
    return RegexPool::kEmpty;
  }

  Result<RuleId> rule(const std::string& name) {
    auto [at, is_new] = made_.try_emplace(name, 0);
    if (is_new) {
      at->second = builder_.alt({});
      pending_.push_back(name);
    }
    return at->second;
  }

  Result<RuleId> build(const EbnfExpr& e) {
    if (regular(e)) return builder_.lex(regex(e));
    if (e.kind == Kind::rule) return rule(e.rule);
    std::vector<RuleId> parts;
    for (size_t i = 0; i < e.parts.size(); ++i) {
      // Neighbours that are regular become one expression.
      if (e.kind == Kind::seq && regular(e.parts[i])) {
        RegexId r = RegexPool::kEps;
        size_t end = i;
        while (end < e.parts.size() && regular(e.parts[end])) ++end;
        for (size_t k = end; k-- > i;) r = pool_.concat(regex(e.parts[k]), r);
        parts.push_back(builder_.lex(r));
        i = end - 1;
        continue;
      }
      Result<RuleId> part = build(e.parts[i]);
      if (!part) return part;
      parts.push_back(*part);
    }
    if (e.kind == Kind::seq) return builder_.seq(std::move(parts));
    if (e.kind == Kind::alt) return builder_.alt(std::move(parts));
    ConstraintRule loop{.kind = ConstraintRule::Kind::rep, .parts = std::move(parts)};
    loop.min = e.min, loop.max = e.max;
    return builder_.add(std::move(loop));
  }

  RuleBuilder& builder_;
  RegexPool& pool_;
  Ebnf grammar_;
  std::set<std::string> nullable_, productive_, recursive_;
  std::map<std::string, RegexId> regexes_;
  std::map<std::string, RuleId> made_;
  std::vector<std::string> pending_;
};

}  // namespace

Result<RuleId> build_ebnf(RuleBuilder& builder, Ebnf grammar) {
  return EbnfCompiler(builder, std::move(grammar)).compile();
}

}  // namespace sluice::constrain
