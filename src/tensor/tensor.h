// Element formats, and a non-owning view of a matrix. A view is a parameter, never a long-lived
// member.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace sluice {

// How a tensor's elements are stored. Quantised formats store rows as blocks; one header each in
// tensor/formats/, one row each in kFormats (tensor/formats/all.h).
enum class Format : uint8_t {
  f32,
  f16,
  bf16,
  q8_0,
  q4_0,
  q4_1,
  q6_k,
  q5_0,
  q5_1,
  q2_k,
  q3_k,
  q4_k,
  q5_k,
  iq4_nl,
  int4,
  mxfp4
};
inline constexpr int kNumFormats = 16;

// f8: e4m3. i8: codes of the KV cache (KvType), and of a GPU's weights and activations.
enum class DType : uint8_t { f32, f16, bf16, f8, i8 };
inline constexpr size_t dtype_bytes(DType t) {
  return t == DType::f32 ? 4 : t == DType::f8 || t == DType::i8 ? 1 : 2;
}

// Row-major [rows, cols] with `stride` elements from one row to the next.
struct Tensor {
  void* data = nullptr;
  DType type = DType::f32;
  int64_t rows = 0, cols = 0, stride = 0;

  float* f32() const { return static_cast<float*>(data); }
  float* row(int64_t r) const { return f32() + r * stride; }  // f32 only
  Tensor columns(int64_t begin, int64_t num) const {
    Tensor t = *this;
    t.data = static_cast<std::byte*>(data) + static_cast<size_t>(begin) * dtype_bytes(type);
    t.cols = num;
    return t;
  }
};

}  // namespace sluice
