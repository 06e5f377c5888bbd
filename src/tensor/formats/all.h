// The table of formats. A new format is one header here, with the facts of its blocks, one row in
// all.cc and its name in Format (tensor.h). It then loads, quantises and runs; kernels make it
// fast.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "tensor/tensor.h"

namespace sluice {

inline constexpr uint32_t kNotInGguf = UINT32_MAX;

struct FormatInfo {
  Format format;
  const char* name;    // "Q4_0", as users write it (matched without regard to case)
  uint32_t gguf_type;  // its number in GGUF files, or kNotInGguf
  int block_elems;     // elements per block; a row holds a whole number of blocks
  int block_bytes;
  void (*decode)(const void* blocks, float* out, int64_t num_elems);  // exact value of each element
  void (*encode)(const float* in, void* blocks, int64_t num_elems);   // round to nearest
};

const FormatInfo& format_info(Format format);
const FormatInfo* find_format(std::string_view name);
const FormatInfo* find_gguf_type(uint32_t gguf_type);

// Bytes of a row of `cols` elements. `cols` must be a multiple of block_elems (readers check it).
inline size_t row_bytes(Format format, int64_t cols) {
  const FormatInfo& f = format_info(format);
  return static_cast<size_t>(cols / f.block_elems) * static_cast<size_t>(f.block_bytes);
}

}  // namespace sluice
