// A whole file mapped read-only. Owns the mapping; the file itself may be closed or unlinked.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "base/result.h"

namespace sluice {

class MappedFile {
 public:
  // Regular files with at least one byte. Errors name the path.
  static Result<MappedFile> open(const std::string& path);

  MappedFile(MappedFile&& o) noexcept;
  MappedFile& operator=(MappedFile&& o) noexcept;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  // Asks for read-ahead of a range; returns at once.
  void prefetch(size_t offset, size_t size) const;
  // Gives back the pages that lie wholly within the range; a later read maps them again.
  void drop(size_t offset, size_t size) const;

 private:
  MappedFile(const std::byte* data, size_t size) : data_(data), size_(size) {}

  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace sluice
