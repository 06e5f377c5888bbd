#include "load/read_file.h"

#include "base/str.h"
#include "tensor/mapped_file.h"
#include "tensor/safetensors.h"

namespace sluice {

Result<std::string> read_whole_file(const std::string& path, size_t max) {
  auto file = MappedFile::open(path);
  if (!file) return file.error();
  const auto bytes = file->bytes();
  const std::string name = quote(path, 400);
  if (bytes.size() > max) {
    return Error{400, strf("%s: %s, too large for what it should be", name.c_str(),
                           human_bytes(bytes.size()).c_str())};
  }
  if (is_lfs_pointer(bytes)) {
    return Error{
        400, strf("%s: is a Git LFS pointer: run `git lfs pull`, or fetch the file", name.c_str())};
  }
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

}  // namespace sluice
