#include "tools/bandwidth.h"

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "backend/cpu/memory.h"

namespace sluice {

namespace {

constexpr int kPasses = 6;
constexpr size_t kWords = 64;   // read from a stream before the next one's turn
constexpr size_t kAhead = 256;  // words: enough lines in flight to fill the memory's queues
// A cache line. Adding words one by one is slower than memory where no compiler makes vectors.
using Line = uint64_t __attribute__((vector_size(64), may_alias));

// Reads `words` words in `kStreams` streams; a multiple of kStreams * kWords.
template <size_t kStreams>
uint64_t read_words(const uint64_t* from, size_t words) {
  const size_t stream = words / kStreams;
  Line sum = {};
  for (size_t i = 0; i < stream; i += kWords) {
    for (size_t s = 0; s < kStreams; ++s) {
      const uint64_t* at = from + s * stream + i;
      for (size_t k = 0; k < kWords; k += 8) __builtin_prefetch(at + kAhead + k);
      for (size_t k = 0; k < kWords; k += 8) sum += *reinterpret_cast<const Line*>(at + k);
    }
  }
  uint64_t all = 0;
  for (size_t k = 0; k < 8; ++k) all += sum[k];
  return all;
}

}  // namespace

ReadProbe::ReadProbe(ThreadPool& pool, size_t bytes) : memory_(allocate_pages(bytes)) {
  // Touched by all threads, so that a machine with several memories spreads it over them.
  auto* words = static_cast<uint64_t*>(memory_.data());
  constexpr int64_t kChunk = int64_t{4} << 20;
  auto num = static_cast<int64_t>(bytes / sizeof(uint64_t));
  pool.for_each((num + kChunk - 1) / kChunk, [&](int64_t chunk, int) {
    int64_t end = std::min(num, (chunk + 1) * kChunk);
    for (int64_t i = chunk * kChunk; i < end; ++i) words[i] = static_cast<uint64_t>(i);
  });
}

double ReadProbe::measure(ThreadPool& pool, int passes) {
  constexpr size_t kUnit = 8 * kWords;
  auto threads = static_cast<size_t>(pool.size());
  size_t share = memory_.bytes() / sizeof(uint64_t) / threads / kUnit * kUnit;
  double best = 0;
  for (int pass = 0; pass < passes; ++pass) {
    auto begin = std::chrono::steady_clock::now();
    pool.run([&](int w) {
      const uint64_t* mine =
          static_cast<const uint64_t*>(memory_.data()) + static_cast<size_t>(w) * share;
      volatile uint64_t keep =
          pass % 2 == 0 ? read_words<8>(mine, share) : read_words<4>(mine, share);
      static_cast<void>(keep);
    });
    std::chrono::duration<double> t = std::chrono::steady_clock::now() - begin;
    best = std::max(best, static_cast<double>(share * sizeof(uint64_t) * threads) / t.count());
  }
  return best;
}

double measure_read_bandwidth(int threads) {
  ThreadPool pool(threads);
  return ReadProbe(pool).measure(pool, kPasses);
}

}  // namespace sluice
