#include "backend/cpu/vector_math_avx512.h"

#include "backend/cpu/vector_math_table.h"

namespace sluice {

constinit const VectorKernels kVectorAvx512 = vector_kernels_of<VecAvx512>();

}  // namespace sluice
