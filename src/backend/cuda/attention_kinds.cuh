// The template arguments of attention kernels, chosen from a call's types and head size. Host code,
// shared by attention_*.cu.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <type_traits>

#include "tensor/tensor.h"

namespace sluice::cuda {

// Heads of other sizes run in kernels of the next larger one.
inline int template_dim(int head_dim) { return head_dim <= 64 ? 64 : head_dim <= 128 ? 128 : 256; }

// Calls f(T{}, KV{}): the types of queries (f16 or bf16) and of the cache (the queries', or f8).
template <typename F>
void with_cache_types(DType type, DType kv_type, F&& f) {
  bool f8 = kv_type == DType::f8;
  if (type == DType::f16) return f8 ? f(__half{}, __nv_fp8_e4m3{}) : f(__half{}, __half{});
  f8 ? f(__nv_bfloat16{}, __nv_fp8_e4m3{}) : f(__nv_bfloat16{}, __nv_bfloat16{});
}

// Calls f(T{}, KV{}, D), D an integral_constant: the kernel's head size.
template <typename F>
void with_tile_kernel(DType type, DType kv_type, int head_dim, F&& f) {
  with_cache_types(type, kv_type, [&](auto t, auto kv) {
    int d = template_dim(head_dim);
    if (d == 64) return f(t, kv, std::integral_constant<int, 64>{});
    if (d == 128) return f(t, kv, std::integral_constant<int, 128>{});
    f(t, kv, std::integral_constant<int, 256>{});
  });
}

}  // namespace sluice::cuda
