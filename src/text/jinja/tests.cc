// `value is test(...)`.
#include <unordered_map>

#include "base/str.h"
#include "text/jinja/eval.h"
#include "text/jinja/format.h"

namespace sluice::jinja {
namespace {

void no_arguments(Machine& m, CallArgs& args) { Bound(m, "test", args, {}); }

using Predicate = bool (*)(const Value&);
template <Predicate p>
Value holds(Machine& m, const Value& v, CallArgs& args) {
  no_arguments(m, args);
  return Value::boolean(p(v));
}

bool defined(const Value& v) { return !v.is(Kind::undefined); }
bool undefined(const Value& v) { return v.is(Kind::undefined); }
bool none(const Value& v) { return v.is(Kind::none); }
bool boolean(const Value& v) { return v.is(Kind::boolean); }
bool is_true(const Value& v) { return v.is(Kind::boolean) && v.as_bool(); }
bool is_false(const Value& v) { return v.is(Kind::boolean) && !v.as_bool(); }
bool integer(const Value& v) { return v.is(Kind::integer) || v.is(Kind::big_integer); }
bool real(const Value& v) { return v.is(Kind::real); }
bool number(const Value& v) { return v.is_number() || v.is(Kind::big_integer); }
bool string(const Value& v) { return v.is(Kind::string); }
bool mapping(const Value& v) { return v.is(Kind::dict); }
bool escaped(const Value& v) { return is_markup(v); }
bool iterable(const Value& v) {
  return v.is(Kind::undefined) || v.is(Kind::string) || v.is(Kind::sequence) || v.is(Kind::dict) ||
         v.is(Kind::loop);
}
bool sequence(const Value& v) {
  if (v.is(Kind::sequence)) {
    SeqKind k = v.seq().kind;
    return k == SeqKind::list || k == SeqKind::tuple || k == SeqKind::range || k == SeqKind::bytes;
  }
  return v.is(Kind::undefined) || v.is(Kind::string) || v.is(Kind::dict);
}
bool callable(const Value& v) {
  return v.is(Kind::undefined) || v.is(Kind::macro) || v.is(Kind::function) || v.is(Kind::loop) ||
         v.is(Kind::joiner);
}

template <Op op>
Value operation(Machine& m, const Value& v, CallArgs& args) {
  Bound a(m, "test", args, {""}, 1);
  return binary(m, op, v, a[0]);
}

template <int remainder>
Value parity(Machine& m, const Value& v, CallArgs& args) {
  no_arguments(m, args);
  Value r = binary(m, Op::mod, v, Value::integer(2));
  return Value::boolean(equals(m.meter, r, Value::integer(remainder)));
}

Value divisibleby(Machine& m, const Value& v, CallArgs& args) {
  Bound a(m, "divisibleby", args, {"num"}, 1);
  return Value::boolean(equals(m.meter, binary(m, Op::mod, v, a[0]), Value::integer(0)));
}

Value sameas(Machine& m, const Value& v, CallArgs& args) {
  Bound a(m, "sameas", args, {"other"}, 1);
  if (v.kind() != a[0].kind()) return Value::boolean(false);
  if (v.object() || a[0].object()) return Value::boolean(v.object() == a[0].object());
  return Value::boolean(equals(m.meter, v, a[0]));
}

Value in(Machine& m, const Value& v, CallArgs& args) {
  Bound a(m, "in", args, {"seq"}, 1);
  return Value::boolean(contains(m.meter, a[0], v));
}

template <bool upper>
Value cased(Machine& m, const Value& v, CallArgs& args) {
  no_arguments(m, args);
  Value s = m.string(to_text(m.meter, v));
  CallArgs empty(m.meter);
  return find_method(s, upper ? "isupper" : "islower")(m, s, empty);
}

Value known_filter(Machine& m, const Value& v, CallArgs& args) {
  no_arguments(m, args);
  if (v.is(Kind::string)) m.meter.search(v.text().size());
  return Value::boolean(v.is(Kind::string) && find_filter(v.text().view()));
}
Value known_test(Machine& m, const Value& v, CallArgs& args) {
  no_arguments(m, args);
  if (v.is(Kind::string)) m.meter.search(v.text().size());
  return Value::boolean(v.is(Kind::string) && find_test(v.text().view()));
}

}  // namespace

Function find_test(std::string_view name) {
  static const std::unordered_map<std::string_view, Function> kTable = {
      {"defined", holds<defined>},
      {"undefined", holds<undefined>},
      {"none", holds<none>},
      {"boolean", holds<boolean>},
      {"true", holds<is_true>},
      {"false", holds<is_false>},
      {"integer", holds<integer>},
      {"float", holds<real>},
      {"number", holds<number>},
      {"string", holds<string>},
      {"mapping", holds<mapping>},
      {"escaped", holds<escaped>},
      {"iterable", holds<iterable>},
      {"sequence", holds<sequence>},
      {"callable", holds<callable>},
      {"odd", parity<1>},
      {"even", parity<0>},
      {"divisibleby", divisibleby},
      {"sameas", sameas},
      {"in", in},
      {"lower", cased<false>},
      {"upper", cased<true>},
      {"filter", known_filter},
      {"test", known_test},
      {"eq", operation<Op::eq>},
      {"equalto", operation<Op::eq>},
      {"==", operation<Op::eq>},
      {"ne", operation<Op::ne>},
      {"!=", operation<Op::ne>},
      {"lt", operation<Op::lt>},
      {"lessthan", operation<Op::lt>},
      {"<", operation<Op::lt>},
      {"le", operation<Op::le>},
      {"<=", operation<Op::le>},
      {"gt", operation<Op::gt>},
      {"greaterthan", operation<Op::gt>},
      {">", operation<Op::gt>},
      {"ge", operation<Op::ge>},
      {">=", operation<Op::ge>},
  };
  auto it = kTable.find(name);
  return it == kTable.end() ? nullptr : it->second;
}

}  // namespace sluice::jinja
