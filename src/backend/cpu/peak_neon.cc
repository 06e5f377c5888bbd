#include "backend/cpu/peak_neon.h"

#include "backend/cpu/peak.h"

namespace sluice::cpu {

SLUICE_PEAK(peak_neon_sdot, "sdot v\\r\\().4s, v24.16b, v24.16b")
SLUICE_PEAK(peak_neon_fmla, "fmla v\\r\\().4s, v24.4s, v24.4s")

}  // namespace sluice::cpu
