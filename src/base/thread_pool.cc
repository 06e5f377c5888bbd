#include "base/thread_pool.h"

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <string>
#include <utility>

namespace sluice {

namespace {

inline void cpu_relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Waits until `value` differs from `old`. Inside a step the next op comes within microseconds, and
// waking a sleeper costs tens of them, so: spin 30 µs; then, in case somebody else needs the core,
// offer it with every look for 2 ms (longer than one op leaves a thread idle); then sleep in the
// kernel.
uint32_t await_change(std::atomic<uint32_t>& value, uint32_t old) {
  using std::chrono::microseconds;
  using std::chrono::steady_clock;
  auto begin = steady_clock::now();
  for (int i = 0;; ++i) {
    uint32_t now = value.load(std::memory_order_acquire);
    if (now != old) return now;
    cpu_relax();
    if (i % 64 == 63 && steady_clock::now() - begin > microseconds(30)) break;
  }
  while (steady_clock::now() - begin < microseconds(2000)) {
    uint32_t now = value.load(std::memory_order_acquire);
    if (now != old) return now;
    sched_yield();
  }
  value.wait(old, std::memory_order_acquire);
  return value.load(std::memory_order_acquire);
}

// The lowest-numbered hardware thread on the same physical core, or `cpu` itself when unknown.
int first_sibling(int cpu) {
  std::string path =
      "/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/thread_siblings_list";
  std::ifstream in(path);
  int first = cpu;
  return in >> first ? first : cpu;
}

}  // namespace

std::vector<int> usable_cores() {
  std::vector<int> cores;
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) == 0) {
    for (int i = 0; i < CPU_SETSIZE; ++i) {
      if (CPU_ISSET(i, &set)) cores.push_back(i);
    }
  }
  if (cores.empty()) cores.push_back(0);
  // One hardware thread of every physical core first, their siblings after.
  std::stable_partition(cores.begin(), cores.end(), [](int c) { return first_sibling(c) == c; });
  return cores;
}

ThreadPool::ThreadPool(int num_threads, bool pin) : num_threads_(num_threads), pin_(pin) {
  cores_ = usable_cores();
  if (num_threads_ <= 0) num_threads_ = static_cast<int>(cores_.size());
  // More threads than cores: pinning would stack them, so let the kernel place them.
  if (num_threads_ > static_cast<int>(cores_.size())) pin_ = false;
  try {
    for (int i = 1; i < num_threads_; ++i) threads_.emplace_back([this, i] { worker_main(i); });
  } catch (...) {
    stop();
    throw;
  }
}

ThreadPool::~ThreadPool() { stop(); }

void ThreadPool::stop() noexcept {
  stop_.store(true, std::memory_order_release);
  epoch_.fetch_add(1, std::memory_order_release);
  epoch_.notify_all();
  for (std::thread& t : threads_) t.join();
}

void ThreadPool::pin_to_core(int worker) {
  if (!pin_) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<unsigned>(cores_[static_cast<size_t>(worker)]), &set);
  sched_setaffinity(0, sizeof set, &set);
}

void ThreadPool::run_erased(Call call, void* ctx) {
  if (num_threads_ == 1) return call(ctx, 0);
  call_ = call;
  ctx_ = ctx;
  pending_.store(static_cast<uint32_t>(num_threads_ - 1), std::memory_order_relaxed);
  epoch_.fetch_add(1, std::memory_order_release);
  epoch_.notify_all();
  call_guarded(0);
  for (uint32_t left = pending_.load(std::memory_order_acquire); left != 0;) {
    left = await_change(pending_, left);
  }
  if (failed_.load(std::memory_order_relaxed)) {
    failed_.store(false, std::memory_order_relaxed);
    std::rethrow_exception(std::exchange(failure_, nullptr));
  }
}

void ThreadPool::call_guarded(int worker) noexcept {
  try {
    call_(ctx_, worker);
  } catch (...) {
    if (!failed_.exchange(true, std::memory_order_relaxed)) failure_ = std::current_exception();
  }
}

void ThreadPool::worker_main(int worker) {
  pin_to_core(worker);
  uint32_t seen = 0;
  for (;;) {
    seen = await_change(epoch_, seen);
    if (stop_.load(std::memory_order_acquire)) return;
    call_guarded(worker);
    if (pending_.fetch_sub(1, std::memory_order_acq_rel) == 1) pending_.notify_one();
  }
}

}  // namespace sluice
