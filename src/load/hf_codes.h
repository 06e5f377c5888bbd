// Quantised matrices in the layouts of Hugging Face checkpoints, and their conversion to rows of a
// Format. No state.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "tensor/safetensors.h"
#include "tensor/tensor.h"

namespace sluice {

// Words are little-endian and 32 bits long, with n = 32 / bits codes, lowest bits first.
enum class CodeLayout : uint8_t {
  gptq,    // words [cols / n, rows], of n columns
  awq,     // words [cols, rows / 8], of eight rows: 0, 2, 4, 6, 1, 3, 5, 7
  packed,  // words [rows, cols / n], of n columns
  bytes,   // [rows, cols], signed
  e4m3,    // [rows, cols]
  mxfp4,   // bytes [rows, cols / 2], of two columns, the lower nibble first
};
enum class ZeroLayout : uint8_t {
  middle,  // not stored: 8 or 128
  gptq,    // words [groups, rows / n], of n rows
  awq,     // words [groups, rows / 8], of eight rows: 0, 2, 4, 6, 1, 3, 5, 7
  packed,  // words [rows / n, groups], of n rows
  bytes,   // signed, in the order of the scales
};

// A matrix [rows, cols]; rows and cols are multiples of 8.
// value = scale * (code - zero), e4m3: scale * code. mxfp4: groups of 32, scales are exponents,
// bytes. Signed codes and zero points count from the middle, 8 or 128, so that all are from 0 to 15
// or 255.
struct CodeSource {
  CodeLayout layout = CodeLayout::gptq;
  ZeroLayout zero_layout = ZeroLayout::middle;
  int bits = 4;
  int zero_offset = 0;  // added to stored zero points
  int64_t rows = 0, cols = 0;
  int64_t group = 0;           // columns that share a scale
  int64_t scale_rows = 1;      // rows that share a scale
  int64_t row_step = 0;        // from the scale of one row, or of `scale_rows`, to the next
  int64_t group_step = 0;      // from the scale of one group of columns to the next
  std::vector<int32_t> order;  // group of each column, where it is not its index / group
  std::span<const std::byte> codes, zeros, scales;
  SafetensorsType scale_type = SafetensorsType::f16;  // f16, bf16 or f32; mxfp4: u8

  int64_t num_groups() const { return (cols + group - 1) / group; }
};

// What a matrix becomes: int4, q8_0 or mxfp4, which hold it exactly (but scales of bf16 and f32 are
// rounded to halves), or 16-bit floats, and then why.
struct CodeFormat {
  Format format = Format::f16;
  const char* decoded = nullptr;
};
CodeFormat choose_code_format(const CodeSource& source);

// Rows [begin, end), multiples of 8; `place` is where in `out` each of all rows goes.
void convert_codes(const CodeSource& source,
                   Format format,
                   int64_t begin,
                   int64_t end,
                   std::span<const int64_t> place,
                   std::byte* out);

}  // namespace sluice
