#include "text/jinja/bigint.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

namespace sluice::jinja {

namespace {

constexpr uint32_t kBase = 1'000'000'000;
constexpr size_t kLimbDigits = 9, kMaxLimbs = kMaxDigits / kLimbDigits + 1;

int digit_of(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  c = static_cast<char>(c | 32);
  return c >= 'a' && c <= 'z' ? c - 'a' + 10 : 99;
}

}  // namespace

BigInt::BigInt(Meter& m, int64_t i) : negative_(i < 0), limbs_(m) {
  uint64_t u = i < 0 ? 0 - static_cast<uint64_t>(i) : static_cast<uint64_t>(i);
  for (; u > 0; u /= kBase) limbs_.push_back(static_cast<uint32_t>(u % kBase));
}

void BigInt::normalize() {
  while (!limbs_.empty() && limbs_.back() == 0) limbs_.pop_back();
  if (limbs_.empty()) negative_ = false;
  if (limbs_.size() > kMaxLimbs) meter().fail("an integer has more than 4300 digits");
}

void BigInt::multiply_add(uint32_t by, uint32_t more) {
  uint64_t carry = more;
  for (uint32_t& limb : limbs_) {
    carry += uint64_t{limb} * by;
    limb = static_cast<uint32_t>(carry % kBase);
    carry /= kBase;
  }
  for (; carry > 0; carry /= kBase) limbs_.push_back(static_cast<uint32_t>(carry % kBase));
  if (limbs_.size() > kMaxLimbs) normalize();
}

bool BigInt::parse(Meter& m, std::string_view text, int radix, BigInt& out) {
  bool minus = text.starts_with('-');
  if (minus) text.remove_prefix(1);
  if (text.empty()) return false;
  if (!std::all_of(text.begin(), text.end(), [&](char c) { return digit_of(c) < radix; }))
    return false;
  BigInt r(m);
  if (radix == 10) {  // a limb is kLimbDigits of them
    m.walk(2 * text.size());
    text.remove_prefix(std::min(text.find_first_not_of('0'), text.size()));
    if (text.size() > kMaxLimbs * kLimbDigits) m.fail("an integer has more than 4300 digits");
    for (size_t end = text.size(); end > 0;) {
      size_t begin = end > kLimbDigits ? end - kLimbDigits : 0;
      uint32_t limb = 0;
      for (size_t i = begin; i < end; ++i) limb = limb * 10 + static_cast<uint32_t>(text[i] - '0');
      r.limbs_.push_back(limb);
      end = begin;
    }
  } else {
    for (char c : text) {
      m.step(1 + r.limbs_.size() / 16);
      r.multiply_add(static_cast<uint32_t>(radix), static_cast<uint32_t>(digit_of(c)));
    }
  }
  r.negative_ = minus;
  r.normalize();
  out = std::move(r);
  return true;
}

BigInt BigInt::from_double(Meter& m, double whole) {
  char text[400];
  int n = std::snprintf(text, sizeof text, "%.0f", whole);
  BigInt r(m);
  parse(m, std::string_view(text, static_cast<size_t>(n)), 10, r);
  return r;
}

BigInt BigInt::of(Meter& m, const Value& v) {
  if (v.is_integral()) return BigInt(m, v.as_int());
  BigInt r(m);
  parse(m, v.text().view(), 10, r);
  return r;
}

uint32_t BigInt::divide_small(uint32_t by) {
  uint64_t rest = 0;
  for (size_t i = limbs_.size(); i-- > 0;) {
    rest = rest * kBase + limbs_[i];
    limbs_[i] = static_cast<uint32_t>(rest / by);
    rest %= by;
  }
  normalize();
  return static_cast<uint32_t>(rest);
}

std::string BigInt::digits(int radix) const {
  if (zero()) return "0";
  meter().step(1 + 4 * limbs_.size());
  std::string out;
  if (radix == 10) {
    out = std::to_string(limbs_.back());
    for (size_t i = limbs_.size() - 1; i-- > 0;) {
      std::string part = std::to_string(limbs_[i]);
      out += std::string(kLimbDigits - part.size(), '0') + part;
    }
    return out;
  }
  BigInt rest = *this;
  while (!rest.zero()) {
    meter().step(1 + rest.limbs_.size() / 16);
    out.push_back("0123456789abcdef"[rest.divide_small(static_cast<uint32_t>(radix))]);
  }
  std::reverse(out.begin(), out.end());
  return out;
}

double BigInt::as_double() const {
  double d = std::strtod(digits().c_str(), nullptr);  // rounds correctly
  return negative_ ? -d : d;
}

Value BigInt::value() const {
  std::string text = digits();
  if (text.size() <= 19) {
    uint64_t u = std::strtoull(text.c_str(), nullptr, 10);
    if (u <= static_cast<uint64_t>(INT64_MAX) + (negative_ ? 1 : 0))
      return Value::integer(static_cast<int64_t>(negative_ ? 0 - u : u));
  }
  if (text.size() > kMaxDigits) meter().fail("an integer has more than 4300 digits");
  if (negative_) text.insert(0, "-");
  return {Kind::big_integer, make_string(meter(), std::move(text), true).shared()};
}

int BigInt::compare_limbs(const Limbs& a, const Limbs& b) {
  if (a.size() != b.size()) return a.size() < b.size() ? -1 : 1;
  for (size_t i = a.size(); i-- > 0;) {
    if (a[i] != b[i]) return a[i] < b[i] ? -1 : 1;
  }
  return 0;
}

int BigInt::compare(const BigInt& b) const {
  if (negative_ != b.negative_) return negative_ ? -1 : 1;
  int c = compare_limbs(limbs_, b.limbs_);
  return negative_ ? -c : c;
}

void BigInt::add_limbs(Limbs& a, const Limbs& b) {
  if (a.size() < b.size()) a.resize(b.size());
  uint32_t carry = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    uint32_t sum = a[i] + (i < b.size() ? b[i] : 0) + carry;
    carry = sum >= kBase;
    a[i] = carry ? sum - kBase : sum;
  }
  if (carry) a.push_back(1);
}

