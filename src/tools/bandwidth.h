// The limit that decoding is measured against: how fast this machine reads memory.
#pragma once

#include <cstddef>

#include "backend/backend.h"
#include "base/thread_pool.h"

namespace sluice {

// Memory to read, kept between measurements. Driven by the pool's owner.
class ReadProbe {
 public:
  // More than the caches hold, on huge pages where allowed. Throws std::bad_alloc.
  explicit ReadProbe(ThreadPool& pool, size_t bytes = size_t{1} << 30);

  // Bytes per second with that pool's threads: the best of so many passes over all of it, every
  // thread reading its share in four or eight streams (which of the two is faster varies).
  double measure(ThreadPool& pool, int passes);

 private:
  Buffer memory_;
};

// Sustained read bandwidth in bytes per second with that many threads.
double measure_read_bandwidth(int threads);

}  // namespace sluice
