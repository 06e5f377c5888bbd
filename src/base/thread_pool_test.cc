#include "base/thread_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <iterator>
#include <memory>
#include <new>
#include <numeric>

namespace sluice {
namespace {

int num_threads() {
  std::filesystem::directory_iterator tasks("/proc/self/task");
  return static_cast<int>(std::distance(begin(tasks), end(tasks)));
}

// Five workers are more than some machines have cores: they then share them.
TEST(ThreadPool, RunsOnceOnEveryWorker) {
  for (int size = 1; size <= 5; ++size) {
    ThreadPool pool(size, false);
    EXPECT_EQ(pool.size(), size);
    std::vector<int> calls(static_cast<size_t>(size));  // plain: each worker has its own element
    for (int round = 0; round < 200; ++round) {
      pool.run([&](int worker) { ++calls[static_cast<size_t>(worker)]; });
    }
    EXPECT_EQ(calls, std::vector<int>(static_cast<size_t>(size), 200));
  }
}

TEST(ThreadPool, ForEachCoversEveryIndexOnce) {
  for (int size = 1; size <= 5; ++size) {
    ThreadPool pool(size, false);
    for (int64_t n : {0, 1, 2, 3, 4, 5, 6, 17, 1000}) {
      std::vector<int> hits(static_cast<size_t>(n)), workers(static_cast<size_t>(n), -1);
      pool.for_each(n, [&](int64_t i, int worker) {
        ++hits[static_cast<size_t>(i)];
        workers[static_cast<size_t>(i)] = worker;
      });
      EXPECT_EQ(hits, std::vector<int>(static_cast<size_t>(n), 1));
      for (int w : workers) EXPECT_TRUE(w >= 0 && w < size);
    }
  }
}

// What one run writes, the next reads on other workers, without any lock.
TEST(ThreadPool, RunsAreOrdered) {
  ThreadPool pool(4, false);
  const int64_t n = 64;
  std::vector<int64_t> a(n, 1), b(n);
  for (int round = 0; round < 300; ++round) {
    pool.for_each(n, [&](int64_t i, int) {
      b[static_cast<size_t>(i)] = a[static_cast<size_t>((i + 1) % n)] + 1;
    });
    pool.for_each(n, [&](int64_t i, int) {
      a[static_cast<size_t>(i)] = b[static_cast<size_t>((i + 7) % n)];
    });
  }
  EXPECT_EQ(a, std::vector<int64_t>(n, 301));
}

TEST(ThreadPool, SleepingWorkersWake) {
  ThreadPool pool(3, false);
  std::atomic<int> calls{0};
  for (int round = 0; round < 20; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    pool.run([&](int) { ++calls; });
  }
  EXPECT_EQ(calls, 60);
}

TEST(ThreadPool, SlowWorkerIsAwaited) {
  ThreadPool pool(3, false);
  for (int slow = 0; slow < 3; ++slow) {
    std::vector<int> done(3);
    pool.run([&](int worker) {
      if (worker == slow) std::this_thread::sleep_for(std::chrono::milliseconds(5));
      done[static_cast<size_t>(worker)] = 1;
    });
    EXPECT_EQ(done, std::vector<int>(3, 1));
  }
}

TEST(ThreadPool, ManyMoreThreadsThanCores) {
  ThreadPool pool(static_cast<int>(usable_cores().size()) * 4 + 1);
  std::atomic<int64_t> sum{0};
  for (int round = 0; round < 20; ++round) {
    pool.for_each(100, [&](int64_t i, int) { sum += i; });
  }
  EXPECT_EQ(sum, 20 * 4950);
}

TEST(ThreadPool, PoolsInsidePools) {
  ThreadPool outer(2, false);
  std::vector<std::unique_ptr<ThreadPool>> inner;
  for (int i = 0; i < 2; ++i) inner.push_back(std::make_unique<ThreadPool>(3, false));
  std::atomic<int> calls{0};
  for (int round = 0; round < 20; ++round) {
    outer.run([&](int worker) {
      inner[static_cast<size_t>(worker)]->for_each(10, [&](int64_t, int) { ++calls; });
    });
  }
  EXPECT_EQ(calls, 400);
}

TEST(ThreadPool, MadeAndDestroyedWithoutWork) {
  int before = num_threads();
  for (int i = 0; i < 50; ++i) {
    ThreadPool pool(1 + i % 5, false);
    EXPECT_EQ(pool.size(), 1 + i % 5);
  }
  EXPECT_EQ(num_threads(), before) << "a pool left a worker behind";
}

TEST(ThreadPool, PinsToUsableCores) {
  std::vector<int> cores = usable_cores();
  ASSERT_FALSE(cores.empty());
  // In a thread of its own: pinning the caller would follow it into the other tests.
  std::thread([&] {
    ThreadPool pool(0);
    EXPECT_EQ(pool.size(), static_cast<int>(cores.size()));
    std::vector<std::vector<int>> where(cores.size());
    pool.pin_caller();
    pool.run([&](int worker) { where[static_cast<size_t>(worker)] = usable_cores(); });
    if (cores.size() < 2) return;  // a pool of one runs on the caller, unpinned
    for (size_t w = 0; w < cores.size(); ++w) EXPECT_EQ(where[w], std::vector<int>{cores[w]});
  }).join();
}

// The exception reaches the caller when every worker is done, and the pool goes on.
TEST(ThreadPool, CarriesAnExceptionToTheCaller) {
  for (int threads : {1, 2, 4}) {
    ThreadPool pool(threads, false);
    for (int64_t bad = 0; bad < 50; ++bad) {
      std::atomic<int> started{0}, ended{0};
      auto work = [&](int64_t i, int) {
        ++started;
        if (i == bad || i == 20) {
          ++ended;
          throw std::bad_alloc();
        }
        ++ended;
      };
      EXPECT_THROW(pool.for_each(64, work), std::bad_alloc);
      EXPECT_EQ(started, ended) << "the caller went on before a worker was done";
      std::atomic<int> sum{0};
      pool.for_each(64, [&](int64_t, int) { ++sum; });
      EXPECT_EQ(sum, 64);
    }
  }
}

}  // namespace
}  // namespace sluice
