// '%' formatting and format specifications.
#include <algorithm>
#include <cmath>
#include <optional>

#include "base/str.h"
#include "text/jinja/bigint.h"
#include "text/jinja/format.h"

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

Number integer_digits(Meter& m, const Value& v, const NumberStyle& s) {
  Number out;
  bool upper = s.type == 'X';
  unsigned radix = s.type == 'x' || upper ? 16 : s.type == 'o' ? 8 : s.type == 'b' ? 2 : 10;
  if (v.is(Kind::big_integer)) {
    BigInt big = BigInt::of(m, v);
    if (big.negative()) out.sign = "-";
    out.digits = big.digits(static_cast<int>(radix));
    for (char& c : out.digits) c = static_cast<char>(upper && c >= 'a' ? c - 32 : c);
  } else {
    int64_t i = v.as_int();
    if (i < 0) out.sign = "-";
    uint64_t u = i < 0 ? 0 - static_cast<uint64_t>(i) : static_cast<uint64_t>(i);
    out.digits = unsigned_radix(u, radix, upper);
  }
  if (s.group) out.digits = with_commas(out.digits, s.group);
  if (s.alternate && radix != 10) out.sign += std::string("0") + s.type;
  return out;
}

Number number_digits(Meter& m, const Value& v, NumberStyle s) {
  static constexpr std::string_view kInteger = "dixXobu";
  bool whole = kInteger.find(s.type) != std::string_view::npos && s.type != 0;
  Number n;
  if (is_whole(v) && (whole || s.type == 0)) {
    n = integer_digits(m, v, s);
    if (s.precision > kMaxPrecision) m.fail("format precision too large");
    if (s.precision > static_cast<int>(n.digits.size())) {
      n.digits.insert(0, static_cast<size_t>(s.precision) - n.digits.size(), '0');
    }
  } else {
    n = real_digits(m, to_double(m, v), s);
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
  if (n >= width) return Text(m, s);
  if (width > kMaxWidth) m.fail("format width too large");
  size_t missing = width - n;
  m.step(missing / 16);
  size_t left = align == '>' ? missing : align == '<' ? 0 : missing / 2;
  if (align == 'c') left += missing & width & 1;  // str.center() puts the odd space elsewhere
  Text out(m);
  for (size_t i = 0; i < left; ++i) out.append(fill, true);
  out.append(s);
  for (size_t i = left; i < missing; ++i) out.append(fill, true);
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
  if (i != spec.size()) m.fail("invalid format specifier " + quote(spec));

  if (v.is(Kind::string)) {
    if (style.type && style.type != 's') m.fail("unknown format code for a string: " + quote(spec));
    Text t(m, v.text());
    if (style.precision >= 0) {
      t = t.slice(m, 0, code_point_offset(t.view(), static_cast<size_t>(style.precision)));
    }
    return pad(m, t, width, align ? align : '<', fill);
  }
  if (!is_numeric(v) ||
      std::string_view("dxXobeEfFgG%").find(style.type) == std::string_view::npos) {
    if (!is_numeric(v) || style.type) {
      m.fail(strf("unsupported format string for %s: %s", type_name(v), quote(spec).c_str()));
    }
  }
  if (v.is(Kind::real) && style.type &&
      std::string_view("dxXob").find(style.type) != std::string_view::npos) {
    m.fail("unknown format code for a float: " + quote(spec));
  }
  Number n = number_digits(m, v, style);
  if (align == '=') {
    size_t used = n.sign.size();
    Text digits = pad(m, Text(m, n.digits, true), width > used ? width - used : 0, '>', fill);
    return Text(m, n.sign + digits.str(), true);
  }
  return pad(m, Text(m, n.sign + n.digits, true), width, align ? align : '>', fill);
}

namespace {

// One rendering of a '%' format string.
class PercentFormat {
 public:
  PercentFormat(Meter& m, const Text& format, const Value& arg)
      : m_(m), format_(format), f_(format.view()), arg_(arg), tuple_(arg.is_seq(SeqKind::tuple)) {}

  Text run() {
    m_.scan(format_.size());
    Text out(m_);
    while (i_ < f_.size()) {
      size_t percent = std::min(f_.find('%', i_), f_.size());
      out.append(format_.slice(m_, i_, percent));
      if (percent == f_.size()) break;
      i_ = percent + 1;
      m_.step();
      if (i_ < f_.size() && f_[i_] == '%') {
        out.append(format_.slice(m_, i_, i_ + 1));
        ++i_;
      } else {
        out.append(conversion());
      }
    }
    // What could be a mapping need not be used: to Python even a list could.
    bool optional = arg_.is(Kind::dict) || arg_.is(Kind::sequence) || arg_.is(Kind::undefined);
    size_t given = tuple_ ? arg_.items().size() : optional ? next_arg_ : 1;
    if (next_arg_ < given) m_.fail("not all arguments converted during string formatting");
    return out;
  }

 private:
  Value take() {
    if (tuple_ ? next_arg_ >= arg_.items().size() : next_arg_ > 0) {
      m_.fail("not enough arguments for format string");
    }
    ++next_arg_;
    return tuple_ ? arg_.items()[next_arg_ - 1] : arg_;
  }

  // %(name)s
  std::optional<Value> named() {
    if (i_ >= f_.size() || f_[i_] != '(') return std::nullopt;
    size_t close = f_.find(')', i_);
    if (close == std::string_view::npos) m_.fail("incomplete format key");
    if (!arg_.is(Kind::dict)) m_.fail("format requires a mapping");
    std::string_view key = f_.substr(i_ + 1, close - i_ - 1);
    const Value* found = arg_.dict().find(m_, key);
    if (!found) m_.fail("format key not found: " + quote(key));
    next_arg_ = 1;
    i_ = close + 1;
    return *found;
  }

  // A width or precision, which `*` takes from the arguments.
  size_t count() {
    if (i_ >= f_.size() || f_[i_] != '*') return parse_count(m_, f_, i_);
    ++i_;
    Value n = take();
    if (!n.is_integral()) m_.fail("* wants int");
    auto most = static_cast<int64_t>(kMaxWidth);
    if (n.as_int() < -most || n.as_int() > most) m_.fail("format width too large");
    left_ |= n.as_int() < 0;
    return static_cast<size_t>(std::abs(n.as_int()));
  }

  Text conversion() {
    std::optional<Value> v = named();
    left_ = zero_ = false;
    NumberStyle style;
    for (; i_ < f_.size() && std::string_view("-+ #0").find(f_[i_]) != std::string_view::npos;
         ++i_) {
      left_ |= f_[i_] == '-';
      zero_ |= f_[i_] == '0';
      style.alternate |= f_[i_] == '#';
      if (f_[i_] == '+' || (f_[i_] == ' ' && style.sign != '+')) style.sign = f_[i_];
    }
    size_t width = count();
    if (i_ < f_.size() && f_[i_] == '.') {
      ++i_;
      style.precision = static_cast<int>(count());
    }
    if (i_ >= f_.size()) m_.fail("incomplete format");
    style.type = f_[i_++];
    if (!v) v = take();
    bool text = style.type == 's' || style.type == 'r' || style.type == 'a';
    return text ? textual(*v, style, width) : numeric(*v, style, width);
  }

  Text textual(const Value& v, const NumberStyle& style, size_t width) {
    Text piece = style.type == 's' ? to_text(m_, v) : repr(m_, v);
    if (style.precision >= 0) {
      piece =
          piece.slice(m_, 0, code_point_offset(piece.view(), static_cast<size_t>(style.precision)));
    }
    return pad(m_, piece, width, left_ ? '<' : '>', " ");
  }

  Text numeric(Value v, const NumberStyle& style, size_t width) {
    // %c is left out on purpose: it would make trusted text of a request's number.
    if (std::string_view("diuxXoeEfFgG").find(style.type) == std::string_view::npos) {
      m_.fail("unsupported format character " + quote(std::string_view(&style.type, 1)));
    }
    if (!is_numeric(v)) {
      m_.fail(strf("%%%c format: a number is required, not %s", style.type, type_name(v)));
    }
    bool whole = std::string_view("diuxXo").find(style.type) != std::string_view::npos;
    if (whole && v.is(Kind::real)) {
      double d = std::trunc(v.as_double());
      if (!std::isfinite(d)) m_.fail("cannot convert float to integer");
      v = whole_from_double(m_, d);
    }
    if (!whole && is_whole(v)) v = Value::real(to_double(m_, v));
    Number n = number_digits(m_, v, style);
    size_t used = n.sign.size();
    if (zero_ && !left_) {
      n.digits = pad(m_, Text(m_, n.digits, true), width > used ? width - used : 0, '>', "0").str();
    }
    return pad(m_, Text(m_, n.sign + n.digits, true), width, left_ ? '<' : '>', " ");
  }

  Meter& m_;
  const Text& format_;
  std::string_view f_;
  const Value& arg_;
  bool tuple_;
  size_t i_ = 0, next_arg_ = 0;
  bool left_ = false, zero_ = false;  // flags of the current conversion
};

}  // namespace

Text percent_format(Meter& m, const Text& format, const Value& arg) {
  return PercentFormat(m, format, arg).run();
}

}  // namespace sluice::jinja
