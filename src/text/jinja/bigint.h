// Whole numbers beyond 64 bits, as Python's int has them. A value holds its decimal digits
// (Kind::big_integer); a BigInt is the form that arithmetic uses. At most kMaxDigits digits, which
// is also Python's limit for writing integers; metered.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/jinja/value.h"

namespace sluice::jinja {

inline constexpr size_t kMaxDigits = 4300;

class BigInt {
 public:
  explicit BigInt(Meter& m) : limbs_(m) {}  // 0
  BigInt(Meter& m, int64_t i);
  // An optional '-' and digits of that base; false: it is something else. Fails when too large.
  static bool parse(Meter& m, std::string_view text, int radix, BigInt& out);
  static BigInt from_double(Meter& m, double whole);  // finite, without a fraction
  // is_whole(v).
  static BigInt of(Meter& m, const Value& v);

  bool negative() const { return negative_; }
  bool zero() const { return limbs_.empty(); }
  bool odd() const { return !zero() && (limbs_[0] & 1) != 0; }
  void negate() { negative_ = !negative_ && !zero(); }
  // Without sign, in lower case.
  std::string digits(int radix = 10) const;
  double as_double() const;  // infinite where Python would fail
  // An integer where it fits 64 bits, else a big_integer.
  Value value() const;

  BigInt plus(const BigInt& b) const;
  BigInt times(const BigInt& b) const;
  // Rounded down, with a remainder of the divisor's sign. `b` is not zero.
  BigInt divided_by(const BigInt& b, BigInt& remainder) const;
  BigInt to_the(uint64_t exponent) const;
  int compare(const BigInt& b) const;  // -1, 0, 1

 private:
  using Limbs = std::vector<uint32_t, Metered<uint32_t>>;
  Meter& meter() const { return *limbs_.get_allocator().meter(); }
  void normalize();
  uint32_t divide_small(uint32_t by);  // in place; returns the remainder
  void multiply_add(uint32_t by, uint32_t more);
  static int compare_limbs(const Limbs& a, const Limbs& b);
  static void add_limbs(Limbs& a, const Limbs& b);
  static void subtract_limbs(Limbs& a, const Limbs& b);  // a >= b
  static Limbs divide_limbs(const Limbs& a, const Limbs& b, Limbs& remainder);

  bool negative_ = false;
  Limbs limbs_;  // of 9 decimal digits, the least significant first; none of 0 at the end
};

inline bool is_whole(const Value& v) { return v.is_integral() || v.is(Kind::big_integer); }
// Whole numbers and floats.
inline bool is_numeric(const Value& v) { return v.is_number() || v.is(Kind::big_integer); }
// Of any number.
double to_double(Meter& m, const Value& v);
// As Value::integer(), of text or a float of any size.
Value whole_from_double(Meter& m, double whole);
// -1, 0, 1, or 2 for nan; both are numbers and one is a big_integer.
int compare_big(Meter& m, const Value& a, const Value& b);

}  // namespace sluice::jinja