void BigInt::subtract_limbs(Limbs& a, const Limbs& b) {
  uint32_t borrow = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    uint32_t less = (i < b.size() ? b[i] : 0) + borrow;
    borrow = a[i] < less;
    a[i] = a[i] + (borrow ? kBase : 0) - less;
  }
  while (!a.empty() && a.back() == 0) a.pop_back();
}

BigInt BigInt::plus(const BigInt& b) const {
  meter().step(1 + (limbs_.size() + b.limbs_.size()) / 16);
  bool larger = compare_limbs(limbs_, b.limbs_) >= 0;
  const BigInt &x = larger ? *this : b, &y = larger ? b : *this;
  BigInt r = x;
  if (x.negative_ == y.negative_) {
    add_limbs(r.limbs_, y.limbs_);
  } else {
    subtract_limbs(r.limbs_, y.limbs_);
  }
  r.normalize();
  return r;
}

BigInt BigInt::times(const BigInt& b) const {
  BigInt r(meter());
  if (zero() || b.zero()) return r;
  size_t n = limbs_.size() + b.limbs_.size();
  meter().step(1 + limbs_.size() * b.limbs_.size() / 6);
  if (n > kMaxLimbs + 1) meter().fail("an integer has more than 4300 digits");
  r.limbs_.resize(n);
  for (size_t i = 0; i < limbs_.size(); ++i) {
    uint64_t carry = 0;
    for (size_t k = 0; k < b.limbs_.size() || carry > 0; ++k) {
      uint64_t x = k < b.limbs_.size() ? b.limbs_[k] : 0;
      carry += r.limbs_[i + k] + uint64_t{limbs_[i]} * x;
      r.limbs_[i + k] = static_cast<uint32_t>(carry % kBase);
      carry /= kBase;
    }
  }
  r.negative_ = negative_ != b.negative_;
  r.normalize();
  return r;
}

