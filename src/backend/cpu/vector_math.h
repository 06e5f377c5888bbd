// The f32 kernels of one ISA as a table of functions. One algorithm over sixteen logical lanes
// (elementwise_inl.h, attention_inl.h), instantiated once per ISA; avx2, avx512 and neon give equal
// bits. Stateless; any thread.
#pragma once

#include <cstdint>

#include "backend/cpu/attention.h"
#include "backend/cpu/features.h"

namespace sluice {

struct VectorKernels {
  const char* isa;
  // out [n] = x / rms(x) * weight; out may be x
  void (*rms_norm)(const float* x, const float* weight, int64_t n, float eps, float* out);
  // x += delta, then the same; out may not be x
  void (*add_rms_norm)(
      float* x, const float* delta, const float* weight, int64_t n, float eps, float* out);
  void (*layer_norm)(const float* x, const LayerNormSpec& norm, int64_t n, float* out);
  // x += delta, then the same; out may not be x
  void (*add_layer_norm)(
      float* x, const float* delta, const LayerNormSpec& norm, int64_t n, float* out);
  // x += delta
  void (*add)(float* x, const float* delta, int64_t n);
  // x *= factor
  void (*scale)(float* x, float factor, int64_t n);
  // x = cap * tanh(x / cap)
  void (*softcap)(float* x, float cap, int64_t n);
  // out = activation(x), times up where that is not null
  void (*activate)(Activation activation, const float* x, const float* up, int64_t n, float* out);
  void (*exp)(const float* x, int64_t n, float* out);
  void (*tanh)(const float* x, int64_t n, float* out);
  // Rounds to f16, beyond its range to its largest value.
  void (*to_half)(const float* x, int64_t n, uint16_t* out);
  // Codes [n] and scales [n / group] of the KV cache; see KvType.
  void (*to_codes)(const float* x, int64_t n, int group, int8_t* codes, uint16_t* scales);
  void (*attend)(const AttendJob& job, const AttendScratch& scratch);
  void (*merge_states)(const MergeJob& job, const AttendScratch& scratch);
};

// The widest that `features` allow.
const VectorKernels& vector_kernels(CpuFeatures features);

extern const VectorKernels kVectorScalar;
#if defined(__x86_64__)
extern const VectorKernels kVectorAvx2;
extern const VectorKernels kVectorAvx512;
extern const VectorKernels kVectorAvx512Vnni;
#elif defined(__aarch64__)
extern const VectorKernels kVectorNeon;
#endif

}  // namespace sluice
