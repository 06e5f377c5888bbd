// Values handed from block to block of one kernel through global memory that holds kNothing until
// they are there: a reader looks until each word is something else. Device code.
#pragma once

#include "backend/cuda/launch.cuh"

namespace sluice::cuda {

inline constexpr uint32_t kNothing = 0xffffffffu;  // no value has these bits: NaNs are canonical

__device__ inline uint4 look(const uint32_t* p) {
  uint4 v;
  asm volatile("ld.relaxed.gpu.global.v4.b32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p));
  return v;
}
__device__ inline uint32_t look1(const uint32_t* p) {
  uint32_t v;
  asm volatile("ld.relaxed.gpu.global.b32 %0, [%1];" : "=r"(v) : "l"(p));
  return v;
}
__device__ inline bool misses(const uint4& v) {
  return v.x == kNothing || v.y == kNothing || v.z == kNothing || v.w == kNothing;
}
__device__ inline void send(uint32_t* p, uint32_t v) {
  asm volatile("st.relaxed.gpu.global.b32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}
__device__ inline void send(uint32_t* p, float v) { send(p, __float_as_uint(v)); }

template <typename T>
__device__ inline uint32_t pack2(float a, float b) {
  Pack<T, 2> p{{from_float<T>(a), from_float<T>(b)}};
  return *reinterpret_cast<uint32_t*>(&p);
}

}  // namespace sluice::cuda
