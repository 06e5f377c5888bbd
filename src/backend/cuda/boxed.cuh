// What the kernels share that read both operands in boxes of 128 bytes of columns by tensor map:
// narrow.cu and tall.cu.
#pragma once

#include <cuda.h>

#include "backend/cuda/gemm_weight.cuh"
#include "backend/cuda/launch.cuh"

namespace sluice::cuda {

inline constexpr int kRowBytes = 128;  // of columns per box, the width of the swizzle
inline constexpr int kTileRows = 128;  // of weights that are multiplied together

struct BoxedArgs {
  void* out;
  DType out_type;
  int64_t out_stride;
  const void* bias;  // [rows] of the activations' type, or null
  DType bias_type;
  const float* w_scale;  // [rows] and
  const float* x_scale;  // [n], of f8 and i8; else null
  int n, rows, cols;
};

inline BoxedArgs boxed_args(const Tensor& out, const float* x_scale, const GemmWeight& w) {
  return {out.data,
          out.type,
          out.stride,
          w.bias,
          w.bias_type,
          w.scale,
          w.scale ? x_scale : nullptr,
          static_cast<int>(out.rows),
          static_cast<int>(w.rows),
          static_cast<int>(w.cols)};
}

__device__ inline float load_as(const void* p, DType type, int64_t at) {
  if (type == DType::f16) return to_float(static_cast<const __half*>(p)[at]);
  if (type == DType::bf16) return to_float(static_cast<const __nv_bfloat16*>(p)[at]);
  return static_cast<const float*>(p)[at];
}
__device__ inline void store_as(void* p, DType type, int64_t at, float v) {
  if (type == DType::f16) {
    static_cast<__half*>(p)[at] = from_float<__half>(v);
  } else if (type == DType::bf16) {
    static_cast<__nv_bfloat16*>(p)[at] = from_float<__nv_bfloat16>(v);
  } else {
    static_cast<float*>(p)[at] = v;
  }
}

// What a row of w adds to its sums.
struct RowTerms {
  float scale = 1, bias = 0;
  __device__ RowTerms(const BoxedArgs& a, int row) {
    if (row >= a.rows) return;
    if (a.w_scale) scale = a.w_scale[row];
    if (a.bias) bias = load_as(a.bias, a.bias_type, row);
  }
};
__device__ inline void store_sum(
    const BoxedArgs& a, int token, int row, float sum, const RowTerms& terms, float x_scale) {
  store_as(a.out, a.out_type, token * a.out_stride + row,
           fmaf(sum * x_scale, terms.scale, terms.bias));
}

// One type but f32, rows and addresses that are multiples of 16 bytes.
inline bool fits_boxes(const Tensor& x, const GemmWeight& w) {
  auto fits = [](const void* data, int64_t stride, DType type) {
    return reinterpret_cast<uintptr_t>(data) % 16 == 0 &&
           static_cast<size_t>(stride) * dtype_bytes(type) % 16 == 0;
  };
  return w.type == x.type && x.type != DType::f32 && fits(x.data, x.stride, x.type) &&
         fits(w.data, w.cols, w.type);
}

using Encode = CUresult (*)(CUtensorMap*,
                            CUtensorMapDataType,
                            cuuint32_t,
                            void*,
                            const cuuint64_t*,
                            const cuuint64_t*,
                            const cuuint32_t*,
                            const cuuint32_t*,
                            CUtensorMapInterleave,
                            CUtensorMapSwizzle,
                            CUtensorMapL2promotion,
                            CUtensorMapFloatOOBfill);

// The driver's own function: the program does not link the driver.
inline Encode encoder() {
  static const Encode found = [] {
    void* f = nullptr;
    cudaDriverEntryPointQueryResult result{};
    check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &f, 12000, cudaEnableDefault,
                                           &result),
          "tensor maps");
    if (result != cudaDriverEntryPointSuccess) f = nullptr;
    return reinterpret_cast<Encode>(f);
  }();
  if (!found) throw std::runtime_error("CUDA: the driver has no tensor maps: version 12 is needed");
  return found;
}

// Boxes of `box_rows` rows by 128 bytes; what lies outside reads as zero.
inline CUtensorMap tensor_map(const Tensor& t, int box_rows) {
  CUtensorMap map{};
  auto bytes = static_cast<cuuint64_t>(dtype_bytes(t.type));
  const cuuint64_t sizes[] = {static_cast<cuuint64_t>(t.cols), static_cast<cuuint64_t>(t.rows)};
  const cuuint64_t strides[] = {static_cast<cuuint64_t>(t.stride) * bytes};
  const cuuint32_t box[] = {static_cast<cuuint32_t>(kRowBytes / bytes),
                            static_cast<cuuint32_t>(box_rows)};
  const cuuint32_t steps[] = {1, 1};
  CUtensorMapDataType type = bytes == 1             ? CU_TENSOR_MAP_DATA_TYPE_UINT8
                             : t.type == DType::f16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                                    : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  CUresult r = encoder()(&map, type, 2, t.data, sizes, strides, box, steps,
                         CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                         CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (r != CUDA_SUCCESS) throw std::runtime_error("CUDA: a tensor map was refused");
  return map;
}

}  // namespace sluice::cuda
