// The header of a safetensors file: eight bytes of length, a JSON object, then the tensors' bytes.
// Nothing in it is trusted: what parse_safetensors_header returns covers the file exactly, without
// gaps or overlaps, and every size is its shape's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace sluice {

enum class SafetensorsType : uint8_t {
  f64,
  f32,
  f16,
  bf16,
  i64,
  i32,
  i16,
  i8,
  u64,
  u32,
  u16,
  u8,
  boolean,
  f8_e4m3,
  f8_e5m2
};

// "F32", as files write it.
const char* type_name(SafetensorsType type);
size_t type_bytes(SafetensorsType type);

struct SafetensorsEntry {
  std::string name;
  SafetensorsType type = SafetensorsType::f32;
  std::vector<int64_t> shape;  // empty: a scalar; a dimension may be 0
  size_t offset = 0;           // from the start of the file
  size_t bytes = 0;
};

// In order of offset. `file` is the whole file.
Result<std::vector<SafetensorsEntry>> parse_safetensors_header(std::span<const std::byte> file);

// True for the text file that git leaves where Git LFS would put a large file.
bool is_lfs_pointer(std::span<const std::byte> file);

}  // namespace sluice
