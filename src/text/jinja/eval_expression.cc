// Evaluation of expressions: the part of Machine that returns values.
#include <algorithm>

#include "base/str.h"
#include "text/jinja/bigint.h"
#include "text/jinja/eval.h"
#include "text/jinja/format.h"

namespace sluice::jinja {

namespace {
const char* object_repr(const Value& v) { return v.is(Kind::none) ? "None" : type_name(v); }

// Made of constants alone: jinja2 computes what such an expression prints when it compiles it.
bool is_constant(Meter& m, const Node& n) {
  m.step();
  switch (n.kind) {
    case NodeKind::name:
    case NodeKind::call:
      return false;
    default:
      break;
  }
  auto constant = [&](const NodePtr& k) { return !k || is_constant(m, *k); };
  bool all = std::all_of(n.kids.begin(), n.kids.end(), constant);
  if (!n.call) return all;
  const CallSite& site = *n.call;
  return all && constant(site.star) && constant(site.star_star) &&
         std::all_of(site.args.begin(), site.args.end(), constant) &&
         std::all_of(site.kwargs.begin(), site.kwargs.end(),
                     [&](const auto& k) { return constant(k.second); });
}
}  // namespace

Value Machine::eval(const Node& n, Scope& scope) {
  struct Level {
    explicit Level(Machine& machine) : m(machine) { ++m.depth_; }
    ~Level() { --m.depth_; }
    Machine& m;
  } level(*this);
  if (depth_ > kMaxEvalDepth) fail("nested too deeply while rendering");
  meter.line = n.line;
  meter.step();
  switch (n.kind) {
    case NodeKind::constant:
      return n.value;
    case NodeKind::name:
      return eval_name(n, scope);
    case NodeKind::attribute: {
      Value object = eval(*n.kids[0], scope);
      meter.line = n.line;
      return attribute(object, n.text);
    }
    case NodeKind::item:
      return eval_item(n, scope);
    case NodeKind::call: {
      Value callee = eval(*n.kids[0], scope);
      CallArgs args = eval_args(*n.call, scope);
      meter.line = n.line;
      return call(callee, args);
    }
    case NodeKind::filter: {
      Value subject = eval(*n.kids[0], scope);
      return apply_filter(n, &subject, scope);
    }
    case NodeKind::test: {
      Value subject = eval(*n.kids[0], scope);
      CallArgs args = eval_args(*n.call, scope);
      meter.line = n.line;
      return Value::boolean(test(n.text, subject, args));
    }
    case NodeKind::not_:
      return Value::boolean(!truthy(eval(*n.kids[0], scope)));
    case NodeKind::negate:
      return jinja::negate(*this, eval(*n.kids[0], scope));
    case NodeKind::plus: {
      Value v = eval(*n.kids[0], scope);
      if (!is_numeric(v)) fail(strf("bad operand type for unary +: '%s'", type_name(v)));
      return v.is(Kind::boolean) ? Value::integer(v.as_int()) : v;
    }
    case NodeKind::binary: {
      Value a = eval(*n.kids[0], scope);
      Value b = eval(*n.kids[1], scope);
      meter.line = n.line;
      return binary(*this, n.op, a, b);
    }
    case NodeKind::and_:
    case NodeKind::or_: {
      Value v;
      for (const NodePtr& k : n.kids) {
        v = eval(*k, scope);
        if (truthy(v) == (n.kind == NodeKind::or_)) break;
      }
      return v;
    }
    case NodeKind::concat:
      return eval_concat(n, scope);
    case NodeKind::compare:
      return eval_compare(n, scope);
    case NodeKind::ternary:
      if (truthy(eval(*n.kids[1], scope))) return eval(*n.kids[0], scope);
      if (n.kids[2]) return eval(*n.kids[2], scope);
      return make_undefined(meter, "the inline if-expression evaluated to false and has no else");
    case NodeKind::list:
      return make_seq(meter, eval_all(n.kids, scope));
    case NodeKind::tuple:
      return make_seq(meter, eval_all(n.kids, scope), SeqKind::tuple);
    case NodeKind::dict:
      return eval_dict(n, scope);
    default:
      fail("this cannot be evaluated");
  }
}

Value Machine::eval_name(const Node& n, Scope& scope) {
  if (const Value* v = scope.find(meter, n.sym)) return *v;
  return make_undefined(meter, strf("'%s' is undefined", n.text.c_str()));
}

Value Machine::eval_item(const Node& n, Scope& scope) {
  Value object = eval(*n.kids[0], scope);
  const Node& index = *n.kids[1];
  if (index.kind == NodeKind::slice) {
    auto bound = [&](size_t i) {
      return index.kids[i] ? eval(*index.kids[i], scope) : Value::none();
    };
    Value start = bound(0), stop = bound(1), step = bound(2);
    meter.line = n.line;
    bool lenient = !object.is(Kind::undefined) && !is_sliceable(object, start, stop, step);
    if (lenient && output_ && is_constant(meter, *output_))
      return make_undefined(meter, strf("%s has no slices", object_repr(object)));
    return slice_of(*this, object, start, stop, step);
  }
  Value key = eval(index, scope);
  meter.line = n.line;
  return item(object, key);
}

Value Machine::eval_compare(const Node& n, Scope& scope) {
  Value left = eval(*n.kids[0], scope);
  for (size_t i = 0; i < n.ops.size(); ++i) {
    Value right = eval(*n.kids[i + 1], scope);
    meter.line = n.line;
    if (!truthy(binary(*this, n.ops[i], left, right))) return Value::boolean(false);
    left = std::move(right);
  }
  return Value::boolean(true);
}

Value Machine::eval_concat(const Node& n, Scope& scope) {
  Text out(meter);
  for (const NodePtr& k : n.kids) {
    Value v = eval(*k, scope);
    meter.line = n.line;
    if (v.is(Kind::string)) {
      out.append(v.text());
    } else {
      out.append(to_text(meter, v));
    }
  }
  return string(std::move(out));
}

Value Machine::eval_dict(const Node& n, Scope& scope) {
  auto dict = new_dict(meter);
  for (size_t i = 0; i + 1 < n.kids.size(); i += 2) {
    Value key = eval(*n.kids[i], scope);
    dict->set(meter, std::move(key), eval(*n.kids[i + 1], scope));
  }
  return finish_dict(meter, std::move(dict));
}

Values Machine::eval_all(const std::vector<NodePtr>& nodes, Scope& scope) {
  Values out(meter);
  out.reserve(nodes.size());
  for (const NodePtr& k : nodes) {
    if (k->kind == NodeKind::slice) fail("a slice is not a value");
    out.push_back(eval(*k, scope));
  }
  return out;
}

CallArgs Machine::eval_args(const CallSite& site, Scope& scope) {
  CallArgs args(meter);
  args.pos = eval_all(site.args, scope);
  for (const auto& [name, node] : site.kwargs) args.kw.emplace_back(name, eval(*node, scope));
  if (site.star) {
    Value more = eval(*site.star, scope);
    for (Value& v : iterate(meter, more)) args.pos.push_back(std::move(v));
  }
  if (site.star_star) {
    Value more = eval(*site.star_star, scope);
    if (!more.is(Kind::dict)) fail("argument after ** must be a mapping");
    if (args.kw.size() + more.dict().items.size() > kMaxKeywords)
      fail("too many keyword arguments");
    for (const auto& [k, v] : more.dict().items) {
      if (!k.is(Kind::string)) fail("keywords must be strings");
      if (k.text().size() > kMaxKeywordBytes) fail("a keyword is too long");
      args.kw.emplace_back(k.text().str(), v);
    }
  }
  return args;
}

Value Machine::apply_filter(const Node& n, const Value* subject, Scope& scope) {
  Value inner;
  if (n.kids[0] && n.kids[0]->kind == NodeKind::filter) {
    // Inside blocks the chain starts from the block's text, not from an expression.
    const Node* first = &n;
    while (first->kids[0] && first->kids[0]->kind == NodeKind::filter) first = first->kids[0].get();
    if (!first->kids[0]) {
      inner = apply_filter(*n.kids[0], subject, scope);
      subject = &inner;
    }
  }
  CallArgs args = eval_args(*n.call, scope);
  meter.line = n.line;
  return filter(n.text, *subject, args);
}

// ---- attributes and items

Value Machine::attribute(const Value& object, std::string_view name) {
  meter.scan(name.size());
  if (object.is(Kind::undefined)) fail(object.object() ? object.text().str() : "undefined value");
  if (is_unsafe_attribute(object, name)) {
    return make_undefined(meter, strf("access to attribute '%s' of '%s' object is unsafe",
                                      std::string(name).c_str(), type_name(object)));
  }
  if (object.is(Kind::ns)) {
    if (Value* v = object.as<NamespaceObject>().find(meter, name)) return *v;
  } else if (object.is(Kind::loop)) {
    Value v = loop_attribute(object, name);
    if (!v.is(Kind::undefined) || v.object()) return v;
  } else if (object.is(Kind::macro) && name == "name") {
    return make_string(meter, object.as<MacroObject>().node->macro->name, true);
  } else if (object.is(Kind::cycler) && name == "current") {
    auto& c = object.as<CyclerObject>();
    return c.items.items()[c.index];
  }
  if (object.is(Kind::sequence) && object.seq().is_group) {
    if (name == "grouper") return object.items()[0];
    if (name == "list") return object.items()[1];
  }
  if (Function fn = find_method(object, name)) return make_function(meter, name, fn, object);
  if (object.is(Kind::dict)) {
    if (const Value* v = object.dict().find(meter, name)) return *v;
  }
  return make_undefined(
      meter, strf("'%s object' has no attribute %s", object_repr(object), quote(name).c_str()));
}

Value Machine::item(const Value& object, const Value& key) {
  meter.step();
  if (object.is(Kind::undefined)) fail(object.object() ? object.text().str() : "undefined value");
  if (object.is(Kind::dict) && hashable(key)) {
    if (const Value* v = object.dict().find(meter, key)) return *v;
  }
  bool indexable = object.is_seq(SeqKind::list) || object.is_seq(SeqKind::tuple) ||
                   object.is_seq(SeqKind::range) || object.is_seq(SeqKind::bytes) ||
                   object.is(Kind::string);
  if (indexable && key.is_integral()) {
    size_t n = 0;
    length_of(object, n);
    if (object.is(Kind::string)) meter.search(object.text().size());
    int64_t i = key.as_int();
    if (i < 0) i += static_cast<int64_t>(n);
    if (i >= 0 && i < static_cast<int64_t>(n)) {
      auto at = static_cast<size_t>(i);
      if (!object.is(Kind::string)) return object.items()[at];
      size_t begin = code_point_offset(object.text().view(), at), end = begin;
      next_code_point(object.text().view(), end);
      return string(object.text().slice(meter, begin, end));
    }
    return make_undefined(meter, strf("%s object has no element %lld", type_name(object),
                                      static_cast<long long>(key.as_int())));
  }
  if (key.is(Kind::string) && !object.is(Kind::dict)) return attribute(object, key.text().view());
  if (key.is(Kind::string)) {
    if (is_unsafe_attribute(object, key.text().view())) return attribute(object, key.text().view());
    if (Function fn = find_method(object, key.text().view())) {
      return make_function(meter, key.text().view(), fn, object);
    }
  }
  bool is_long = key.is(Kind::string) && key.text().size() > 256;  // quote() cuts it anyway
  std::string name = quote(is_long ? key.text().view() : repr(meter, key).view());
  return make_undefined(meter,
                        strf("'%s object' has no attribute %s", object_repr(object), name.c_str()));
}

Value Machine::loop_attribute(const Value& object, std::string_view name) {
  auto& loop = object.as<LoopObject>();
  const Values& items = loop.items.items();
  auto i = static_cast<int64_t>(loop.index);
  auto n = static_cast<int64_t>(items.size());
  if (name == "index") return Value::integer(i + 1);
  if (name == "index0") return Value::integer(i);
  if (name == "revindex") return Value::integer(n - i);
  if (name == "revindex0") return Value::integer(n - i - 1);
  if (name == "first") return Value::boolean(i == 0);
  if (name == "last") return Value::boolean(i == n - 1);
  if (name == "length") return Value::integer(n);
  if (name == "depth") return Value::integer(loop.nesting + 1);
  if (name == "depth0") return Value::integer(loop.nesting);
  if (name == "previtem") {
    return i > 0 ? items[loop.index - 1] : make_undefined(meter, "there is no previous item");
  }
  if (name == "nextitem") {
    return i + 1 < n ? items[loop.index + 1] : make_undefined(meter, "there is no next item");
  }
  return {};
}

}  // namespace sluice::jinja
