// Operators, slices, argument binding and the global functions.
#include <algorithm>
#include <cmath>

#include "base/str.h"
#include "text/jinja/bigint.h"
#include "text/jinja/eval.h"
#include "text/jinja/format.h"

namespace sluice::jinja {

Value make_function(Meter& m, std::string_view name, Function fn, Value self) {
  auto f = std::make_shared<FunctionObject>();
  f->charge(m, sizeof(FunctionObject));
  f->name = name;
  f->fn = fn;
  if (self.object()) f->depth = self.object()->depth + 1;
  if (f->depth > kMaxValueDepth) m.fail("values are nested too deeply");
  f->self = std::move(self);
  return {Kind::function, std::move(f)};
}

// ---- arguments

Bound::Bound(Machine& m,
             const char* function,
             CallArgs& args,
             std::initializer_list<std::string_view> names,
             size_t num_required)
    : m_(m), function_(function), values_(names.size(), m.meter), set_(names.size()) {
  if (args.pos.size() > names.size()) {
    m.fail(strf("%s() takes at most %zu argument(s)", function_, names.size()));
  }
  for (size_t i = 0; i < args.pos.size(); ++i) values_[i] = args.pos[i], set_[i] = true;
  for (auto& [name, v] : args.kw) {
    auto it = std::find(names.begin(), names.end(), name);
    auto i = static_cast<size_t>(it - names.begin());
    if (it == names.end() || set_[i]) {
      m.fail(strf("%s() got an unexpected keyword argument %s", function_, quote(name).c_str()));
    }
    values_[i] = v;
    set_[i] = true;
  }
  for (size_t i = 0; i < num_required; ++i) {
    if (!set_[i]) m.fail(strf("%s() is missing an argument", function_));
  }
}

int64_t Bound::integer(size_t i, int64_t fallback) const {
  if (!set_[i]) return fallback;
  if (!values_[i].is_integral()) {
    m_.fail(strf("%s(): expected an integer, got %s", function_, type_name(values_[i])));
  }
  return values_[i].as_int();
}

Text Bound::text(size_t i, std::string_view fallback) const {
  if (!set_[i]) return Text(m_.meter, std::string(fallback), true);
  if (!values_[i].is(Kind::string)) {
    m_.fail(strf("%s(): expected a string, got %s", function_, type_name(values_[i])));
  }
  return Text(m_.meter, values_[i].text());
}

// ---- operators

namespace {

[[noreturn]] void unsupported(Machine& m, const char* op, const Value& a, const Value& b) {
  for (const Value* v : {&a, &b}) {
    if (v->is(Kind::undefined)) m.fail(v->object() ? v->text().str() : "undefined value");
  }
  m.fail(strf("unsupported operand type(s) for %s: '%s' and '%s'", op, type_name(a), type_name(b)));
}

// Whole numbers of any size: where 64 bits are not enough.
Value big_binary(Machine& m, Op op, const Value& a, const Value& b) {
  BigInt x = BigInt::of(m.meter, a), y = BigInt::of(m.meter, b), remainder(m.meter);
  switch (op) {
    case Op::sub:
      y.negate();
      [[fallthrough]];
    case Op::add:
      return x.plus(y).value();
    case Op::mul:
      return x.times(y).value();
    case Op::floordiv:
      return x.divided_by(y, remainder).value();
    case Op::mod:
      x.divided_by(y, remainder);
      return remainder.value();
    default:
      m.fail("no such operation on integers");
  }
}

bool is_big(const Value& v) { return v.is(Kind::big_integer); }

double real_operand(Machine& m, const Value& v) {
  double d = to_double(m.meter, v);
  if (is_big(v) && std::isinf(d)) m.fail("int too large to convert to float");
  return d;
}

Value repeat(Machine& m, const Value& v, int64_t times) {
  auto n = static_cast<size_t>(std::max<int64_t>(times, 0));
  size_t one = v.is(Kind::string) ? v.text().size() : v.items().size() * sizeof(Value);
  if (one == 0) n = 0;
  if (one > 0 && n > SIZE_MAX / 4 / one) m.fail("out of memory: a value is too large");
  m.meter.require(one * n);
  if (v.is(Kind::string)) {
    const Text& t = v.text();
    if (t.runs().size() == 1) {
      std::string bytes;
      bytes.reserve(one * n);
      for (size_t i = 0; i < n; ++i) bytes += t.view();
      m.meter.step(n / 64);
      Text out(m.meter, std::move(bytes), t.trusted());
      return make_string(m.meter, std::move(out), is_markup(v));
    }
    m.meter.step(1 + n * t.runs().size() / 16);
    Text out(m.meter);
    for (size_t i = 0; i < n; ++i) out.append(t);
    return make_string(m.meter, std::move(out), is_markup(v));
  }
  m.meter.step(1 + n / 16);
  Values out(m.meter);
  out.reserve(v.items().size() * n);
  for (size_t i = 0; i < n; ++i) out.insert(out.end(), v.items().begin(), v.items().end());
  return make_seq(m.meter, std::move(out), v.seq().kind);
}

Value add(Machine& m, const Value& a, const Value& b) {
  if (a.is_integral() && b.is_integral()) {
    int64_t r = 0;
    if (!__builtin_add_overflow(a.as_int(), b.as_int(), &r)) return Value::integer(r);
  }
  if (is_whole(a) && is_whole(b)) return big_binary(m, Op::add, a, b);
  if (is_numeric(a) && is_numeric(b)) return Value::real(real_operand(m, a) + real_operand(m, b));
  if (a.is(Kind::string) && b.is(Kind::string)) {
    bool markup = is_markup(a) || is_markup(b);
    Text out(m.meter);
    out.reserve(a.text().size() + b.text().size());
    for (const Value* v : {&a, &b}) {
      if (markup && !is_markup(*v)) {
        out.append(escape_html(m.meter, v->text()));
      } else {
        out.append(v->text());
      }
    }
    return make_string(m.meter, std::move(out), markup);
  }
  for (SeqKind k : {SeqKind::list, SeqKind::tuple}) {
    if (!a.is_seq(k) || !b.is_seq(k)) continue;
    Values out(m.meter);
    out.reserve(a.items().size() + b.items().size());
    out.insert(out.end(), a.items().begin(), a.items().end());
    out.insert(out.end(), b.items().begin(), b.items().end());
    return make_seq(m.meter, std::move(out), k);
  }
  unsupported(m, "+", a, b);
}

Value multiply(Machine& m, const Value& a, const Value& b) {
  if (a.is_integral() && b.is_integral()) {
    int64_t r = 0;
    if (!__builtin_mul_overflow(a.as_int(), b.as_int(), &r)) return Value::integer(r);
  }
  if (is_whole(a) && is_whole(b)) return big_binary(m, Op::mul, a, b);
  if (is_numeric(a) && is_numeric(b)) return Value::real(real_operand(m, a) * real_operand(m, b));
  auto repeatable = [](const Value& v) {
    return v.is(Kind::string) || v.is_seq(SeqKind::list) || v.is_seq(SeqKind::tuple);
  };
  if ((repeatable(a) && is_big(b)) || (is_big(a) && repeatable(b)))
    m.fail("cannot fit 'int' into an index-sized integer");
  if (repeatable(a) && b.is_integral()) return repeat(m, a, b.as_int());
  if (repeatable(b) && a.is_integral()) return repeat(m, b, a.as_int());
  unsupported(m, "*", a, b);
}

// Python's // and %: the quotient is rounded down, the remainder has the divisor's sign.
Value divide_down(Machine& m, bool want_quotient, const Value& a, const Value& b) {
  if (!is_big(b) && b.as_double() == 0) m.fail("integer division or modulo by zero");
  if (a.is_integral() && b.is_integral()) {
    int64_t x = a.as_int(), y = b.as_int();
    if (y == -1) {
      if (!want_quotient) return Value::integer(0);
      return negate(m, a);
    }
    int64_t q = x / y, r = x % y;
    if (r != 0 && (r < 0) != (y < 0)) --q, r += y;
    return Value::integer(want_quotient ? q : r);
  }
  if (is_whole(a) && is_whole(b))
    return big_binary(m, want_quotient ? Op::floordiv : Op::mod, a, b);
  double x = real_operand(m, a), y = real_operand(m, b);
  double r = std::fmod(x, y);
  if (r != 0 && (r < 0) != (y < 0)) r += y;
  return Value::real(want_quotient ? std::floor((x - r) / y + 0.5) : r);
}

Value power(Machine& m, const Value& a, const Value& b) {
  if (!is_numeric(a) || !is_numeric(b)) unsupported(m, "** or pow()", a, b);
  if (a.is_integral() && b.is_integral() && b.as_int() >= 0) {
    int64_t result = 1, factor = a.as_int();
    bool fits = true;
    for (int64_t e = b.as_int(); e > 0 && fits; e >>= 1) {
      if (e & 1) fits = !__builtin_mul_overflow(result, factor, &result);
      if (e > 1) fits = fits && !__builtin_mul_overflow(factor, factor, &factor);
    }
    if (fits) return Value::integer(result);
  }
  if (is_whole(a) && is_whole(b)) {
    BigInt exponent = BigInt::of(m.meter, b);
    if (!exponent.negative()) {
      // What has so large an exponent is 0, 1 or -1, and only its parity counts.
      uint64_t e =
          is_big(b) ? UINT64_MAX - (exponent.odd() ? 0 : 1) : static_cast<uint64_t>(b.as_int());
      return BigInt::of(m.meter, a).to_the(e).value();
    }
  }
  double x = real_operand(m, a), y = real_operand(m, b);
  if (x == 0 && y < 0) m.fail("0.0 cannot be raised to a negative power");
  double r = std::pow(x, y);
  if (std::isnan(r) && !std::isnan(x)) m.fail("power has no real result");
  return Value::real(r);
}

Value ordered(Machine& m, Op op, const Value& a, const Value& b) {
  int c = compare(m.meter, a, b);
  bool yes = op == Op::lt   ? c == -1
             : op == Op::le ? c == -1 || c == 0
             : op == Op::gt ? c == 1
                            : c == 1 || c == 0;
  return Value::boolean(yes);
}

}  // namespace

Value binary(Machine& m, Op op, const Value& a, const Value& b) {
  bool numbers = is_numeric(a) && is_numeric(b);
  switch (op) {
    case Op::add:
      return add(m, a, b);
    case Op::sub: {
      if (!numbers) unsupported(m, "-", a, b);
      if (!is_whole(a) || !is_whole(b)) return Value::real(real_operand(m, a) - real_operand(m, b));
      int64_t r = 0;
      if (is_big(a) || is_big(b) || __builtin_sub_overflow(a.as_int(), b.as_int(), &r))
        return big_binary(m, Op::sub, a, b);
      return Value::integer(r);
    }
    case Op::mul:
      return multiply(m, a, b);
    case Op::div:
      if (!numbers) unsupported(m, "/", a, b);
      if (real_operand(m, b) == 0) m.fail("division by zero");
      return Value::real(real_operand(m, a) / real_operand(m, b));
    case Op::mod:
      if (a.is(Kind::string)) return m.string(percent_format(m.meter, a.text(), b));
      [[fallthrough]];
    case Op::floordiv:
      if (!numbers) unsupported(m, op == Op::mod ? "%" : "//", a, b);
      return divide_down(m, op == Op::floordiv, a, b);
    case Op::pow:
      return power(m, a, b);
    case Op::eq:
      return Value::boolean(equals(m.meter, a, b));
    case Op::ne:
      return Value::boolean(!equals(m.meter, a, b));
    case Op::lt:
    case Op::le:
    case Op::gt:
    case Op::ge:
      return ordered(m, op, a, b);
    case Op::in:
      return Value::boolean(contains(m.meter, b, a));
    case Op::not_in:
      return Value::boolean(!contains(m.meter, b, a));
  }
  return {};
}

Value negate(Machine& m, const Value& v) {
  if (v.is(Kind::real)) return Value::real(-v.as_double());
  if (is_big(v) || (v.is_integral() && v.as_int() == INT64_MIN)) {
    BigInt b = BigInt::of(m.meter, v);
    b.negate();
    return b.value();
  }
  if (!v.is_integral()) {
    if (v.is(Kind::undefined)) m.fail(v.object() ? v.text().str() : "undefined value");
    m.fail(strf("bad operand type for unary -: '%s'", type_name(v)));
  }
  return Value::integer(-v.as_int());
}

bool is_sliceable(const Value& v, const Value& start, const Value& stop, const Value& step) {
  auto bound = [](const Value& x) { return x.is(Kind::none) || is_whole(x); };
  bool kind = v.is(Kind::string) || v.is_seq(SeqKind::list) || v.is_seq(SeqKind::tuple) ||
              v.is_seq(SeqKind::range) || v.is_seq(SeqKind::bytes);
  return kind && bound(start) && bound(stop) && bound(step);
}

Value slice_of(
    Machine& m, const Value& v, const Value& start, const Value& stop, const Value& step) {
  if (v.is(Kind::undefined)) m.fail(v.object() ? v.text().str() : "undefined value");
  if (!is_sliceable(v, start, stop, step))
    m.fail(strf("'%s' object cannot be sliced so", type_name(v)));
  size_t count = 0;
  length_of(v, count);
  auto n = static_cast<int64_t>(count);
  // Beyond 64 bits a bound is as good as the largest one.
  auto bounded = [&](const Value& x) {
    if (!is_big(x)) return x.as_int();
    return x.text().view().starts_with('-') ? -INT64_MAX : INT64_MAX;
  };
  int64_t by = step.is(Kind::none) ? 1 : bounded(step);
  if (by == 0) m.fail("slice step cannot be zero");
  auto clamp = [&](const Value& bound, int64_t fallback) {
    if (bound.is(Kind::none)) return fallback;
    int64_t i = bounded(bound);
    if (i < 0) i = i < -n ? -1 : i + n;
    if (i < 0) return by > 0 ? int64_t{0} : int64_t{-1};
    return std::min(i, by > 0 ? n : n - 1);
  };
  int64_t from = clamp(start, by > 0 ? 0 : n - 1), to = clamp(stop, by > 0 ? n : -1);
  by = std::clamp<int64_t>(by, -n - 1, n + 1);  // larger steps select the same
  if (v.is(Kind::string)) {
    const Text& t = v.text();
    m.meter.walk(t.size());
    if (by == 1) {
      if (from >= to) return make_string(m.meter, Text(m.meter), is_markup(v));
      size_t begin = code_point_offset(t.view(), static_cast<size_t>(from));
      size_t end =
          begin + code_point_offset(t.view().substr(begin), static_cast<size_t>(to - from));
      return make_string(m.meter, t.slice(m.meter, begin, end), is_markup(v));
    }
    std::vector<size_t, Metered<size_t>> starts(m.meter);
    starts.reserve(count + 1);
    for (size_t i = 0; i < t.size();) {
      starts.push_back(i);
      next_code_point(t.view(), i);
    }
    starts.push_back(t.size());
    Text out(m.meter);
    for (int64_t i = from; by > 0 ? i < to : i > to; i += by) {
      auto at = static_cast<size_t>(i);
      out.append(t, starts[at], starts[at + 1]);
    }
    return make_string(m.meter, std::move(out), is_markup(v));
  }
  Values out(m.meter);
  for (int64_t i = from; by > 0 ? i < to : i > to; i += by) {
    out.push_back(v.items()[static_cast<size_t>(i)]);
  }
  Value part = make_seq(m.meter, std::move(out), v.seq().kind);
  if (v.is_seq(SeqKind::range)) {
    // Wraps where the stop lies beyond 64 bits: it is only printed.
    auto u = [](int64_t i) { return static_cast<uint64_t>(i); };
    SeqObject& r = part.seq();
    r.start = static_cast<int64_t>(u(v.seq().start) + u(from) * u(v.seq().by));
    r.stop = static_cast<int64_t>(u(v.seq().start) + u(to) * u(v.seq().by));
    r.by = static_cast<int64_t>(u(v.seq().by) * u(by));
  }
  return part;
}

}  // namespace sluice::jinja
