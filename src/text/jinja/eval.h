// Runs a parsed template. One Machine renders once, on one thread; the Program is only read.
// Recursion (calls, nested expressions) is counted, so the stack stays bounded.
#pragma once

#include <ctime>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/jinja/ast.h"
#include "text/jinja/value.h"

namespace sluice::jinja {

inline constexpr int kMaxEvalDepth = 1000;  // about 1 KiB of stack each

inline constexpr size_t kMaxKeywords = 256;      // of one call
inline constexpr size_t kMaxKeywordBytes = 256;  // of each name

struct CallArgs {
  using Keyword = std::pair<std::string, Value>;
  explicit CallArgs(Meter& m) : pos(m), kw(m) {}
  CallArgs(Meter& m, std::initializer_list<Value> values) : pos(values, m), kw(m) {}
  CallArgs from(size_t i) const;  // without the first `i`
  Values pos;
  std::vector<Keyword, Metered<Keyword>> kw;
};

class Machine;
using Function = Value (*)(Machine&, const Value& self, CallArgs&);

// Variables of one block. Blocks nest; a macro keeps the scope that it was defined in.
struct Scope {
  using Var = std::pair<int, Value>;
  Scope(Meter& m, Scope* outer) : parent(outer), vars(m) {}
  const Value* find(Meter& m, int sym) const;
  void set(Meter& m, int sym, Value v);

  Scope* parent;
  bool captured = false;                // a macro refers to it: it lives as long as the machine
  std::vector<Var, Metered<Var>> vars;  // at most one for each name in the template
};

struct FunctionObject final : Object {
  std::string name;
  Function fn = nullptr;
  Value self;
};

struct MacroObject final : Object {
  const Node* node = nullptr;
  Scope* scope = nullptr;
};

struct LoopObject final : Object {
  explicit LoopObject(Meter& m) : last_seen(m) {}
  Value items;
  size_t index = 0;
  int nesting = 0;  // loop.depth0
  const Node* node = nullptr;
  Scope* scope = nullptr;
  Values last_seen;  // loop.changed
  bool seen_any = false;
  void clear() override { last_seen.clear(); }
};

struct CyclerObject final : Object {
  Value items;
  size_t index = 0;
};

struct JoinerObject final : Object {
  Value separator;
  bool used = false;
};

struct MachineLimits {
  int max_call_depth;
  size_t max_output;
};

class Machine {
 public:
  Machine(Meter& m, const Program& program, MachineLimits limits, const std::tm& now);
  ~Machine();
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;

  void define(std::string_view name, Value v);  // a variable of the template's context
  Text run();

  // What functions, filters and tests use.
  Meter& meter;
  [[noreturn]] void fail(std::string message) const { meter.fail(std::move(message)); }
  Value call(const Value& callee, CallArgs& args);
  Value filter(std::string_view name, const Value& subject, CallArgs& args);
  bool test(std::string_view name, const Value& subject, CallArgs& args);
  Value attribute(const Value& object, std::string_view name);
  Value item(const Value& object, const Value& key);
  Value string(Text t) const { return make_string(meter, std::move(t)); }
  const std::tm& now() const { return now_; }
  // Keeps an object that could be part of a reference cycle until the end.
  void keep(std::shared_ptr<Object> o) { kept_.push_back(std::move(o)); }

 private:
  enum class Flow { normal, break_, continue_ };
  class Depth;
  class Frame;
  class Capture;

  Flow exec(const Block& block, Scope& scope);
  Flow exec_node(const Node& n, Scope& scope);
  Flow exec_if(const Node& n, Scope& scope);
  void exec_for(const Node& n, const Value& iterable, Scope& scope, int nesting);
  Value loop_items(const Node& n, const Value& iterable, Scope& scope);
  void exec_set_block(const Node& n, Scope& scope);
  void exec_call_block(const Node& n, Scope& scope);
  Flow exec_with(const Node& n, Scope& scope);
  void assign(const Node& target, Value v, Scope& scope);
  void emit(const Text& t);
  Text captured(const Block& block, Scope& scope);
  Value make_macro(const Node& n, Scope& scope);
  Value call_macro(const MacroObject& macro, CallArgs& args);
  void bind_macro(const MacroShape& shape, CallArgs& args, Scope& scope);

  Value eval(const Node& n, Scope& scope);
  Value eval_name(const Node& n, Scope& scope);
  Value eval_item(const Node& n, Scope& scope);
  Value eval_compare(const Node& n, Scope& scope);
  Value eval_concat(const Node& n, Scope& scope);
  Value eval_dict(const Node& n, Scope& scope);
  Values eval_all(const std::vector<NodePtr>& nodes, Scope& scope);
  CallArgs eval_args(const CallSite& site, Scope& scope);
  Value apply_filter(const Node& n, const Value* subject, Scope& scope);
  Value loop_attribute(const Value& object, std::string_view name);

  const Program& program_;
  MachineLimits limits_;
  std::tm now_;
  int depth_ = 0;       // of evaluation, everything counted
  int call_depth_ = 0;  // of macros and recursive loops
  int sym_loop_ = -1, sym_caller_ = -1, sym_varargs_ = -1, sym_kwargs_ = -1;
  Scope context_;
  Text* out_ = nullptr;
  const Node* output_ = nullptr;                // the expression in {{ }} that is being evaluated
  std::vector<std::unique_ptr<Scope>> scopes_;  // captured ones
  std::vector<std::shared_ptr<Object>> kept_;
};

// Arguments by name, as a Python signature binds them. A name "" takes no keyword.
class Bound {
 public:
  Bound(Machine& m,
        const char* function,
        CallArgs& args,
        std::initializer_list<std::string_view> names,
        size_t num_required = 0);
  bool has(size_t i) const { return set_[i]; }
  const Value& operator[](size_t i) const { return values_[i]; }  // undefined when absent
  bool flag(size_t i, bool fallback) const { return has(i) ? truthy(values_[i]) : fallback; }
  int64_t integer(size_t i, int64_t fallback) const;
  Text text(size_t i, std::string_view fallback) const;
  bool absent_or_none(size_t i) const { return !set_[i] || values_[i].is(Kind::none); }

 private:
  Machine& m_;
  const char* function_;  // its name
  Values values_;
  std::vector<bool> set_;
};

// Tables of other files; null when there is no such name.
Function find_filter(std::string_view name);
Function find_test(std::string_view name);  // returns a boolean value
Function find_global(std::string_view name);
Function find_method(const Value& object, std::string_view name);
bool is_unsafe_attribute(const Value& object, std::string_view name);

Value make_function(Meter& m, std::string_view name, Function fn, Value self);
Value binary(Machine& m, Op op, const Value& a, const Value& b);
bool is_sliceable(const Value& v, const Value& start, const Value& stop, const Value& step);
Value slice_of(
    Machine& m, const Value& v, const Value& start, const Value& stop, const Value& step);
Value negate(Machine& m, const Value& v);

}  // namespace sluice::jinja
