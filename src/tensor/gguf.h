// GGUF files, versions 2 and 3, little-endian, whole or split into parts. Mapped, never copied.
// Nothing in a file is trusted: every count, length, offset and size is checked before it is used.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "tensor/checkpoint.h"

namespace sluice {

struct GgufHeader {
  uint32_t version = 0;
  uint64_t alignment = 32;
  size_t data_begin = 0;  // first byte of tensor data; may lie past the end without tensors
  Meta meta;              // arrays of arrays are left out
  std::vector<TensorInfo> tensors;
  std::vector<size_t> offsets;  // of each tensor, from the start of the file
};

// The header of one file's bytes. The tensors lie within `file`, aligned, and do not overlap.
Result<GgufHeader> parse_gguf_header(std::span<const std::byte> file);

// `path` may name any part of a split model ("name-00001-of-00003.gguf"): its siblings are opened
// too.
Result<std::unique_ptr<Checkpoint>> open_gguf(const std::string& path);

}  // namespace sluice
