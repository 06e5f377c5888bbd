// The loops of peak_neon.cc and peak_i8mm.cc. Twenty-four chains in flight cover the latency of
// four units (3 or 4 cycles each). 0x3f003f00 is about one half as f32, as two bf16, and small as
// int8: nothing overflows.
#pragma once

#include <cstdint>

#define SLUICE_CHAINS(instruction)                                                     \
  ".irp r,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23\n" instruction \
  "\n"                                                                                 \
  ".endr\n"

// `instruction` adds the product of v24 and v24 to v\r.
#define SLUICE_PEAK(name, instruction)                                                            \
  void name(int64_t rounds) {                                                                     \
    __asm__ volatile("movi v24.8h, #0x3f, lsl #8\n" SLUICE_CHAINS("movi v\\r\\().16b, #0")      \
                     "1:\n" SLUICE_CHAINS(instruction)                                          \
                     "subs %[n], %[n], #1\n"                                                    \
                     "b.ne 1b\n"                                                                \
                     : [n] "+r"(rounds)                                                         \
                     :                                                                          \
                     : "cc", "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10", \
                       "v11", "v12", "v13", "v14", "v15", "v16", "v17", "v18", "v19", "v20",    \
                       "v21", "v22", "v23", "v24"); \
  }
