// Shared by the kernels that read both operands in boxes of 128 bytes of columns by tensor map:
// narrow.cu, tall.cu, and wide.cu with the files that belong to it.
#pragma once

#include <cuda.h>

#include <algorithm>
#include <type_traits>

#include "backend/cuda/activation.cuh"
#include "backend/cuda/gemm_weight.cuh"
#include "backend/cuda/launch.cuh"
#include "base/check.h"

namespace sluice::cuda {

inline constexpr int kRowBytes = 128;  // of columns per box, the width of the swizzle
inline constexpr int kTileRows = 128;  // of weights that are multiplied together

// Boxes in a row.
inline int num_boxes(const GemmWeight& w) {
  return ceil_div(w.cols * static_cast<int64_t>(dtype_bytes(w.type)), kRowBytes);
}

struct BoxedArgs {
  void* out;
  DType out_type;
  int64_t out_stride;
  const void* bias;  // [rows] of the activations' type, or null
  DType bias_type;
  const float* w_scale;  // [rows] and
  const float* x_scale;  // [n], of f8 and i8; else null
  int n, rows, cols;
  // GemmWeight::gate. A tile then has eight gates and their eight ups in turn: its rows 16 i + j
  // and 16 i + 8 + j, j < 8, are a pair.
  bool gated = false, gate_rounds = false;
  Activation activation = Activation::silu;

  int out_cols() const { return gated ? rows / 2 : rows; }
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
          static_cast<int>(w.cols),
          w.gate.has_value(),
          w.gate && w.gate->rounds,
          w.gate ? w.gate->activation : Activation::silu};
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

// A tile's number among those of weight rows and among those of x. Groups of `in_group` tiles of
// weights share rows of x in the L2: all of x for each group.
struct TilePlace {
  int row, x;
  __device__ TilePlace(int tile, int row_tiles, int x_tiles, int in_group) {
    const int group = tile / (in_group * x_tiles);
    const int height = min(in_group, row_tiles - group * in_group);
    const int inside = tile - group * in_group * x_tiles;
    row = group * in_group + inside % height;
    x = inside / height;
  }
};

// How many neighbours of a row of out can be stored at once: 8 or 2 of 16 bits, 4 of f32, or 1.
inline int stored_at_once(const BoxedArgs& a) {
  const auto at = reinterpret_cast<uintptr_t>(a.out);
  if (a.out_type == DType::f32)
    return a.out_stride % 4 == 0 && a.rows % 4 == 0 && at % 16 == 0 ? 4 : 1;
  if (a.out_stride % 8 == 0 && a.rows % 8 == 0 && at % 16 == 0) return 8;
  return a.out_stride % 2 == 0 && at % 4 == 0 ? 2 : 1;
}

template <typename Out>
__device__ inline uint32_t two_of(float left, float right) {
  const Pack<Out, 2> two{{from_float<Out>(left), from_float<Out>(right)}};
  return *reinterpret_cast<const uint32_t*>(&two);
}
// Two neighbours of a row, the first of weight row `row`; at once where `paired`.
__device__ inline void store_two(
    const BoxedArgs& a, bool paired, int64_t at, int row, float left, float right) {
  if (paired && row + 1 < a.rows) {
    *reinterpret_cast<uint32_t*>(static_cast<__half*>(a.out) + at) =
        a.out_type == DType::f16 ? two_of<__half>(left, right) : two_of<__nv_bfloat16>(left, right);
    return;
  }
  store_as(a.out, a.out_type, at, left);
  if (row + 1 < a.rows) store_as(a.out, a.out_type, at + 1, right);
}

// The activation of a gate's sum times its up's.
template <typename T>
__device__ inline float gated(const BoxedArgs& a, float gate, float up) {
  if (a.gate_rounds) gate = to_float(from_float<T>(gate)), up = to_float(from_float<T>(up));
  return activated(gate, a.activation) * up;
}
// Whether kernels of a width, in rows of x, have gates.
template <typename T, int kWidth>
inline constexpr bool kGates =
    sizeof(T) == 2 && Gate::takes(std::is_same_v<T, __half> ? DType::f16 : DType::bf16, kWidth);

// The row of a tile that has the gate of the tile's column `c` of out.
__device__ inline int gate_row(int c) { return c / 8 * 16 + c % 8; }

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

// A map of kDims dimensions, from columns on; strides in elements. What lies outside reads as zero.
template <int kDims>
CUtensorMap encode_map(const Tensor& t,
                       const cuuint64_t (&sizes)[kDims],
                       const int64_t (&strides)[kDims - 1],
                       const cuuint32_t (&box)[kDims]) {
  const auto bytes = static_cast<cuuint32_t>(dtype_bytes(t.type));
  const CUtensorMapDataType type = bytes == 1             ? CU_TENSOR_MAP_DATA_TYPE_UINT8
                                   : t.type == DType::f32 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT32
                                   : t.type == DType::f16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                                          : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  cuuint64_t byte_strides[kDims - 1];
  for (int i = 0; i + 1 < kDims; ++i) byte_strides[i] = static_cast<cuuint64_t>(strides[i]) * bytes;
  cuuint32_t steps[kDims];
  std::fill_n(steps, kDims, 1);
  const bool half = box[0] * bytes == kRowBytes / 2;
  CUtensorMap map{};
  CUresult r = encoder()(&map, type, kDims, t.data, sizes, byte_strides, box, steps,
                         CU_TENSOR_MAP_INTERLEAVE_NONE,
                         half ? CU_TENSOR_MAP_SWIZZLE_64B : CU_TENSOR_MAP_SWIZZLE_128B,
                         CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (r != CUDA_SUCCESS) throw std::runtime_error("CUDA: a tensor map was refused");
  return map;
}

// Calls f with a value of the type that the operands have.
template <typename F>
void with_boxed_type(DType type, F&& f) {
  if (type == DType::i8) return f(int8_t{});
  if (type == DType::f8) return f(__nv_fp8_e4m3{});
  if (type == DType::f16) return f(__half{});
  CHECK(type == DType::bf16);
  f(__nv_bfloat16{});
}

// Boxes of `box_rows` rows by 128 bytes, or by half as many.
inline CUtensorMap tensor_map(const Tensor& t, int box_rows, int row_bytes = kRowBytes) {
  const int bytes = static_cast<int>(dtype_bytes(t.type));
  return encode_map<2>(
      t, {static_cast<cuuint64_t>(t.cols), static_cast<cuuint64_t>(t.rows)}, {t.stride},
      {static_cast<cuuint32_t>(row_bytes / bytes), static_cast<cuuint32_t>(box_rows)});
}

// The weights of a tile. Gated (BoxedArgs): by column, row of eight, gate or up, and pairs of
// eights.
inline CUtensorMap weight_map(const Tensor& t, bool gated) {
  if (!gated) return tensor_map(t, kTileRows);
  const auto box_cols = static_cast<cuuint32_t>(kRowBytes / dtype_bytes(t.type));
  return encode_map<4>(
      t, {static_cast<cuuint64_t>(t.cols), 8, 2, static_cast<cuuint64_t>(t.rows / 16)},
      {t.stride, t.rows / 2 * t.stride, 8 * t.stride}, {box_cols, 8, 2, kTileRows / 16});
}

}  // namespace sluice::cuda