// Long division, a limb of the quotient at a time: its estimate from the leading limbs is found by
// bisection over products, which needs no scaling of the operands.
BigInt::Limbs BigInt::divide_limbs(const Limbs& a, const Limbs& b, Limbs& remainder) {
  Meter& m = *a.get_allocator().meter();
  Limbs quotient(a.size(), 0, m), rest(m), product(m);
  auto multiply = [&](uint32_t by) {
    product.assign(b.begin(), b.end());
    uint64_t carry = 0;
    for (uint32_t& limb : product) {
      carry += uint64_t{limb} * by;
      limb = static_cast<uint32_t>(carry % kBase);
      carry /= kBase;
    }
    if (carry > 0) product.push_back(static_cast<uint32_t>(carry));
    while (!product.empty() && product.back() == 0) product.pop_back();
  };
  for (size_t i = a.size(); i-- > 0;) {
    rest.insert(rest.begin(), a[i]);
    while (!rest.empty() && rest.back() == 0) rest.pop_back();
    if (compare_limbs(rest, b) < 0) continue;
    m.step(1 + 30 * b.size() / 16);
    uint32_t low = 1, high = kBase - 1;  // the largest factor whose product is not above `rest`
    while (low < high) {
      uint32_t middle = low + (high - low + 1) / 2;
      multiply(middle);
      if (compare_limbs(product, rest) <= 0) {
        low = middle;
      } else {
        high = middle - 1;
      }
    }
    multiply(low);
    subtract_limbs(rest, product);
    quotient[i] = low;
  }
  remainder = std::move(rest);
  return quotient;
}

BigInt BigInt::divided_by(const BigInt& b, BigInt& remainder) const {
  BigInt q(meter()), r(meter());
  q.limbs_ = divide_limbs(limbs_, b.limbs_, r.limbs_);
  q.negative_ = negative_ != b.negative_;
  r.negative_ = negative_;
  q.normalize(), r.normalize();
  if (!r.zero() && negative_ != b.negative_) {
    q = q.plus(BigInt(meter(), -1));
    r = r.plus(b);
  }
  remainder = std::move(r);
  return q;
}

BigInt BigInt::to_the(uint64_t exponent) const {
  BigInt result(meter(), 1);
  bool small = limbs_.empty() || (limbs_.size() == 1 && limbs_[0] == 1);
  if (small) {  // 0, 1 or -1
    if (exponent == 0) return result;
    result = *this;
    if (negative_ && exponent % 2 == 0) result.negate();
    return result;
  }
  if (exponent > 5 * kMaxDigits) meter().fail("an integer has more than 4300 digits");
  BigInt factor = *this;
  for (uint64_t e = exponent; e > 0; e >>= 1) {
    if (e & 1) result = result.times(factor);
    if (e > 1) factor = factor.times(factor);
  }
  return result;
}

double to_double(Meter& m, const Value& v) {
  return v.is(Kind::big_integer) ? BigInt::of(m, v).as_double() : v.as_double();
}

Value whole_from_double(Meter& m, double whole) {
  if (std::fabs(whole) < 9.2e18) return Value::integer(static_cast<int64_t>(whole));
  return BigInt::from_double(m, whole).value();
}

int compare_big(Meter& m, const Value& a, const Value& b) {
  if (a.is(Kind::real)) {
    int c = compare_big(m, b, a);
    return c == 2 ? 2 : -c;
  }
  BigInt x = BigInt::of(m, a);
  if (!b.is(Kind::real)) return x.compare(BigInt::of(m, b));
  double d = b.as_double();
  if (std::isnan(d)) return 2;
  if (std::isinf(d)) return d > 0 ? -1 : 1;
  int c = x.compare(BigInt::from_double(m, std::floor(d)));
  return c != 0 ? c : d > std::floor(d) ? -1 : 0;
}

}  // namespace sluice::jinja
