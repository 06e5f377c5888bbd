// Memory that two processes share: a ring of bytes for each direction, with one writer and one
// reader. The other process may write anything there at any time. So each side keeps its own
// counters in its own memory, checks the other's whenever it reads them, and copies bytes out
// before it looks at them. An end of a ring belongs to one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "base/result.h"
#include "net/owned_fd.h"

namespace sluice {

// Bytes of each ring, a power of two. Each connection allocates two; larger ones were no faster.
inline constexpr size_t kShmRing = size_t{256} << 10;
static_assert((kShmRing & (kShmRing - 1)) == 0);

// Counters of a ring, in the shared memory. Zero at first; accessed by std::atomic_ref alone.
struct ShmCounters {
  alignas(64) uint64_t written;  // bytes since the beginning; the writer's
  alignas(64) uint64_t read;     // the reader's
  // Nonzero: that side sleeps, or is about to. The other side sets it to 0 and wakes it.
  alignas(64) uint32_t writer_waits;
  alignas(64) uint32_t reader_waits;
};

class ShmMemory {
 public:
  static constexpr size_t kRings = 4096;  // the counters are before them
  static constexpr size_t kBytes = kRings + 2 * kShmRing;

  // Sets `fd`, which the other process maps.
  static Result<ShmMemory> create(OwnedFd& fd);
  // Memory that another process has made. It must be of this size and sealed against changes of
  // its size: a read behind its end would be a SIGBUS.
  static Result<ShmMemory> map(const OwnedFd& fd);

  ShmMemory() = default;
  ~ShmMemory();
  ShmMemory(ShmMemory&& other) noexcept : at_(std::exchange(other.at_, nullptr)) {}
  ShmMemory& operator=(ShmMemory&& other) noexcept {
    std::swap(at_, other.at_);
    return *this;
  }
  explicit operator bool() const { return at_ != nullptr; }
  // Ring 0 is that of the process which made the memory, 1 the other's.
  ShmCounters& counters(size_t ring) const;
  std::byte* bytes(size_t ring) const { return at_ + kRings + ring * kShmRing; }

 private:
  explicit ShmMemory(std::byte* at) : at_(at) {}
  std::byte* at_ = nullptr;
};

class ShmWriter {
 public:
  ShmWriter() = default;
  ShmWriter(const ShmMemory& memory, size_t ring)
      : counters_(&memory.counters(ring)), ring_(memory.bytes(ring)) {}
  // How many bytes there is room for. An error: the reader's counter cannot be true.
  Result<size_t> ready() const;
  // As many as are ready, at most. True: the reader is to be woken.
  bool write(std::span<const std::byte> bytes);
  void set_waits(bool waits);

 private:
  ShmCounters* counters_ = nullptr;  // `memory` outlives this
  std::byte* ring_ = nullptr;
  uint64_t written_ = 0;
};

class ShmReader {
 public:
  ShmReader() = default;
  ShmReader(const ShmMemory& memory, size_t ring)
      : counters_(&memory.counters(ring)), ring_(memory.bytes(ring)) {}
  // How many bytes are there. An error: the writer's counter cannot be true.
  Result<size_t> ready() const;
  // As many as are ready, at most. True: the writer is to be woken, which a full ring holds up
  // until half of it is free.
  bool read(std::span<std::byte> to);
  void set_waits(bool waits);

 private:
  ShmCounters* counters_ = nullptr;
  const std::byte* ring_ = nullptr;
  uint64_t read_ = 0;
};

}  // namespace sluice
