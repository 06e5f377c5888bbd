#include "net/shm_ring.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>

#include "base/str.h"

namespace sluice {

namespace {

constexpr int kShmSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

static_assert(2 * sizeof(ShmCounters) <= ShmMemory::kRings);
static_assert(std::atomic_ref<uint64_t>::is_always_lock_free);

Error no_memory(const char* what) {
  return {503, strf("no shared memory: %s: %s", what, std::strerror(errno))};
}

std::byte* map_shared(const OwnedFd& fd) {
  void* at = mmap(nullptr, ShmMemory::kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  return at == MAP_FAILED ? nullptr : static_cast<std::byte*>(at);
}

Error impossible_counter() {
  return {400, "the peer has set a counter in shared memory to what cannot be"};
}

// All accesses to counters are sequentially consistent: who waits says so and then looks at the
// other side's counter, who counts does so and then looks whether the other side waits. One of the
// two sees the other.
bool takes_wait(uint32_t& waits) {
  const std::atomic_ref<uint32_t> flag(waits);
  return flag.load() != 0 && flag.exchange(0) != 0;
}

}  // namespace

Result<ShmMemory> ShmMemory::create(OwnedFd& fd) {
  fd = OwnedFd(memfd_create("sluice-kv", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd) return no_memory("memfd_create");
  // Pages that were only found missing when they are used would be a SIGBUS.
  int failed = 0;
  while ((failed = fallocate(fd.get(), 0, 0, kBytes)) != 0 && errno == EINTR) {
  }
  if (failed != 0) return no_memory("fallocate");
  if (fcntl(fd.get(), F_ADD_SEALS, kShmSeals) != 0) return no_memory("seals");
  std::byte* at = map_shared(fd);
  if (!at) return no_memory("mmap");
  return ShmMemory(at);
}

Result<ShmMemory> ShmMemory::map(const OwnedFd& fd) {
  const int seals = fcntl(fd.get(), F_GET_SEALS);
  if (seals < 0 || (seals & kShmSeals) != kShmSeals)
    return Error{400, "the peer's shared memory is not sealed"};
  struct stat info {};
  if (fstat(fd.get(), &info) != 0 || info.st_size != off_t{kBytes})
    return Error{400, "the peer's shared memory has another size"};
  std::byte* at = map_shared(fd);
  if (!at) return no_memory("mmap");
  return ShmMemory(at);
}

ShmMemory::~ShmMemory() {
  if (at_) munmap(at_, kBytes);
}

ShmCounters& ShmMemory::counters(size_t ring) const {
  return reinterpret_cast<ShmCounters*>(at_)[ring];
}

Result<size_t> ShmWriter::ready() const {
  const uint64_t used = written_ - std::atomic_ref(counters_->read).load();
  if (used > kShmRing) return impossible_counter();
  return static_cast<size_t>(kShmRing - used);
}

bool ShmWriter::write(std::span<const std::byte> bytes) {
  const size_t at = written_ % kShmRing;
  const size_t first = std::min(bytes.size(), kShmRing - at);
  std::memcpy(ring_ + at, bytes.data(), first);
  std::memcpy(ring_, bytes.data() + first, bytes.size() - first);
  written_ += bytes.size();
  std::atomic_ref(counters_->written).store(written_);
  return takes_wait(counters_->reader_waits);
}

void ShmWriter::set_waits(bool waits) { std::atomic_ref(counters_->writer_waits).store(waits); }

Result<size_t> ShmReader::ready() const {
  const uint64_t there = std::atomic_ref(counters_->written).load() - read_;
  if (there > kShmRing) return impossible_counter();
  return static_cast<size_t>(there);
}

bool ShmReader::read(std::span<std::byte> to) {
  const size_t at = read_ % kShmRing;
  const size_t first = std::min(to.size(), kShmRing - at);
  std::memcpy(to.data(), ring_ + at, first);
  std::memcpy(to.data() + first, ring_, to.size() - first);
  read_ += to.size();
  std::atomic_ref(counters_->read).store(read_);
  const uint64_t left = std::atomic_ref(counters_->written).load() - read_;
  return left <= kShmRing / 2 && takes_wait(counters_->writer_waits);
}

void ShmReader::set_waits(bool waits) { std::atomic_ref(counters_->reader_waits).store(waits); }

}  // namespace sluice
