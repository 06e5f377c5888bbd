#include "text/jinja/eval.h"

#include <algorithm>

#include "base/str.h"
#include "text/jinja/format.h"

namespace sluice::jinja {

const Value* Scope::find(Meter& m, int sym) const {
  for (const Scope* s = this; s; s = s->parent) {
    m.step(s->vars.size() / 16);
    for (const auto& [id, v] : s->vars) {
      if (id == sym) return &v;
    }
  }
  return nullptr;
}

void Scope::set(Meter& m, int sym, Value v) {
  m.step(vars.size() / 16);
  for (auto& [id, old] : vars) {
    if (id == sym) {
      old = std::move(v);
      return;
    }
  }
  vars.emplace_back(sym, std::move(v));
}

CallArgs CallArgs::from(size_t i) const {
  CallArgs rest(*pos.get_allocator().meter());
  rest.pos.assign(pos.begin() + static_cast<std::ptrdiff_t>(i), pos.end());
  rest.kw = kw;
  return rest;
}

class Machine::Depth {
 public:
  explicit Depth(Machine& m) : m_(m) {
    if (++m_.depth_ > kMaxEvalDepth) {
      --m_.depth_;
      m_.fail("nested too deeply while rendering");
    }
  }
  ~Depth() { --m_.depth_; }

 private:
  Machine& m_;
};

// A scope for the time of a block, or for good when something captured it.
class Machine::Frame {
 public:
  Frame(Machine& m, Scope* parent) : m_(m), scope_(std::make_unique<Scope>(m.meter, parent)) {}
  ~Frame() {
    if (scope_->captured) m_.scopes_.push_back(std::move(scope_));
  }
  Scope& operator*() { return *scope_; }

 private:
  Machine& m_;
  std::unique_ptr<Scope> scope_;
};

// Collects output instead of sending it on.
class Machine::Capture {
 public:
  explicit Capture(Machine& m) : text_(m.meter), m_(m), outer_(std::exchange(m.out_, &text_)) {}
  ~Capture() { m_.out_ = outer_; }
  Text text_;

