// Tiles of 16 rows by 64 bytes. Six accumulators cover the latency (52 cycles; one product starts
// every 16).
#include "backend/cpu/peak.h"

namespace sluice::cpu {

namespace {

struct alignas(64) TileShapes {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

struct alignas(64) Factor {
  uint32_t words[16 * 16];
};

// 0x3f003f00 is two bf16 of one half, and small as int8: nothing overflows.
Factor make_factor() {
  Factor f;
  for (uint32_t& w : f.words) w = 0x3f003f00;
  return f;
}

}  // namespace

#define SLUICE_PEAK(name, instruction)                                           \
  void name(int64_t rounds) {                                                    \
    const TileShapes shapes;                                                     \
    const Factor factor = make_factor();                                         \
    __asm__ volatile(                                                            \
        "ldtilecfg %[shapes]\n"                                                  \
        ".irp r,0,1,2,3,4,5\n"                                                   \
        "tilezero %%tmm\\r\n"                                                    \
        ".endr\n"                                                                \
        "tileloadd (%[factor],%[stride],1), %%tmm6\n"                            \
        "tileloadd (%[factor],%[stride],1), %%tmm7\n"                            \
        "1:\n"                                                                   \
        ".irp r,0,1,2,3,4,5\n" instruction                                       \
        " %%tmm7, %%tmm6, %%tmm\\r\n"                                            \
        ".endr\n"                                                                \
        "dec %[n]\n"                                                             \
        "jnz 1b\n"                                                               \
        "tilerelease\n"                                                          \
        : [n] "+r"(rounds)                                                       \
        : [shapes] "m"(shapes), [factor] "r"(&factor), [stride] "r"(int64_t{64}) \
        : "cc", "memory");                                                       \
  }

SLUICE_PEAK(peak_amx_int8, "tdpbssd")
SLUICE_PEAK(peak_amx_bf16, "tdpbf16ps")

}  // namespace sluice::cpu
