#include "backend/cpu/peak.h"

#include "backend/cpu/features.h"

namespace sluice {

namespace {

// Multiply-adds of an instruction times instructions of a round, as in peak_*.cc.
#if defined(__x86_64__)
constexpr PeakRow kRows[] = {
#if !defined(SLUICE_STAND_INS)
    {"amx tdpbssd", PeakType::int8, kCpuAmxInt8, 2.0 * 16 * 16 * 64 * 6, cpu::peak_amx_int8},
#endif
    {"avx512 vpdpbusd", PeakType::int8, kCpuAvx512 | kCpuAvx512Vnni, 2.0 * 64 * 16,
     cpu::peak_avx512_vnni},
    {"avx vpdpbusd", PeakType::int8, kCpuAvx2 | kCpuAvxVnni, 2.0 * 32 * 12, cpu::peak_avx_vnni},
    {"avx2 vpmaddubsw", PeakType::int8, kCpuAvx2, 2.0 * 32 * 12, cpu::peak_avx2_maddubs},
#if !defined(SLUICE_STAND_INS)
    {"amx tdpbf16ps", PeakType::bf16, kCpuAmxBf16, 2.0 * 16 * 16 * 32 * 6, cpu::peak_amx_bf16},
    {"avx512 vdpbf16ps", PeakType::bf16, kCpuAvx512 | kCpuAvx512Bf16, 2.0 * 32 * 16,
     cpu::peak_avx512_bf16},
#endif
    {"avx512 vfmadd", PeakType::f32, kCpuAvx512, 2.0 * 16 * 16, cpu::peak_avx512_fma},
    {"avx2 vfmadd", PeakType::f32, kCpuAvx2, 2.0 * 8 * 12, cpu::peak_avx2_fma},
};
#elif defined(__aarch64__)
constexpr PeakRow kRows[] = {
    {"smmla", PeakType::int8, kCpuNeonDot | kCpuI8mm, 2.0 * 32 * 24, cpu::peak_i8mm_smmla},
    {"sdot", PeakType::int8, kCpuNeonDot, 2.0 * 16 * 24, cpu::peak_neon_sdot},
    {"bfmmla", PeakType::bf16, kCpuNeonDot | kCpuBf16, 2.0 * 16 * 24, cpu::peak_i8mm_bfmmla},
    {"fmla", PeakType::f32, kCpuNeonDot, 2.0 * 4 * 24, cpu::peak_neon_fmla},
};
#endif

}  // namespace

const char* peak_type_name(PeakType type) {
  switch (type) {
    case PeakType::int8:
      return "int8";
    case PeakType::bf16:
      return "bf16";
    case PeakType::f32:
      return "f32";
  }
  return "";
}

std::span<const PeakRow> peak_rows() {
#if defined(__x86_64__) || defined(__aarch64__)
  return kRows;
#else
  return {};
#endif
}

}  // namespace sluice
