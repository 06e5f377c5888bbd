#include "backend/cpu/features.h"

#include <cstdlib>

#include "base/log.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#elif defined(__aarch64__)
#include <sys/auxv.h>
#endif

namespace sluice {
namespace {

#if defined(__x86_64__)

struct Regs {
  unsigned a = 0, b = 0, c = 0, d = 0;
};

Regs cpuid(unsigned leaf, unsigned sub) {
  Regs r;
  __get_cpuid_count(leaf, sub, &r.a, &r.b, &r.c, &r.d);
  return r;
}

uint64_t xgetbv() {
  uint32_t low, high;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return static_cast<uint64_t>(high) << 32 | low;
}

bool bit(unsigned reg, int n) { return (reg >> n & 1) != 0; }

// Tile registers exist only for processes that have asked: 8 KiB per thread that every context
// switch would have to mind. Kernels before 5.16 do not know the request, some refuse it.
bool may_use_tiles() {
#if defined(__linux__)
  constexpr int kArchReqXcompPerm = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kArchReqXcompPerm, kTileData) == 0;
#else
  return false;
#endif
}

CpuFeatures detect() {
  CpuFeatures f;
  const Regs one = cpuid(1, 0);
  const bool osxsave = bit(one.c, 27);
  if (!osxsave) return f;
  // The system must save the registers: XMM|YMM, and opmask|ZMM for AVX-512.
  const uint64_t saved = xgetbv();
  const Regs seven = cpuid(7, 0);
  const bool fma = bit(one.c, 12);
  const bool f16c = bit(one.c, 29);
  if ((saved & 0x6) != 0x6 || !fma || !f16c || !bit(seven.b, 5)) return f;
  f.bits |= kCpuAvx2;
  const Regs seven_one = cpuid(7, 1);
#if defined(SLUICE_STAND_INS)
  if (bit(seven.c, 11)) f.bits |= kCpuAvxVnni;
#else
  if (bit(seven_one.a, 4)) f.bits |= kCpuAvxVnni;
#endif
  const bool avx512 = bit(seven.b, 16) && bit(seven.b, 17) && bit(seven.b, 30) && bit(seven.b, 31);
  if ((saved & 0xe6) != 0xe6 || !avx512) return f;
  f.bits |= kCpuAvx512;
  if (bit(seven.c, 11)) f.bits |= kCpuAvx512Vnni;
#if defined(SLUICE_STAND_INS)
  if (bit(seven.c, 11)) f.bits |= kCpuAvx512Bf16 | kCpuAmxInt8 | kCpuAmxBf16;
  return f;
#endif
  if (bit(seven_one.a, 5)) f.bits |= kCpuAvx512Bf16;
  constexpr uint64_t kTileState = 3u << 17;  // TILECFG, TILEDATA
  if ((saved & kTileState) != kTileState || !bit(seven.d, 24) || !may_use_tiles()) return f;
  if (bit(seven.d, 25)) f.bits |= kCpuAmxInt8;
  if (bit(seven.d, 22)) f.bits |= kCpuAmxBf16;
  return f;
}

#elif defined(__aarch64__)

CpuFeatures detect() {
  // Bits of the kernel's AT_HWCAP words (asm/hwcap.h), named here because old headers lack some.
  constexpr unsigned long kAsimdHp = 1ul << 10, kAsimdDp = 1ul << 20;
  constexpr unsigned long kI8mm2 = 1ul << 13, kBf16Cap2 = 1ul << 14;
  const unsigned long cap = getauxval(AT_HWCAP);
  const unsigned long cap2 = getauxval(AT_HWCAP2);
  CpuFeatures f;
  if (!(cap & kAsimdHp) || !(cap & kAsimdDp)) return f;
  f.bits |= kCpuNeonDot;
  if (cap2 & kI8mm2) f.bits |= kCpuI8mm;
  if (cap2 & kBf16Cap2) f.bits |= kCpuBf16;
  return f;
}

#else

CpuFeatures detect() { return {}; }

#endif

}  // namespace

CpuFeatures limit_features(CpuFeatures detected, const std::string& isa) {
  constexpr uint64_t kAvx512 = kCpuAvx2 | kCpuAvx512 | kCpuAvx512Vnni | kCpuAvx512Bf16;
  uint64_t keep = ~uint64_t{0};
  if (isa == "scalar") {
    keep = 0;
  } else if (isa == "avx2") {
    keep = kCpuAvx2;
  } else if (isa == "avxvnni") {
    keep = kCpuAvx2 | kCpuAvxVnni;
  } else if (isa == "avx512") {
    keep = kAvx512;
  } else if (isa == "amx") {
    keep = kAvx512 | kCpuAmxInt8 | kCpuAmxBf16;
  } else if (isa == "neon") {
    keep = kCpuNeonDot;
  } else if (isa == "i8mm") {
    keep = kCpuNeonDot | kCpuI8mm | kCpuBf16;
  } else if (!isa.empty()) {
    LOG(warn, "SLUICE_ISA=%s is not one of scalar, avx2, avxvnni, avx512, amx, neon, i8mm: ignored",
        isa.c_str());
  }
  return {detected.bits & keep};
}

const CpuFeatures& cpu_features() {
  static const CpuFeatures features = [] {
    const char* isa = std::getenv("SLUICE_ISA");
    return limit_features(detect(), isa ? isa : "");
  }();
  return features;
}

const char* isa_name(CpuFeatures f) {
  if (f.has(kCpuAmxInt8)) return "amx";
  if (f.has(kCpuAvx512Vnni)) return "avx512-vnni";
  if (f.has(kCpuAvx512)) return "avx512";
  if (f.has(kCpuAvxVnni)) return "avx-vnni";
  if (f.has(kCpuAvx2)) return "avx2";
  if (f.has(kCpuI8mm)) return "neon-i8mm";
  if (f.has(kCpuNeonDot)) return "neon-dotprod";
  return "scalar";
}

}  // namespace sluice
