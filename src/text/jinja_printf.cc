// '%' formatting and format specifications.
#include <algorithm>
#include <cmath>
#include <optional>

#include "base/str.h"
#include "text/jinja_format.h"

namespace sluice::jinja {
namespace {

constexpr size_t kMaxWidth = 100'000;
constexpr int kMaxPrecision = 400;

size_t parse_count(Meter& m, std::string_view s, size_t& i) {
  size_t n = 0;
  for (; i < s.size() && s[i] >= '0' && s[i] <= '9'; ++i) {
    n = n * 10 + static_cast<size_t>(s[i] - '0');
    if (n > kMaxWidth) m.fail("format width too large");
  }
  return n;
}

std::string with_commas(std::string digits, char separator) {
  for (size_t i = digits.size(); i > 3; i -= 3) digits.insert(i - 3, 1, separator);
  return digits;
}

std::string unsigned_radix(uint64_t v, unsigned radix, bool upper) {
  std::string out;
  do {
    out.push_back((upper ? "0123456789ABCDEF" : "0123456789abcdef")[v % radix]);
    v /= radix;
  } while (v > 0);
  std::reverse(out.begin(), out.end());
  return out;
}

struct NumberStyle {
  char type = 0;  // d i u x X o b e E f F g G %
  int precision = -1;
  char sign = '-';  // '-', '+', ' '
  bool alternate = false;
  char group = 0;
};

struct Number {
  std::string sign, digits;
};

Number real_digits(Meter& m, double d, const NumberStyle& s) {
  Number out;
  if (std::signbit(d)) out.sign = "-";
  d = std::fabs(d);
  bool percent = s.type == '%';
  if (percent) d *= 100;
  char type = percent ? 'f' : s.type;
  if (s.precision > kMaxPrecision) m.fail("format precision too large");
  if (!std::isfinite(d)) {
    out.digits = std::isnan(d) ? "nan" : "inf";
  } else if (type == 0 && s.precision < 0) {
    out.digits = float_repr(d);
  } else {
    char format[] = {'%', '.', '*', type == 0 ? 'g' : type, '\0'};
    char buf[1024];  // 309 digits before the point, kMaxPrecision after it
    int n = std::snprintf(buf, sizeof buf, format, s.precision < 0 ? 6 : s.precision, d);
    out.digits.assign(buf, static_cast<size_t>(std::clamp(n, 0, 1023)));
  }
  if (s.group) {
    size_t point = std::min(out.digits.find_first_not_of("0123456789"), out.digits.size());
    out.digits = with_commas(out.digits.substr(0, point), s.group) + out.digits.substr(point);
  }
  if (percent) out.digits += "%";
  return out;
}

Number integer_digits(int64_t i, const NumberStyle& s) {
  Number out;
  if (i < 0) out.sign = "-";
  uint64_t u = i < 0 ? 0 - static_cast<uint64_t>(i) : static_cast<uint64_t>(i);
  bool upper = s.type == 'X';
  unsigned radix = s.type == 'x' || upper ? 16 : s.type == 'o' ? 8 : s.type == 'b' ? 2 : 10;
  out.digits = unsigned_radix(u, radix, upper);
  if (s.group) out.digits = with_commas(out.digits, s.group);
  if (s.alternate && radix != 10) out.sign += std::string("0") + s.type;
  return out;
}

Number number_digits(Meter& m, const Value& v, NumberStyle s) {
  static constexpr std::string_view kInteger = "dixXobu";
  bool whole = kInteger.find(s.type) != std::string_view::npos && s.type != 0;
  Number n;
  if (v.is_integral() && (whole || s.type == 0)) {
    n = integer_digits(v.as_int(), s);
    if (s.precision > kMaxPrecision) m.fail("format precision too large");
    if (s.precision > static_cast<int>(n.digits.size())) {
      n.digits.insert(0, static_cast<size_t>(s.precision) - n.digits.size(), '0');
    }
  } else {
    n = real_digits(m, v.as_double(), s);
  }
  if (n.sign.empty() || n.sign[0] != '-') {
    if (s.sign != '-') n.sign.insert(0, 1, s.sign);
  }
  return n;
}

}  // namespace

Text pad(Meter& m, const Text& s, size_t width, char align, std::string_view fill) {
  m.scan(s.size());
  size_t n = count_code_points(s.view());
  if (n >= width) return s;
  if (width > kMaxWidth) m.fail("format width too large");
  size_t missing = width - n;
  size_t left = align == '>' ? missing : align == '<' ? 0 : missing / 2;
  if (align == 'c') left += missing & width & 1;  // str.center() puts the odd space elsewhere
  Text out;
  for (size_t i = 0; i < left; ++i) m.grow(out, fill, true);
  m.grow(out, s);
  for (size_t i = left; i < missing; ++i) m.grow(out, fill, true);
  return out;
}

Text format_value(Meter& m, const Value& v, std::string_view spec) {
  if (spec.empty()) return to_text(m, v);
  std::string fill = " ";
  char align = 0;
  size_t i = 0;
  auto is_align = [&](size_t at) {
    return at < spec.size() && std::string_view("<>^=").find(spec[at]) != std::string_view::npos;
  };
  size_t after_fill = 0;
  next_code_point(spec, after_fill);
  if (is_align(after_fill)) {
    fill = spec.substr(0, after_fill);
    align = spec[after_fill];
    i = after_fill + 1;
  } else if (is_align(0)) {
    align = spec[i++];
  }
  NumberStyle style;
  auto skip = [&](char c) { return i < spec.size() && spec[i] == c && ++i; };
  if (i < spec.size() && std::string_view("+- ").find(spec[i]) != std::string_view::npos) {
    style.sign = spec[i++];
  }
  style.alternate = skip('#');
  if (skip('0') && !align) fill = "0", align = '=';
  size_t width = parse_count(m, spec, i);
  if (skip(',')) style.group = ',';
  if (skip('_')) style.group = '_';
  if (skip('.')) style.precision = static_cast<int>(parse_count(m, spec, i));
  if (i < spec.size()) style.type = spec[i++];
  if (i != spec.size()) m.fail("invalid format specifier " + quoted(spec));

  if (v.is(Kind::string)) {
    if (style.type && style.type != 's')
      m.fail("unknown format code for a string: " + quoted(spec));
    Text t = v.text();
    if (style.precision >= 0) {
      t = t.slice(0, code_point_offset(t.view(), static_cast<size_t>(style.precision)));
    }
    return pad(m, t, width, align ? align : '<', fill);
  }
  if (!v.is_number() ||
      std::string_view("dxXobeEfFgG%").find(style.type) == std::string_view::npos) {
    if (!v.is_number() || style.type) {
      m.fail(strf("unsupported format string for %s: %s", type_name(v), quoted(spec).c_str()));
    }
  }
  if (v.is(Kind::real) && style.type &&
      std::string_view("dxXob").find(style.type) != std::string_view::npos) {
    m.fail("unknown format code for a float: " + quoted(spec));
  }
  Number n = number_digits(m, v, style);
  if (align == '=') {
    size_t used = n.sign.size();
    Text digits = pad(m, Text(n.digits, true), width > used ? width - used : 0, '>', fill);
    return Text(n.sign + digits.str(), true);
  }
  return pad(m, Text(n.sign + n.digits, true), width, align ? align : '>', fill);
}

Text percent_format(Meter& m, const Text& format, const Value& arg) {
  m.scan(format.size());
  bool tuple = arg.is_seq(SeqKind::tuple);
  size_t next_arg = 0;
  auto take = [&]() -> Value {
    if (tuple ? next_arg >= arg.items().size() : next_arg > 0) {
      m.fail("not enough arguments for format string");
    }
    ++next_arg;
    return tuple ? arg.items()[next_arg - 1] : arg;
  };
  Text out;
  std::string_view f = format.view();
  for (size_t i = 0; i < f.size();) {
    size_t percent = std::min(f.find('%', i), f.size());
    m.grow(out, format.slice(i, percent));
    if (percent == f.size()) break;
    i = percent + 1;
    if (i < f.size() && f[i] == '%') {
      m.grow(out, "%", true);
      ++i;
      continue;
    }
    std::optional<Value> v;
    if (i < f.size() && f[i] == '(') {
      size_t close = f.find(')', i);
      if (close == std::string_view::npos) m.fail("incomplete format key");
      if (!arg.is(Kind::dict)) m.fail("format requires a mapping");
      const Value* found = arg.dict().find(f.substr(i + 1, close - i - 1));
      if (!found) m.fail("format key not found: " + quoted(f.substr(i + 1, close - i - 1)));
      v = *found;
      next_arg = 1;
      i = close + 1;
    }
    bool left = false, zero = false;
    NumberStyle style;
    for (; i < f.size() && std::string_view("-+ #0").find(f[i]) != std::string_view::npos; ++i) {
      left |= f[i] == '-';
      zero |= f[i] == '0';
      style.alternate |= f[i] == '#';
      if (f[i] == '+' || (f[i] == ' ' && style.sign != '+')) style.sign = f[i];
    }
    auto count = [&]() -> size_t {
      if (i >= f.size() || f[i] != '*') return parse_count(m, f, i);
      ++i;
      Value n = take();
      if (!n.is_integral()) m.fail("* wants int");
      left |= n.as_int() < 0;
      if (n.as_int() < -static_cast<int64_t>(kMaxWidth) ||
          n.as_int() > static_cast<int64_t>(kMaxWidth)) {
        m.fail("format width too large");
      }
      return static_cast<size_t>(std::abs(n.as_int()));
    };
    size_t width = count();
    if (i < f.size() && f[i] == '.') {
      ++i;
      style.precision = static_cast<int>(count());
    }
    if (i >= f.size()) m.fail("incomplete format");
    style.type = f[i++];
    if (!v) v = take();
    Text piece;
    if (style.type == 's' || style.type == 'r' || style.type == 'a') {
      piece = style.type == 's' ? to_text(m, *v) : repr(m, *v);
      if (style.precision >= 0) {
        piece =
            piece.slice(0, code_point_offset(piece.view(), static_cast<size_t>(style.precision)));
      }
      piece = pad(m, piece, width, left ? '<' : '>', " ");
    } else if (style.type == 'c') {
      m.fail("%c is not supported in chat templates; use %s");
    } else if (std::string_view("diuxXoeEfFgG").find(style.type) == std::string_view::npos) {
      m.fail(strf("unsupported format character '%c'",
                  style.type >= 0x20 && style.type < 0x7F ? style.type : '?'));
    } else {
      if (!v->is_number()) {
        m.fail(strf("%%%c format: a number is required, not %s", style.type, type_name(*v)));
      }
      bool whole = std::string_view("diuxXo").find(style.type) != std::string_view::npos;
      if (whole && v->is(Kind::real)) {
        double d = std::trunc(v->as_double());
        if (!(std::fabs(d) < 9.2e18)) m.fail("number out of range (64 bits)");
        v = Value::integer(static_cast<int64_t>(d));
      }
      if (!whole && v->is_integral()) v = Value::real(v->as_double());
      Number n = number_digits(m, *v, style);
      size_t used = n.sign.size();
      if (zero && !left) {
        n.digits = pad(m, Text(n.digits, true), width > used ? width - used : 0, '>', "0").str();
      }
      piece = pad(m, Text(n.sign + n.digits, true), width, left ? '<' : '>', " ");
    }
    m.grow(out, piece);
  }
  size_t given = tuple ? arg.items().size() : arg.is(Kind::dict) ? next_arg : 1;
  if (next_arg < given) m.fail("not all arguments converted during string formatting");
  return out;
}

}  // namespace sluice::jinja
