// The template arguments of attention kernels, chosen from a call's types and head size. Host code,
// shared by attention_*.cu.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <type_traits>

#include "backend/backend.h"
#include "backend/cuda/attention_int8.cuh"

namespace sluice::cuda {

// Heads of other sizes run in kernels of the next larger one.
inline int template_dim(int head_dim) { return head_dim <= 64 ? 64 : head_dim <= 128 ? 128 : 256; }

// Calls f(T{}, KV{}): the types of queries (f16 or bf16) and of the cache (the queries', f8, or
// codes).
template <typename F>
void with_cache_types(DType type, KvType kv, F&& f) {
  auto with = [&](auto t) {
    if (kv.type == DType::f8) return f(t, __nv_fp8_e4m3{});
    if (kv.type != DType::i8) return f(t, t);
    kv.group == 8 ? f(t, Codes8{}) : f(t, Codes32{});
  };
  type == DType::f16 ? with(__half{}) : with(__nv_bfloat16{});
}

// Calls f(T{}, KV{}, D), D an integral_constant: the kernel's head size.
template <typename F>
void with_tile_kernel(DType type, KvType kv_type, int head_dim, F&& f) {
  with_cache_types(type, kv_type, [&](auto t, auto kv) {
    int d = template_dim(head_dim);
    if (d == 64) return f(t, kv, std::integral_constant<int, 64>{});
    if (d == 128) return f(t, kv, std::integral_constant<int, 128>{});
    f(t, kv, std::integral_constant<int, 256>{});
  });
}

}  // namespace sluice::cuda
