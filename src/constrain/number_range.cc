#include "constrain/number_range.h"

#include <algorithm>
#include <charconv>
#include <cmath>

namespace sluice::constrain {

namespace {

int compare_whole(const std::string& a, const std::string& b) {
  if (a.size() != b.size()) return a.size() < b.size() ? -1 : 1;
  return a.compare(b) < 0 ? -1 : a == b ? 0 : 1;
}

std::string add_one(std::string digits) {
  for (size_t i = digits.size(); i-- > 0;) {
    if (digits[i] != '9') return ++digits[i], digits;
    digits[i] = '0';
  }
  return "1" + digits;
}

std::string minus_one(std::string digits) {  // > 0
  for (size_t i = digits.size(); i-- > 0;) {
    if (digits[i] != '0') {
      --digits[i];
      break;
    }
    digits[i] = '9';
  }
  size_t first = digits.find_first_not_of('0');
  return first == std::string::npos ? "0" : digits.substr(first);
}

// Magnitudes, and the expressions for those at, above or below a bound.
class RangeBuilder {
 public:
  explicit RangeBuilder(RegexPool& pool) : pool_(pool), digit_(pool.range('0', '9')) {
    any_whole_ = pool_.any_of(
        {pool_.range('0', '0'), pool_.concat(pool_.range('1', '9'), pool_.star(digit_))});
    some_ = pool_.repeat(digit_, 1, RegexPool::kInf);
    any_fraction_ = pool_.optional(pool_.concat(pool_.range('.', '.'), some_));
  }

  // |x| >= low (or >) and |x| <= high (or <); `whole`: without a fraction.
  RegexId magnitude(const std::optional<NumberBound>& low,
                    const std::optional<NumberBound>& high,
                    bool whole) {
    std::vector<RegexId> parts{whole ? any_whole_ : pool_.concat(any_whole_, any_fraction_)};
    if (low) parts.push_back(at_least(*low, whole));
    if (high) parts.push_back(at_most(*high, whole));
    return pool_.all_of(std::move(parts));
  }

 private:
  RegexId digits(size_t n) {
    return pool_.repeat(digit_, static_cast<uint32_t>(n), static_cast<uint32_t>(n));
  }
  RegexId between(char a, char b) { return a > b ? RegexPool::kEmpty : pool_.range(a, b); }

  RegexId whole_above(const std::string& n) {  // > n
    std::vector<RegexId> options{
        pool_.concat({pool_.range('1', '9'), digits(n.size()), pool_.star(digit_)})};
    for (size_t i = 0; i < n.size(); ++i) {
      options.push_back(
          pool_.concat({pool_.literal(n.substr(0, i)), between(static_cast<char>(n[i] + 1), '9'),
                        digits(n.size() - i - 1)}));
    }
    return pool_.any_of(std::move(options));
  }

  RegexId whole_below(const std::string& n) {  // < n
    std::vector<RegexId> options;
    if (n.size() > 1) {
      options.push_back(pool_.range('0', '0'));
      options.push_back(pool_.concat(pool_.range('1', '9'),
                                     pool_.repeat(digit_, 0, static_cast<uint32_t>(n.size() - 2))));
    }
    for (size_t i = 0; i < n.size(); ++i) {
      char least = i == 0 && n.size() > 1 ? '1' : '0';
      options.push_back(
          pool_.concat({pool_.literal(n.substr(0, i)), between(least, static_cast<char>(n[i] - 1)),
                        digits(n.size() - i - 1)}));
    }
    return pool_.any_of(std::move(options));
  }

  // ".digits" or nothing: a fraction compared with .f. An open bound takes few digits, so that
  // binary doubles do not round onto it.
  RegexId fraction_above(const NumberBound& bound) {
    const std::string& f = bound.at.fraction;
    RegexId rest = pool_.star(digit_);
    if (bound.open) {
      size_t used = f.size() + (bound.at.whole == "0" ? 0 : bound.at.whole.size());
      rest = pool_.repeat(digit_, 0, static_cast<uint32_t>(used >= 14 ? 1 : 15 - used));
    }
    std::vector<RegexId> options;
    for (size_t i = 0; i < f.size(); ++i) {
      options.push_back(
          pool_.concat({pool_.literal(f.substr(0, i)), between(static_cast<char>(f[i] + 1), '9'),
                        pool_.star(digit_)}));
    }
    RegexId nonzero = pool_.concat({rest, pool_.range('1', '9'), rest});
    options.push_back(pool_.concat(pool_.literal(f), bound.open  ? nonzero
                                                     : f.empty() ? some_
                                                                 : pool_.star(digit_)));
    RegexId r = pool_.concat(pool_.range('.', '.'), pool_.any_of(std::move(options)));
    return f.empty() && !bound.open ? pool_.optional(r) : r;
  }

  RegexId fraction_below(const NumberBound& bound) {
    const std::string& f = bound.at.fraction;
    if (f.empty() && bound.open) return RegexPool::kEmpty;
    RegexId zeros = pool_.star(pool_.range('0', '0'));
    RegexId rest = bound.open ? pool_.repeat(digit_, 0, 12) : pool_.star(digit_);
    std::vector<RegexId> options;
    for (size_t i = 0; i < f.size(); ++i) {
      if (i > 0) options.push_back(pool_.literal(f.substr(0, i)));
      options.push_back(pool_.concat(
          {pool_.literal(f.substr(0, i)), between('0', static_cast<char>(f[i] - 1)), rest}));
    }
    if (f.empty()) {
      options.push_back(pool_.repeat(pool_.range('0', '0'), 1, RegexPool::kInf));
    } else if (!bound.open) {
      options.push_back(pool_.concat(pool_.literal(f), zeros));
    }
    return pool_.optional(pool_.concat(pool_.range('.', '.'), pool_.any_of(std::move(options))));
  }