 private:
  Machine& m_;
  Text* outer_;
};

Machine::Machine(Meter& m, const Program& program, MachineLimits limits, const std::tm& now)
    : meter(m), program_(program), limits_(limits), now_(now), context_(m, nullptr) {
  for (size_t i = 0; i < program.symbols.size(); ++i) {
    const std::string& name = program.symbols[i];
    int sym = static_cast<int>(i);
    if (name == "loop") sym_loop_ = sym;
    if (name == "caller") sym_caller_ = sym;
    if (name == "varargs") sym_varargs_ = sym;
    if (name == "kwargs") sym_kwargs_ = sym;
    if (Function fn = find_global(name)) context_.set(m, sym, make_function(m, name, fn, Value()));
  }
}

Machine::~Machine() {
  for (auto& o : kept_) o->clear();
}

void Machine::define(std::string_view name, Value v) {
  meter.step(program_.symbols.size() / 16);
  for (size_t i = 0; i < program_.symbols.size(); ++i) {
    if (program_.symbols[i] == name) context_.set(meter, static_cast<int>(i), std::move(v));
  }
}

Text Machine::run() {
  Text out = Text::unmetered();  // has a limit of its own
  out_ = &out;
  Frame root(*this, &context_);
  exec(program_.body, *root);
  return out;
}

// ---- statements

void Machine::emit(const Text& t) {
  if (t.size() > limits_.max_output || out_->size() > limits_.max_output - t.size()) {
    fail("the output is too long");
  }
  meter.scan(t.size());
  out_->append(t);
}

Text Machine::captured(const Block& block, Scope& scope) {
  Capture capture(*this);
  Frame frame(*this, &scope);
  exec(block, *frame);
  return std::move(capture.text_);
}

Machine::Flow Machine::exec(const Block& block, Scope& scope) {
  Depth depth(*this);
  for (const NodePtr& n : block) {
    Flow flow = exec_node(*n, scope);
    if (flow != Flow::normal) return flow;
  }
  return Flow::normal;
}

Machine::Flow Machine::exec_node(const Node& n, Scope& scope) {
  meter.line = n.line;
  meter.step();
  switch (n.kind) {
    case NodeKind::data:
      emit(n.value.text());
      return Flow::normal;
    case NodeKind::output:
      for (const NodePtr& e : n.kids) {
        const Node* outer = std::exchange(output_, e.get());
        Value v = eval(*e, scope);
        output_ = outer;
        if (v.is(Kind::string)) {
          emit(v.text());
        } else {
          emit(to_text(meter, v));
        }
      }
      return Flow::normal;
    case NodeKind::if_:
      return exec_if(n, scope);
    case NodeKind::for_:
      exec_for(n, eval(*n.kids[1], scope), scope, 0);
      return Flow::normal;
    case NodeKind::set:
      assign(*n.kids[0], eval(*n.kids[1], scope), scope);
      return Flow::normal;
    case NodeKind::set_block:
      exec_set_block(n, scope);
      return Flow::normal;
    case NodeKind::macro:
      scope.set(meter, n.sym, make_macro(n, scope));
      return Flow::normal;
    case NodeKind::call_block:
      exec_call_block(n, scope);
      return Flow::normal;
    case NodeKind::filter_block: {
      Value body = string(captured(n.branches[0], scope));
      emit(to_text(meter, apply_filter(*n.kids[0], &body, scope)));
      return Flow::normal;
    }
    case NodeKind::with:
      return exec_with(n, scope);
    case NodeKind::scope: {
      Frame frame(*this, &scope);
      return exec(n.branches[0], *frame);
    }
    case NodeKind::break_:
      return Flow::break_;
    case NodeKind::continue_:
      return Flow::continue_;
    default:
      fail("an expression stands where a statement belongs");
  }
}

Machine::Flow Machine::exec_if(const Node& n, Scope& scope) {
  for (size_t i = 0; i < n.kids.size(); ++i) {
    if (truthy(eval(*n.kids[i], scope))) return exec(n.branches[i], scope);
  }
  return exec(n.orelse, scope);
}

// The items that the loop will see: with a test, those that pass it.
Value Machine::loop_items(const Node& n, const Value& iterable, Scope& scope) {
  bool shared = iterable.is(Kind::sequence) && iterable.seq().kind != SeqKind::generator;
  if (!n.kids[2]) {
    return shared ? iterable : make_seq(meter, iterate(meter, iterable));
  }
  Values passed(meter);
  for (Value& v : iterate(meter, iterable)) {
    Frame frame(*this, &scope);
    assign(*n.kids[0], v, *frame);
    if (truthy(eval(*n.kids[2], *frame))) passed.push_back(std::move(v));
  }
  return make_seq(meter, std::move(passed));
}

void Machine::exec_for(const Node& n, const Value& iterable, Scope& scope, int nesting) {
  Value items = loop_items(n, iterable, scope);
  size_t count = items.items().size();
  if (count == 0) {
    Frame frame(*this, &scope);
    exec(n.orelse, *frame);
    return;
  }
  auto loop = std::make_shared<LoopObject>(meter);
  loop->charge(meter, sizeof(LoopObject));
  loop->items = items;
  loop->depth = items.object()->depth + 1;
  loop->nesting = nesting;
  loop->node = &n;
  loop->scope = &scope;
  for (size_t i = 0; i < count; ++i) {
    meter.line = n.line;
    meter.step();
    loop->index = i;
    Frame frame(*this, &scope);
    assign(*n.kids[0], items.items()[i], *frame);
    if (sym_loop_ >= 0) (*frame).set(meter, sym_loop_, Value(Kind::loop, loop));
    if (exec(n.branches[0], *frame) == Flow::break_) break;
  }
  loop->node = nullptr;  // may outlive the loop, but can no longer be called
}

void Machine::exec_set_block(const Node& n, Scope& scope) {
  Value body = string(captured(n.branches[0], scope));
  if (n.kids[1]) body = apply_filter(*n.kids[1], &body, scope);
  assign(*n.kids[0], std::move(body), scope);
}

void Machine::exec_call_block(const Node& n, Scope& scope) {
  const Node& call_node = *n.kids[0];
  Value callee = eval(*call_node.kids[0], scope);
  CallArgs args = eval_args(*call_node.call, scope);
  args.kw.emplace_back("caller", make_macro(n, scope));
  meter.line = n.line;
  emit(to_text(meter, call(callee, args)));
}

Machine::Flow Machine::exec_with(const Node& n, Scope& scope) {
  Frame frame(*this, &scope);
  for (size_t i = 0; i + 1 < n.kids.size(); i += 2) {
    assign(*n.kids[i], eval(*n.kids[i + 1], scope), *frame);
  }
  return exec(n.branches[0], *frame);
}

void Machine::assign(const Node& target, Value v, Scope& scope) {
  if (target.kind == NodeKind::name) return scope.set(meter, target.sym, std::move(v));
  if (target.kind == NodeKind::ns_attribute) {
    const Value* ns = scope.find(meter, target.sym);
    if (!ns || !ns->is(Kind::ns)) fail("cannot assign attribute on non-namespace object");
    if (target.text.starts_with("_")) fail("namespace attributes cannot start with an underscore");
    auto& attrs = ns->as<NamespaceObject>();
    if (Value* old = attrs.find(meter, target.text)) {
      *old = std::move(v);
    } else {
      attrs.attrs.emplace_back(target.text, std::move(v));
    }
    return;
  }
  Values parts = iterate(meter, v);
  if (parts.size() != target.kids.size()) {
    fail(strf("%s values to unpack (expected %zu, got %zu)",
              parts.size() < target.kids.size() ? "not enough" : "too many", target.kids.size(),
              parts.size()));
  }
  for (size_t i = 0; i < parts.size(); ++i) assign(*target.kids[i], std::move(parts[i]), scope);
}

// ---- calls

Value Machine::make_macro(const Node& n, Scope& scope) {
  for (Scope* s = &scope; s && !s->captured; s = s->parent) {
    meter.take(sizeof(Scope));  // not given back: captured scopes stay
    s->captured = true;
  }
  auto macro = std::make_shared<MacroObject>();
  macro->charge(meter, sizeof(MacroObject));
  macro->node = &n;
  macro->scope = &scope;
  return {Kind::macro, std::move(macro)};
}

void Machine::bind_macro(const MacroShape& shape, CallArgs& args, Scope& scope) {
  std::vector<bool> used(args.kw.size());
  meter.step(shape.params.size() * args.kw.size() / 16);
  for (size_t i = 0; i < shape.params.size(); ++i) {
    const Param& p = shape.params[i];
    auto kw =
        std::find_if(args.kw.begin(), args.kw.end(), [&](auto& k) { return k.first == p.name; });
    if (i < args.pos.size()) {
      scope.set(meter, p.sym, args.pos[i]);
    } else if (kw != args.kw.end()) {
      used[static_cast<size_t>(kw - args.kw.begin())] = true;
      scope.set(meter, p.sym, kw->second);
    } else if (p.fallback) {
      scope.set(meter, p.sym, eval(*p.fallback, scope));
    } else {
      scope.set(meter, p.sym,
                make_undefined(meter, strf("parameter '%s' was not provided", p.name.c_str())));
    }
  }
  auto extra = new_dict(meter);
  Value caller;
  for (size_t i = 0; i < args.kw.size(); ++i) {
    auto& [name, v] = args.kw[i];
    if (used[i]) continue;
    if (shape.takes_caller && name == "caller") {
      caller = v;
    } else if (shape.takes_kwargs) {
      extra->set(meter, make_string(meter, name, true), v);
    } else {
      fail(strf("macro '%s' takes no keyword argument '%s'", shape.name.c_str(), name.c_str()));
    }
  }
  if (shape.takes_caller) {
    scope.set(meter, sym_caller_,
              caller.is(Kind::undefined) ? make_undefined(meter, "No caller defined") : caller);
  }
  if (shape.takes_kwargs) scope.set(meter, sym_kwargs_, finish_dict(meter, std::move(extra)));
  size_t n = std::min(shape.params.size(), args.pos.size());
  Values rest(args.pos.begin() + static_cast<std::ptrdiff_t>(n), args.pos.end(), meter);
  if (shape.takes_varargs) {
    scope.set(meter, sym_varargs_, make_seq(meter, std::move(rest), SeqKind::tuple));
  } else if (!rest.empty()) {
    fail(strf("macro '%s' takes not more than %zu argument(s)", shape.name.c_str(),
              shape.params.size()));
  }
}

Value Machine::call_macro(const MacroObject& macro, CallArgs& args) {
  Depth depth(*this);
  if (call_depth_ >= limits_.max_call_depth) fail("macros call each other too deeply");
  ++call_depth_;
  Capture capture(*this);
  Frame frame(*this, macro.scope);
  try {
    bind_macro(*macro.node->macro, args, *frame);
    exec(macro.node->branches[0], *frame);
  } catch (...) {
    --call_depth_;
    throw;
  }
  --call_depth_;
  return string(std::move(capture.text_));
}

Value Machine::call(const Value& callee, CallArgs& args) {
  Depth depth(*this);
  meter.step();
  switch (callee.kind()) {
    case Kind::function: {
      auto& f = callee.as<FunctionObject>();
      return f.fn(*this, f.self, args);
    }
    case Kind::macro: {
      int line = meter.line;
      Value out = call_macro(callee.as<MacroObject>(), args);
      meter.line = line;
      return out;
    }
    case Kind::loop: {
      auto& loop = callee.as<LoopObject>();
      if (!loop.node || !loop.node->recursive) {
        fail("the loop must have the 'recursive' marker to be called recursively");
      }
      if (args.pos.size() != 1 || !args.kw.empty()) fail("loop() takes one argument");
      if (call_depth_ >= limits_.max_call_depth) fail("recursive loop too deep");
      ++call_depth_;
      Capture capture(*this);
      try {
        exec_for(*loop.node, args.pos[0], *loop.scope, loop.nesting + 1);
      } catch (...) {
        --call_depth_;
        throw;
      }
      --call_depth_;
      return string(std::move(capture.text_));
    }
    case Kind::joiner: {
      auto& j = callee.as<JoinerObject>();
      return std::exchange(j.used, true) ? j.separator : make_string(meter, "", true);
    }
    case Kind::undefined:
      fail(callee.object() ? callee.text().str() : "the value is undefined");
    default:
      fail(strf("'%s' object is not callable", type_name(callee)));
  }
}

Value Machine::filter(std::string_view name, const Value& subject, CallArgs& args) {
  meter.scan(name.size());
  Function fn = find_filter(name);
  if (!fn) fail("no filter named " + quote(name));
  return fn(*this, subject, args);
}

bool Machine::test(std::string_view name, const Value& subject, CallArgs& args) {
  meter.scan(name.size());
  Function fn = find_test(name);
  if (!fn) fail("no test named " + quote(name));
  return truthy(fn(*this, subject, args));
}

}  // namespace sluice::jinja
