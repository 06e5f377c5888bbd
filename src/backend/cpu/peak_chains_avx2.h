// SLUICE_PEAK, the loop of the peaks on 256 bits. Twelve chains in flight cover the latency of two
// units (4 or 5 cycles each).
#pragma once

#include <cstdint>

#define SLUICE_CHAINS(instructions)                 \
  ".irp r,0,1,2,3,4,5,6,7,8,9,10,11\n" instructions \
  "\n"                                              \
  ".endr\n"

// `instructions` add a product of ymm14, which is all `factor`, to ymm\r, and may use ymm12.
#define SLUICE_PEAK(name, factor_bits, instructions)                                              \
  void name(int64_t rounds) {                                                                     \
    __asm__ volatile("vmovd %[factor], %%xmm14\n"                                               \
                     "vpbroadcastd %%xmm14, %%ymm14\n"                                          \
                     SLUICE_CHAINS("vpxor %%ymm\\r, %%ymm\\r, %%ymm\\r")                        \
                     "1:\n" SLUICE_CHAINS(instructions)                                         \
                     "dec %[n]\n"                                                               \
                     "jnz 1b\n"                                                                 \
                     "vzeroupper\n"                                                             \
                     : [n] "+r"(rounds)                                                         \
                     : [factor] "r"(factor_bits)                                                \
                     : "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7",    \
                       "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15"); \
  }
