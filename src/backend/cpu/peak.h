// Loops of arithmetic alone, operands in registers: the peak rate of an instruction on one core,
// which kernels are measured against. Stateless; any thread.
#pragma once

#include <cstdint>
#include <span>

namespace sluice {

enum class PeakType : uint8_t { int8, bf16, f32 };  // of the factors
const char* peak_type_name(PeakType type);

struct PeakRow {
  const char* name;  // of the instruction, as users read it
  PeakType type;
  uint64_t need;         // CpuFeature bits
  double ops_per_round;  // two per multiply-add
  void (*run)(int64_t rounds);
};

// Those of this binary's architecture, whatever the CPU.
std::span<const PeakRow> peak_rows();

// rounds > 0, as below.
namespace cpu {
void peak_avx2_maddubs(int64_t rounds);
void peak_avx2_fma(int64_t rounds);
void peak_avx_vnni(int64_t rounds);
void peak_avx512_vnni(int64_t rounds);
void peak_avx512_bf16(int64_t rounds);
void peak_avx512_fma(int64_t rounds);
void peak_amx_int8(int64_t rounds);
void peak_amx_bf16(int64_t rounds);
void peak_neon_sdot(int64_t rounds);
void peak_neon_fmla(int64_t rounds);
void peak_i8mm_smmla(int64_t rounds);
void peak_i8mm_bfmmla(int64_t rounds);
}  // namespace cpu

}  // namespace sluice
