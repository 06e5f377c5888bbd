#include "backend/cpu/vector_math_neon.h"

#include "backend/cpu/vector_math_table.h"

namespace sluice {

constinit const VectorKernels kVectorNeon = vector_kernels_of<VecNeon>();

}  // namespace sluice
