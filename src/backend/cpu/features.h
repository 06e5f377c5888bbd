// CPU features, detected once. Process-wide and constant after the first call; any thread.
// SLUICE_ISA=scalar|avx2|avxvnni|avx512|amx|neon|i8mm lowers it (it never adds what the CPU lacks).
#pragma once

#include <cstdint>
#include <string>

namespace sluice {

enum CpuFeature : uint64_t {
  kCpuAvx2 = 1u << 0,        // AVX2, FMA and F16C
  kCpuAvx512 = 1u << 1,      // AVX-512 F, BW, VL, DQ
  kCpuAvx512Vnni = 1u << 2,  // VPDPBUSD on 512 bits
  kCpuNeonDot = 1u << 3,     // NEON with fp16 arithmetic and SDOT/UDOT
  kCpuI8mm = 1u << 4,        // SMMLA
  kCpuBf16 = 1u << 5,        // BFMMLA (aarch64)
  kCpuAvx512Bf16 = 1u << 6,  // VDPBF16PS on 512 bits
  kCpuAmxInt8 = 1u << 7,     // tiles, with the kernel's leave to use them, and TDPBUSD
  kCpuAmxBf16 = 1u << 8,     // the same, and TDPBF16PS
  kCpuAvxVnni = 1u << 9,     // VPDPBUSD on 256 bits, without AVX-512
};

struct CpuFeatures {
  uint64_t bits = 0;
  bool has(uint64_t need) const { return (bits & need) == need; }
};

// The first call asks the kernel for the tile registers of AMX, for the whole process.
const CpuFeatures& cpu_features();

// The features that remain of `detected` under the override `isa` (an empty one changes nothing).
CpuFeatures limit_features(CpuFeatures detected, const std::string& isa);

// "amx", "avx512-vnni", "avx-vnni", "avx2", "neon-i8mm"...: the widest set in use, for logs.
const char* isa_name(CpuFeatures features);

}  // namespace sluice
