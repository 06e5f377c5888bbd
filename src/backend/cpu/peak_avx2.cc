#include "backend/cpu/peak.h"
#include "backend/cpu/peak_chains_avx2.h"

namespace sluice::cpu {

// 0x3f003f00 is about one half.
SLUICE_PEAK(peak_avx2_fma, 0x3f003f00, "vfmadd231ps %%ymm14, %%ymm14, %%ymm\\r")

// AVX2 has no dot product of bytes: products in pairs to 16 bits, again to 32, and the sum.
SLUICE_PEAK(peak_avx2_maddubs,
            0x00010001,
            "vpmaddubsw %%ymm14, %%ymm14, %%ymm12\n"
            "vpmaddwd %%ymm14, %%ymm12, %%ymm12\n"
            "vpaddd %%ymm12, %%ymm\\r, %%ymm\\r")

}  // namespace sluice::cpu
