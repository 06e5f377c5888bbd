// A whole file mapped read-only. Owns the mapping and a descriptor of the file, which may be
// unlinked. file_watch.h detects changes to it while it is mapped.
#pragma once

#include <cstddef>
#include <set>
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
  // The range will be read from now on: asks for read-ahead and returns at once.
  void prefetch(size_t offset, size_t size);
  // The range is read no more: gives back the pages that lie wholly within it; a later read maps
  // them again.
  void drop(size_t offset, size_t size);

 private:
  MappedFile(const std::byte* data, size_t size) : data_(data), size_(size) {}
  void count_ranges();

  const std::byte* data_ = nullptr;
  size_t size_ = 0;
  int fd_ = -1;
  struct WatchedFile* watched_ = nullptr;
  std::set<size_t> ranges_;  // offsets of those that are read
};

}  // namespace sluice
