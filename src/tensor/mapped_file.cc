#include "tensor/mapped_file.h"

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <limits>
#include <utility>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/check.h"
#include "base/str.h"
#include "tensor/file_watch.h"

namespace sluice {
namespace {

size_t page_size() {
  static const auto size = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return size;
}

struct Fd {
  int fd;
  ~Fd() {
    if (fd >= 0) close(fd);
  }
};

Error open_error(const std::string& path, int error) {
  const std::string name = quote(path, 400);
  if (error == ENOENT) return Error{404, strf("%s: no such file; check the path", name.c_str())};
  if (error == EACCES) {
    return Error{403, strf("%s: no permission to read it; check the file's mode", name.c_str())};
  }
  return Error{400, strf("%s: cannot open: %s", name.c_str(), std::strerror(error))};
}

}  // namespace

Result<MappedFile> MappedFile::open(const std::string& path) {
  // O_NONBLOCK: a FIFO must be refused, not waited for.
  Fd file{::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
  if (file.fd < 0) return open_error(path, errno);
  const std::string name = quote(path, 400);
  struct stat st;
  if (fstat(file.fd, &st) != 0) return open_error(path, errno);
  if (S_ISDIR(st.st_mode)) {
    return Error{400, strf("%s: is a directory; name a file in it", name.c_str())};
  }
  if (!S_ISREG(st.st_mode)) return Error{400, strf("%s: not a regular file", name.c_str())};
  if (st.st_size <= 0)
    return Error{400, strf("%s: the file is empty; fetch it again", name.c_str())};
  if (static_cast<uint64_t>(st.st_size) > std::numeric_limits<size_t>::max() / 2) {
    return Error{400, strf("%s: too large to map", name.c_str())};
  }
  const auto size = static_cast<size_t>(st.st_size);
  void* data = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.fd, 0);
  if (data == MAP_FAILED) {
    return Error{500, strf("%s: cannot map: %s", name.c_str(), std::strerror(errno))};
  }
  MappedFile mapped(static_cast<const std::byte*>(data), size);
  mapped.fd_ = std::exchange(file.fd, -1);
  mapped.watched_ = enter_file(path, mapped.fd_, mapped.bytes());
  return mapped;
}

MappedFile::MappedFile(MappedFile&& o) noexcept { *this = std::move(o); }

MappedFile& MappedFile::operator=(MappedFile&& o) noexcept {
  std::swap(data_, o.data_);
  std::swap(size_, o.size_);
  std::swap(fd_, o.fd_);
  std::swap(watched_, o.watched_);
  std::swap(ranges_, o.ranges_);
  return *this;
}

MappedFile::~MappedFile() {
  if (watched_) leave_file(watched_);
  if (data_) munmap(const_cast<std::byte*>(data_), size_);
  if (fd_ >= 0) close(fd_);
}

void MappedFile::count_ranges() {
  if (watched_) watched_->num_ranges.store(static_cast<int>(ranges_.size()));
}

void MappedFile::prefetch(size_t offset, size_t size) {
  DCHECK(offset <= size_ && size <= size_ - offset);
  ranges_.insert(offset);
  count_ranges();
  const size_t begin = offset / page_size() * page_size();
  madvise(const_cast<std::byte*>(data_) + begin, offset + size - begin, MADV_WILLNEED);
}

void MappedFile::drop(size_t offset, size_t size) {
  DCHECK(offset <= size_ && size <= size_ - offset);
  ranges_.erase(offset);
  count_ranges();
  const size_t begin = (offset + page_size() - 1) / page_size() * page_size();
  const size_t end = (offset + size) / page_size() * page_size();
  if (begin < end) madvise(const_cast<std::byte*>(data_) + begin, end - begin, MADV_DONTNEED);
}

}  // namespace sluice
