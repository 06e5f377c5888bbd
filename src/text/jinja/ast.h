// The parsed template: a tree that rendering reads and never changes, so threads may share it.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "text/jinja/value.h"

namespace sluice::jinja {

enum class NodeKind : uint8_t {
  // statements
  data,
  output,
  if_,
  for_,
  set,
  set_block,
  macro,
  call_block,
  filter_block,
  with,
  scope,
  break_,
  continue_,
  // expressions
  constant,
  name,
  attribute,
  item,
  slice,
  call,
  filter,
  test,
  not_,
  negate,
  plus,
  binary,
  and_,
  or_,
  concat,
  compare,
  ternary,
  list,
  tuple,
  dict,
  ns_attribute
};

enum class Op : uint8_t {
  add,
  sub,
  mul,
  div,
  floordiv,
  mod,
  pow,
  eq,
  ne,
  lt,
  le,
  gt,
  ge,
  in,
  not_in
};

struct Node;
using NodePtr = std::unique_ptr<Node>;
using Block = std::vector<NodePtr>;

struct CallSite {
  std::vector<NodePtr> args;
  std::vector<std::pair<std::string, NodePtr>> kwargs;
  NodePtr star, star_star;  // *args, **kwargs
};

struct Param {
  int sym;
  std::string name;
  NodePtr fallback;  // may be null
};

struct MacroShape {
  std::string name;
  std::vector<Param> params;
  bool takes_caller = false, takes_varargs = false, takes_kwargs = false;
};

// kids by kind: output, list, tuple, concat, and_, or_: the operands. if_: the conditions, whose
// blocks are branches[i]; orelse. for_: target, iterable, test or null; branches[0]; orelse.
// set: target, value. set_block: target, filter or null. call_block: the call. filter_block: the
// filter. with: target, value, target, value... attribute, item, call, filter, test: the subject
// (filter: null inside blocks), item: index. slice: three, each may be null. compare: operands,
// with ops between them. ternary: then, condition, else or null. dict: key, value, key, value...
struct Node {
  NodeKind kind;
  Op op = Op::add;
  bool recursive = false;  // for_
  int line = 0;
  int depth = 1;
  int sym = -1;      // name, ns_attribute
  std::string text;  // attribute, filter, test, ns_attribute: its name
  Value value;       // constant, data
  std::vector<NodePtr> kids;
  std::vector<Op> ops;
  std::vector<Block> branches;
  Block orelse;
  std::unique_ptr<CallSite> call;     // call, filter, test
  std::unique_ptr<MacroShape> macro;  // macro, call_block
};

struct Program {
  Block body;
  std::vector<std::string> symbols;  // names by `sym`
};

}  // namespace sluice::jinja
