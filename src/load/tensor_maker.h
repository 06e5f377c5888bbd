// Aligned memory, and threads to fill it, for checkpoints that make their tensors' bytes.
#pragma once

#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <thread>
#include <vector>

#include "base/thread_pool.h"

namespace sluice {

struct FreeBytes {
  void operator()(std::byte* p) const {
    if (mapped > 0) {
      munmap(p, mapped);
    } else {
      std::free(p);
    }
  }
  size_t mapped = 0;  // bytes; 0: on the heap
};
using Bytes = std::unique_ptr<std::byte, FreeBytes>;

// Large tensors are mapped by themselves, so that what is packed and released leaves the process:
// glibc, once it has freed one of up to 32 MB, takes such sizes from the heap and keeps them.
inline Bytes allocate_bytes(size_t size) {
  constexpr size_t kMapped = size_t{256} << 10;
  if (size < kMapped) {
    auto* p = static_cast<std::byte*>(std::aligned_alloc(64, (size + 63) / 64 * 64));
    if (!p) throw std::bad_alloc();
    return Bytes(p);
  }
  void* p = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) throw std::bad_alloc();
  return Bytes(static_cast<std::byte*>(p), FreeBytes{size});
}

// The cores the process may use, found when this is made: its caller may be bound to one of them by
// the time it wants threads.
class FillThreads {
 public:
  FillThreads() {
    CPU_ZERO(&cores_);
    for (int core : usable_cores()) CPU_SET(core, &cores_);
  }

  // Calls work(begin, end) over [0, num) in as many parts as `bytes` of output are worth.
  template <typename Work>
  void split(int64_t num, size_t bytes, const Work& work) const {
    constexpr size_t kBytesPerThread = 1 << 20;  // below that, starting a thread costs more
    const auto parts = static_cast<int64_t>(
        std::clamp<size_t>(bytes / kBytesPerThread, 1, static_cast<size_t>(CPU_COUNT(&cores_))));
    auto share = [&](int64_t t) {
      const int64_t begin = t * (num / parts);
      work(begin, t + 1 == parts ? num : begin + num / parts);
    };
    std::vector<std::jthread> threads;
    for (int64_t t = 1; t < parts; ++t) {
      threads.emplace_back([&, t] {
        pthread_setaffinity_np(pthread_self(), sizeof(cores_), &cores_);
        share(t);
      });
    }
    share(0);
  }

 private:
  cpu_set_t cores_;
};

}  // namespace sluice
