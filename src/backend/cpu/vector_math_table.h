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
  return {V::kName, E::rms_norm, E::add_rms_norm, E::add,        E::swiglu,
          E::exp,   E::to_half,  A::attend,       A::merge_spans};
}

}  // namespace sluice
