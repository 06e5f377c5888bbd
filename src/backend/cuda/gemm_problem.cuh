// A product in cuBLASLt's terms. Shared by gemm.cc and gemm_tune.cc.
#pragma once

#include <cublasLt.h>

#include <algorithm>
#include <array>
#include <bit>
#include <new>
#include <stdexcept>
#include <string>

#include "backend/cuda/gemm.cuh"

namespace sluice::cuda {

inline void check(cublasStatus_t s, const char* what) {
  if (s == CUBLAS_STATUS_ALLOC_FAILED) throw std::bad_alloc();
  if (s != CUBLAS_STATUS_SUCCESS)
    throw std::runtime_error(std::string("cuBLAS: ") + what + ": " + cublasLtGetStatusString(s));
}

inline cudaDataType_t cuda_type(DType t) {
  return t == DType::f32   ? CUDA_R_32F
         : t == DType::f16 ? CUDA_R_16F
         : t == DType::f8  ? CUDA_R_8F_E4M3
                           : CUDA_R_16BF;
}

inline bool wide_enough(const Tensor& t) {
  return reinterpret_cast<uintptr_t>(t.data) % 16 == 0 &&
         static_cast<size_t>(t.stride) * dtype_bytes(t.type) % 16 == 0;
}

using AlgoWords = decltype(GemmChoice::algo);
static_assert(sizeof(cublasLtMatmulAlgo_t) == sizeof(AlgoWords));
inline cublasLtMatmulAlgo_t algo_of(const AlgoWords& words) {
  return std::bit_cast<cublasLtMatmulAlgo_t>(words);
}
inline AlgoWords words_of(const cublasLtMatmulAlgo_t& algo) {
  return std::bit_cast<AlgoWords>(algo);
}

// Column-major, as cuBLAS sees it: out [rows, n] = w [cols, rows]ᵀ · x [cols, n].
class Gemm::Problem {
 public:
  explicit Problem(const Product& p) {
    const GemmWeight& w = p.w;
    const Tensor &out = p.out, &x = p.typed;
    check(cublasLtMatmulDescCreate(&op, CUBLAS_COMPUTE_32F, CUDA_R_32F), "descriptor");
    cublasOperation_t transposed = CUBLAS_OP_T;
    set(CUBLASLT_MATMUL_DESC_TRANSA, transposed);
    if (p.fuses_bias()) {
      set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
      set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, w.bias);
      set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, cuda_type(out.type));
    }
    if (w.scale) {
      int32_t per_row = CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F;
      set(CUBLASLT_MATMUL_DESC_A_SCALE_MODE, per_row);
      set(CUBLASLT_MATMUL_DESC_B_SCALE_MODE, per_row);
      set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, w.scale);
      const float* x_scale = p.f8.scale;
      set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, x_scale);
    }
    auto rows = static_cast<uint64_t>(w.rows), cols = static_cast<uint64_t>(w.cols);
    auto n = static_cast<uint64_t>(out.rows);
    check(cublasLtMatrixLayoutCreate(&a, cuda_type(w.type), cols, rows, w.cols), "layout");
    check(cublasLtMatrixLayoutCreate(&b, cuda_type(x.type), cols, n, x.stride), "layout");
    check(cublasLtMatrixLayoutCreate(&c, cuda_type(out.type), rows, n, out.stride), "layout");
    bool wide = wide_enough(out) && wide_enough(x);
    align_bc =
        wide ? 16 : static_cast<uint32_t>(std::min(dtype_bytes(out.type), dtype_bytes(x.type)));
    align_a = w.cols * static_cast<int64_t>(dtype_bytes(w.type)) % 16 == 0
                  ? 16
                  : static_cast<uint32_t>(dtype_bytes(w.type));
  }
  ~Problem() {
    cublasLtMatrixLayoutDestroy(c);
    cublasLtMatrixLayoutDestroy(b);
    cublasLtMatrixLayoutDestroy(a);
    cublasLtMatmulDescDestroy(op);
  }
  Problem(const Problem&) = delete;

  // p: the product that this was made from.
  cublasStatus_t run(cublasLtHandle_t handle,
                     const Product& p,
                     const cublasLtMatmulAlgo_t& algo,
                     void* workspace,
                     cudaStream_t stream) const {
    float one = 1, zero = 0;
    return cublasLtMatmul(handle, op, &one, p.w.data, a, p.typed.data, b, &zero, p.out.data, c,
                          p.out.data, c, &algo, workspace, kScratch, stream);
  }

  cublasLtMatmulDesc_t op = nullptr;
  cublasLtMatrixLayout_t a = nullptr, b = nullptr, c = nullptr;
  uint32_t align_a = 256, align_bc = 256;

 private:
  template <typename T>
  void set(cublasLtMatmulDescAttributes_t attribute, const T& value) {
    check(cublasLtMatmulDescSetAttribute(op, attribute, &value, sizeof(value)), "attribute");
  }
};

}  // namespace sluice::cuda
