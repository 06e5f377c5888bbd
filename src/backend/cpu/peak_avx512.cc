// Sixteen chains in flight cover the latency of two units (4 to 6 cycles each).
#include "backend/cpu/peak.h"

namespace sluice::cpu {

// 0x3f003f00 is about one half as f32, as two bf16, and small as int8: nothing overflows.
void peak_avx512_fma(int64_t rounds) {
  __asm__ volatile(
      "vpbroadcastd %[half], %%zmm16\n"
      ".irp r,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15\n"
      "vpxord %%zmm\\r, %%zmm\\r, %%zmm\\r\n"
      ".endr\n"
      "1:\n"
      ".irp r,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15\n"
      "vfmadd231ps %%zmm16, %%zmm16, %%zmm\\r\n"
      ".endr\n"
      "dec %[n]\n"
      "jnz 1b\n"
      "vzeroupper\n"
      : [n] "+r"(rounds)
      : [half] "r"(0x3f003f00)
      : "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9",
        "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15", "xmm16");
}

void peak_avx512_vnni(int64_t rounds) {
  __asm__ volatile(
      "vpbroadcastd %[half], %%zmm16\n"
      ".irp r,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15\n"
      "vpxord %%zmm\\r, %%zmm\\r, %%zmm\\r\n"
      ".endr\n"
      "1:\n"
      ".irp r,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15\n"
      "vpdpbusd %%zmm16, %%zmm16, %%zmm\\r\n"
      ".endr\n"
      "dec %[n]\n"
      "jnz 1b\n"
      "vzeroupper\n"
      : [n] "+r"(rounds)
      : [half] "r"(0x3f003f00)
      : "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9",
        "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15", "xmm16");
}

void peak_avx512_bf16(int64_t rounds) {
  __asm__ volatile(
      "vpbroadcastd %[half], %%zmm16\n"
      ".irp r,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15\n"
      "vpxord %%zmm\\r, %%zmm\\r, %%zmm\\r\n"
      ".endr\n"
      "1:\n"
      ".irp r,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15\n"
      "vdpbf16ps %%zmm16, %%zmm16, %%zmm\\r\n"
      ".endr\n"
      "dec %[n]\n"
      "jnz 1b\n"
      "vzeroupper\n"
      : [n] "+r"(rounds)
      : [half] "r"(0x3f003f00)
      : "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9",
        "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15", "xmm16");
}

}  // namespace sluice::cpu
