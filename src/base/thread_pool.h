// Pinned workers that run one function together, with a spin-then-sleep barrier.
// Owned and driven by one thread (the device thread), which is worker 0.
// A decode step has hundreds of barriers: a dispatch must cost about a microsecond.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <thread>
#include <vector>

namespace sluice {

class ThreadPool {
 public:
  // num_threads <= 0: one per core that this process may use. `pin` binds worker i to the i-th such
  // core; the driving thread (worker 0) binds itself with pin_caller().
  explicit ThreadPool(int num_threads, bool pin = true);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return num_threads_; }

  // Binds the calling thread to worker 0's core. For a thread whose whole life is driving this
  // pool: threads it starts later inherit the binding.
  void pin_caller() { pin_to_core(0); }

  // f(worker) once on every worker, the caller included; returns when all are done. If some throw,
  // the first exception is thrown again here, after the last worker has finished.
  template <typename F>
  void run(F&& f) {
    using Fn = std::remove_reference_t<F>;
    run_erased([](void* ctx, int worker) { (*static_cast<Fn*>(ctx))(worker); },
               const_cast<void*>(static_cast<const void*>(&f)));
  }

  // f(index, worker) for every index in [0, n), claimed one at a time: use indices of a few µs
  // each. Which worker runs an index is not fixed, so f's result must not depend on it.
  template <typename F>
  void for_each(int64_t n, F&& f) {
    if (n <= 1 || num_threads_ == 1) {
      for (int64_t i = 0; i < n; ++i) f(i, 0);
      return;
    }
    next_.store(0, std::memory_order_relaxed);
    run([&](int worker) {
      for (;;) {
        int64_t i = next_.fetch_add(1, std::memory_order_relaxed);
        if (i >= n) return;
        f(i, worker);
      }
    });
  }

 private:
  using Call = void (*)(void* ctx, int worker);
  void run_erased(Call call, void* ctx);
  void call_guarded(int worker) noexcept;
  void stop() noexcept;
  void worker_main(int worker);
  void pin_to_core(int worker);

  int num_threads_;
  bool pin_;
  std::vector<int> cores_;
  std::vector<std::thread> threads_;
  Call call_ = nullptr;
  void* ctx_ = nullptr;
  alignas(64) std::atomic<uint32_t> epoch_{0};    // bumped to start a run
  alignas(64) std::atomic<uint32_t> pending_{0};  // workers that have not finished it
  std::atomic<bool> failed_{false};               // a call threw; whoever set it writes failure_
  std::exception_ptr failure_;
  alignas(64) std::atomic<int64_t> next_{0};
  std::atomic<bool> stop_{false};
};

// CPUs this process may run on (its affinity mask): one of each physical core first.
std::vector<int> usable_cores();

}  // namespace sluice
