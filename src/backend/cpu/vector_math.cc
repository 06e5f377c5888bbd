#include "backend/cpu/vector_math.h"

#include "backend/cpu/vector_math_table.h"
#include "backend/cpu/vector_math_scalar.h"

namespace sluice {

constinit const VectorKernels kVectorScalar = vector_kernels_of<VecScalar>();

const VectorKernels& vector_kernels(CpuFeatures features) {
#if defined(__x86_64__)
  if (features.has(kCpuAvx512) && features.has(kCpuAvx512Vnni)) return kVectorAvx512Vnni;
  if (features.has(kCpuAvx512)) return kVectorAvx512;
  if (features.has(kCpuAvx2)) return kVectorAvx2;
#elif defined(__aarch64__)
  if (features.has(kCpuNeonDot)) return kVectorNeon;
#endif
  return static_cast<void>(features), kVectorScalar;
}

}  // namespace sluice
