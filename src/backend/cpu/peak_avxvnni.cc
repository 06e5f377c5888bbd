#include "backend/cpu/peak.h"
#include "backend/cpu/peak_chains_avx2.h"

namespace sluice::cpu {

#if defined(SLUICE_STAND_INS)
#define SLUICE_ENCODING "%{evex%} "
#else
#define SLUICE_ENCODING "%{vex%} "
#endif

SLUICE_PEAK(peak_avx_vnni, 0x00010001, SLUICE_ENCODING "vpdpbusd %%ymm14, %%ymm14, %%ymm\\r")

}  // namespace sluice::cpu
