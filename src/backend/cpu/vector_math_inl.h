// Shared by the kernels of every ISA. V is one of the Vec types: sixteen f32 lanes.
#pragma once

#include <cmath>
#include <cstdint>

namespace sluice {

// e^x within 2 ulp for x in [-87.3, 88.7], 0 below. The only exp of a build.
// x = n ln 2 + r, |r| <= ln 2 / 2; adding 1.5 * 2^23 leaves n in the low bits of the sum.
template <typename V>
inline typename V::F vector_exp_negative(typename V::F x) {
  using F = typename V::F;
  const F magic = V::set(12582912.0F);
  F t = V::fma(x, V::set(1.44269504F), magic);
  F n = V::sub(t, magic);
  F r = V::fma(n, V::set(-0.693359375F), x);  // 10 bits: n times it is exact without FMA too
  r = V::fma(n, V::set(2.12194440e-4F), r);
  F p = V::fma(V::set(0.00138141739F), r, V::set(0.00836892147F));  // minimax, 0.06 ulp
  p = V::fma(p, r, V::set(0.0416684076F));
  p = V::fma(p, r, V::set(0.166665196F));
  p = V::fma(p, r, V::set(0.49999994F));
  p = V::fma(p, r, V::set(1.0F));
  p = V::fma(p, r, V::set(1.0F));
  F y = V::shift_exponent(p, t);
  return V::if_less(x, V::set(-87.3F), V::set(0.0F), y);
}

// The same for any x: infinity above 88.7.
template <typename V>
inline typename V::F vector_exp(typename V::F x) {
  return V::if_less(V::set(88.7F), x, V::set(INFINITY), vector_exp_negative<V>(x));
}

// tanh x within 2 ulp, exactly odd; NaN stays. An odd polynomial below 0.55, where the other form
// cancels: 1 - 2 / (e^2x + 1).
template <typename V>
inline typename V::F vector_tanh(typename V::F x) {
  using F = typename V::F;
  const F zero = V::set(0), one = V::set(1), two = V::set(2);
  F z = V::mul(x, x);
  F p = V::fma(V::set(-0.00627424F), z, V::set(0.02107168F));  // minimax, 0.02 ulp
  p = V::fma(p, z, V::set(-0.05385231F));
  p = V::fma(p, z, V::set(0.13332586F));
  p = V::fma(p, z, V::set(-0.33333316F));
  F near = V::fma(V::mul(x, z), p, x);
  F a = V::if_less(x, zero, V::sub(zero, x), x);
  F far = V::sub(one, V::div(two, V::add(vector_exp<V>(V::add(a, a)), one)));
  far = V::if_less(x, zero, V::sub(zero, far), far);
  return V::if_less(a, V::set(0.55F), near, far);
}

// cap * tanh(x / cap), given 1 / cap
template <typename V>
inline typename V::F vector_softcap(typename V::F x, typename V::F cap, typename V::F inverse) {
  return V::mul(cap, vector_tanh<V>(V::mul(x, inverse)));
}

}  // namespace sluice
