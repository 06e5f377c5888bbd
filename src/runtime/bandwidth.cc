#include "runtime/bandwidth.h"

#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <new>

#include "base/thread_pool.h"

namespace sluice {

double measure_read_bandwidth(int threads) {
  constexpr size_t kBytes = size_t{1} << 30;
  constexpr size_t kStreams = 4,
                   kStride = 64;  // words read from a stream before the next one's turn
  constexpr size_t kAhead = 256;  // words: enough lines in flight to fill the memory's queues
  constexpr int kPasses = 5;
  void* memory = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  madvise(memory, kBytes, MADV_HUGEPAGE);
  auto* words = static_cast<uint64_t*>(memory);
  ThreadPool pool(threads);
  size_t share = kBytes / sizeof(uint64_t) / static_cast<size_t>(pool.size());
  size_t stream = share / kStreams / kStride * kStride;
  pool.run([&](int w) {
    uint64_t* mine = words + static_cast<size_t>(w) * share;
    for (size_t i = 0; i < share; ++i) mine[i] = i;
  });
  double best = 0;
  for (int pass = 0; pass < kPasses; ++pass) {
    auto begin = std::chrono::steady_clock::now();
    pool.run([&](int w) {
      const uint64_t* mine = words + static_cast<size_t>(w) * share;
      uint64_t sum = 0;
      for (size_t i = 0; i < stream; i += kStride) {
        for (size_t s = 0; s < kStreams; ++s) {
          const uint64_t* at = mine + s * stream + i;
          for (size_t k = 0; k < kStride; k += 8) __builtin_prefetch(at + kAhead + k);
          for (size_t k = 0; k < kStride; ++k) sum += at[k];
        }
      }
      volatile uint64_t keep = sum;
      static_cast<void>(keep);
    });
    std::chrono::duration<double> t = std::chrono::steady_clock::now() - begin;
    best = std::max(best, static_cast<double>(stream * kStreams * sizeof(uint64_t) *
                                              static_cast<size_t>(pool.size())) /
                              t.count());
  }
  munmap(memory, kBytes);
  return best;
}

}  // namespace sluice
