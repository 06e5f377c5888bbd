// What this CPU can do, detected once. Process-wide and constant after the first call; any thread.
// SLUICE_ISA=scalar|avx2|avx512|neon|i8mm lowers it (it never adds what the CPU lacks).
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
  kCpuBf16 = 1u << 5,        // AVX512_BF16, or BFMMLA
};

struct CpuFeatures {
  uint64_t bits = 0;
  bool has(uint64_t need) const { return (bits & need) == need; }
};

const CpuFeatures& cpu_features();

// The features that remain of `detected` under the override `isa` (an empty one changes nothing).
CpuFeatures limit_features(CpuFeatures detected, const std::string& isa);

// "avx512-vnni", "avx2", "neon-i8mm"...: the widest set in use, for logs.
const char* isa_name(CpuFeatures features);

}  // namespace sluice
