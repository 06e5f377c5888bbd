// Twelve chains in flight cover the latency of two units (4 or 5 cycles each).
#include "backend/cpu/peak.h"

namespace sluice::cpu {

// 0x3f003f00 is about one half as f32, as two bf16, and small as int8: nothing overflows.
void peak_avx2_fma(int64_t rounds) {
  __asm__ volatile(
      "vmovd %[half], %%xmm14\n"
      "vpbroadcastd %%xmm14, %%ymm14\n"
      ".irp r,0,1,2,3,4,5,6,7,8,9,10,11\n"
      "vxorps %%ymm\\r, %%ymm\\r, %%ymm\\r\n"
      ".endr\n"
      "1:\n"
      ".irp r,0,1,2,3,4,5,6,7,8,9,10,11\n"
      "vfmadd231ps %%ymm14, %%ymm14, %%ymm\\r\n"
      ".endr\n"
      "dec %[n]\n"
      "jnz 1b\n"
      "vzeroupper\n"
      : [n] "+r"(rounds)
      : [half] "r"(0x3f003f00)
      : "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9",
        "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15");
}

// AVX2 has no dot product of bytes: products in pairs to 16 bits, again to 32, and the sum.
void peak_avx2_maddubs(int64_t rounds) {
  __asm__ volatile(
      "vmovd %[ones], %%xmm14\n"
      "vpbroadcastd %%xmm14, %%ymm14\n"
      ".irp r,0,1,2,3,4,5,6,7,8,9,10,11\n"
      "vpxor %%ymm\\r, %%ymm\\r, %%ymm\\r\n"
      ".endr\n"
      "1:\n"
      ".irp r,0,1,2,3,4,5,6,7,8,9,10,11\n"
      "vpmaddubsw %%ymm14, %%ymm14, %%ymm12\n"
      "vpmaddwd %%ymm14, %%ymm12, %%ymm12\n"
      "vpaddd %%ymm12, %%ymm\\r, %%ymm\\r\n"
      ".endr\n"
      "dec %[n]\n"
      "jnz 1b\n"
      "vzeroupper\n"
      : [n] "+r"(rounds)
      : [ones] "r"(0x00010001)
      : "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9",
        "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15");
}

}  // namespace sluice::cpu
