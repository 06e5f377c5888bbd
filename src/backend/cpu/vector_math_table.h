// Fills a VectorKernels for the Vec type V. Included by one .cc per ISA.
#pragma once

#include "backend/cpu/attention_inl.h"
#include "backend/cpu/elementwise_inl.h"
#include "backend/cpu/vector_math.h"

namespace sluice {

template <typename V>
constexpr VectorKernels vector_kernels_of() {
  using E = Elementwise<V>;
  using A = Attention<V>;
  VectorKernels k{};
  k.isa = V::kName;
  k.rms_norm = E::rms_norm;
  k.add_rms_norm = E::add_rms_norm;
  k.layer_norm = E::layer_norm;
  k.add_layer_norm = E::add_layer_norm;
  k.add = E::add;
  k.scale = E::scale;
  k.softcap = E::softcap;
  k.activate = E::activate;
  k.exp = E::exp;
  k.tanh = E::tanh;
  k.to_half = E::to_half;
  k.to_codes = E::to_codes;
  k.attend = A::attend;
  k.merge_states = A::merge_states;
  return k;
}

}  // namespace sluice