  RegexId at_least(const NumberBound& b, bool whole) {
    RegexId above = whole_above(b.at.whole);
    if (whole) {
      bool itself = b.at.is_whole() && !b.open;
      return itself ? pool_.any_of({above, pool_.literal(b.at.whole)}) : above;
    }
    return pool_.any_of({pool_.concat(above, any_fraction_),
                         pool_.concat(pool_.literal(b.at.whole), fraction_above(b))});
  }

  RegexId at_most(const NumberBound& b, bool whole) {
    RegexId below = whole_below(b.at.whole);
    if (whole) {
      bool itself = !b.at.is_whole() || !b.open;
      return itself ? pool_.any_of({below, pool_.literal(b.at.whole)}) : below;
    }
    // Just below an open whole bound: 0.999... must not round onto it.
    RegexId fraction = any_fraction_;
    if (b.open && b.at.is_whole()) {
      fraction = pool_.optional(pool_.concat(
          pool_.range('.', '.'),
          pool_.repeat(
              digit_, 1,
              b.at.whole.size() >= 14 ? 1 : static_cast<uint32_t>(15 - b.at.whole.size()))));
    }
    return pool_.any_of({pool_.concat(below, fraction),
                         pool_.concat(pool_.literal(b.at.whole), fraction_below(b))});
  }

  RegexPool& pool_;
  RegexId digit_, any_whole_, some_, any_fraction_;
};

}  // namespace

std::optional<Decimal> Decimal::of(const json::value& number) {
  std::string text;
  if (number.is_int64()) {
    text = std::to_string(number.get_int64());
  } else if (number.is_uint64()) {
    text = std::to_string(number.get_uint64());
  } else if (number.is_double() && std::isfinite(number.get_double())) {
    char buffer[512];
    auto end = std::to_chars(buffer, buffer + sizeof buffer, number.get_double(),
                             std::chars_format::fixed);
    if (end.ec != std::errc()) return std::nullopt;
    text.assign(buffer, end.ptr);
  } else {
    return std::nullopt;
  }
  Decimal d;
  d.negative = text[0] == '-';
  if (d.negative) text.erase(0, 1);
  size_t dot = text.find('.');
  d.whole = text.substr(0, dot);
  if (dot != std::string::npos) d.fraction = text.substr(dot + 1);
  while (!d.fraction.empty() && d.fraction.back() == '0') d.fraction.pop_back();
  if (d.is_zero()) d.negative = false;
  return d;
}

Decimal Decimal::next_whole(int direction) const {
  Decimal d = *this;
  bool grows = (direction > 0) != negative;
  if (is_zero()) {
    d.whole = "1", d.negative = direction < 0;
  } else {
    d.whole = grows ? add_one(whole) : minus_one(whole);
  }
  if (d.is_zero()) d.negative = false;
  return d;
}

int Decimal::compare(const Decimal& other) const {
  if (negative != other.negative) return negative ? -1 : 1;
  int order = compare_whole(whole, other.whole);
  if (order == 0) order = fraction.compare(other.fraction);
  order = order < 0 ? -1 : order > 0 ? 1 : 0;
  return negative ? -order : order;
}

RegexId number_regex(RegexPool& pool, const NumberSet& set) {
  RegexId digit = pool.range('0', '9');
  RegexId minus = pool.range('-', '-');
  if (!set.low && !set.high && set.multiple == 0) {
    RegexId whole =
        pool.any_of({pool.range('0', '0'), pool.concat(pool.range('1', '9'), pool.star(digit))});
    whole = pool.concat(pool.optional(minus), whole);
    if (set.whole) return whole;
    RegexId some = pool.repeat(digit, 1, RegexPool::kInf);
    ByteSet e, sign;
    e.add('e'), e.add('E'), sign.add('+'), sign.add('-');
    // Two digits at most: larger exponents overflow what readers can hold.
    RegexId exponent =
        pool.concat({pool.bytes(e), pool.optional(pool.bytes(sign)), pool.repeat(digit, 1, 2)});
    return pool.concat(
        {whole, pool.optional(pool.concat(pool.range('.', '.'), some)), pool.optional(exponent)});
  }
  RangeBuilder ranges(pool);
  std::vector<RegexId> options;
  bool whole = set.whole || set.multiple != 0;
  // Zero and above.
  if (!set.high || !set.high->at.negative) {
    bool zero_open = set.low && set.low->at.is_zero() && set.low->open;
    bool from_low = set.low && !set.low->at.negative && (!set.low->at.is_zero() || zero_open);
    options.push_back(ranges.magnitude(from_low ? set.low : std::nullopt, set.high, whole));
  }
  // Below zero: magnitudes with the bounds turned around. "-0" is not written.
  if (!set.low || set.low->at.negative) {
    auto turned = [](std::optional<NumberBound> b) {
      if (b) b->at.negative = false;
      return b;
    };
    std::optional<NumberBound> most = turned(set.low), least = NumberBound{Decimal{}, true};
    if (set.high && set.high->at.negative) least = turned(set.high);
    options.push_back(pool.concat(minus, ranges.magnitude(least, most, whole)));
  }
  RegexId r = pool.any_of(std::move(options));
  if (set.multiple > 1) {
    r = pool.all_of({r, pool.concat(pool.optional(minus), pool.multiple(set.multiple, 0))});
  }
  return r;
}

}  // namespace sluice::constrain
