// Sixteen chains in flight cover the latency of two units (4 to 6 cycles each). 0x3f003f00 is about
// one half as f32, as two bf16, and small as int8: nothing overflows.
#include "backend/cpu/peak.h"

#define SLUICE_CHAINS(instruction)                             \
  ".irp r,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15\n" instruction \
  ", %%zmm\\r\n"                                               \
  ".endr\n"

#define SLUICE_PEAK(name, instruction)                                                              \
  void name(int64_t rounds) {                                                                       \
    __asm__ volatile("vpbroadcastd %[half], %%zmm16\n" SLUICE_CHAINS("vpxord %%zmm16, %%zmm16")   \
                     "1:\n" SLUICE_CHAINS(instruction " %%zmm16, %%zmm16")                        \
                     "dec %[n]\n"                                                                 \
                     "jnz 1b\n"                                                                   \
                     "vzeroupper\n"                                                               \
                     : [n] "+r"(rounds)                                                           \
                     : [half] "r"(0x3f003f00)                                                     \
                     : "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7",      \
                       "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15",      \
                       "xmm16"); \
  }

namespace sluice::cpu {

SLUICE_PEAK(peak_avx512_fma, "vfmadd231ps")
SLUICE_PEAK(peak_avx512_vnni, "vpdpbusd")
SLUICE_PEAK(peak_avx512_bf16, "vdpbf16ps")

}  // namespace sluice::cpu
