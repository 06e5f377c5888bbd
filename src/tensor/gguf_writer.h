// Writes a GGUF file, version 3, little-endian: the header at once, then tensor data in order, in
// pieces of any size. The bytes go to PATH.partial, which finish() renames to PATH; until then PATH
// is as it was, and a writer that ends without finish() leaves nothing. Used by one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "tensor/checkpoint.h"

namespace sluice {

// The header's bytes, up to the first tensor's: metadata, and tensors placed one after the other.
// Meta keeps values wider than files do, so types are chosen anew, as llama.cpp's readers want
// them: counts u32 (u64 where they do not fit), negative numbers i32 or i64, fractions f32, arrays
// of numbers i32 (i64), and bytes (u8) for the arrays that are data. `alignment`: of each tensor's
// first byte; it must be what meta's general.alignment says, 32 without it.
struct GgufLayout {
  std::string header;
  std::vector<uint64_t> offsets;  // of each tensor, from the start of the file
  uint64_t size = 0;              // of the whole file
};
Result<GgufLayout> plan_gguf(const Meta& meta, const std::vector<TensorInfo>& tensors);

class GgufWriter {
 public:
  // Writes the header. Refuses a PATH that exists unless `overwrite`, one that cannot be written,
  // and a disk without room for all of it.
  static Result<GgufWriter> create(const std::string& path,
                                   const Meta& meta,
                                   const std::vector<TensorInfo>& tensors,
                                   bool overwrite);
  GgufWriter(GgufWriter&& o) noexcept;
  GgufWriter& operator=(GgufWriter&&) = delete;
  ~GgufWriter();

  // The next bytes of tensor data; the padding between tensors is the writer's.
  Result<void> append(std::span<const std::byte> bytes);
  // After the last byte of the last tensor: PATH is the new file, on disk.
  Result<void> finish();
  uint64_t size() const { return layout_.size; }

 private:
  GgufWriter() = default;
  Result<void> put(const void* data, size_t size);
  Result<void> pad_to(uint64_t offset);

  std::string path_, partial_;
  int fd_ = -1;
  GgufLayout layout_;
  std::vector<uint64_t> sizes_;  // of the tensors
  size_t tensor_ = 0;            // being written
  uint64_t at_ = 0;              // bytes of the file written
};

}  // namespace sluice
