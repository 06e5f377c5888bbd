// Matrix instructions of Armv8.6.
#include "backend/cpu/peak.h"
#include "backend/cpu/peak_neon.h"

namespace sluice::cpu {

SLUICE_PEAK(peak_i8mm_smmla, "smmla v\\r\\().4s, v24.16b, v24.16b")
// bfmmla v\r.4s, v24.8h, v24.8h: not all assemblers know it
SLUICE_PEAK(peak_i8mm_bfmmla, ".inst 0x6e58ef00 + \\r")

}  // namespace sluice::cpu
