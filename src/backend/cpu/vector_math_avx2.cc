#include "backend/cpu/vector_math_avx2.h"

#include "backend/cpu/vector_math_table.h"

namespace sluice {

constinit const VectorKernels kVectorAvx2 = vector_kernels_of<VecAvx2>();

}  // namespace sluice
