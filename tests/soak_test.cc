// Hundreds of thousands of requests through the engine on an executor that computes nothing: short
// and long, cancelled, refused, expired, with shared prefixes, from several threads at once. After
// a warm-up memory, descriptors and threads stay where they were, and every block comes back.
// SLUICE_TEST_FULL=1 runs two million.
#include <dirent.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <fstream>
#include <random>
#include <thread>

#include <gtest/gtest.h>

#include "core/fake_executor.h"
#include "engine/engine.h"

namespace sluice {
namespace {

// Samples for every row that wants a token, now and then the stop token.
Token draw(const StepPlan& plan, const Slice& s) {
  return static_cast<Token>((plan.step * 31 + s.slot * 17) % 97);
}

struct Counts {
  std::atomic<int64_t> submitted{0}, finished{0}, refused{0}, tokens{0}, cancelled{0};
  int64_t live() const { return submitted.load() - finished.load() - refused.load(); }
};

class CountingSink final : public Sink {
 public:
  explicit CountingSink(Counts& counts) : counts_(counts) {}
  void on_event(const Event& e, std::span<const TopLogprob>) override {
    if (e.token != kNoToken) counts_.tokens.fetch_add(1, std::memory_order_relaxed);
    if (!e.last) return;
    EXPECT_FALSE(over_) << "a second terminal event";
    over_ = true;
    if (e.finish == Finish::cancelled) counts_.cancelled.fetch_add(1, std::memory_order_relaxed);
    counts_.finished.fetch_add(1, std::memory_order_release);
  }
  void on_refused(const Error&) override {
    EXPECT_FALSE(over_) << "a second terminal event";
    over_ = true;
    counts_.refused.fetch_add(1, std::memory_order_release);
  }

 private:
  Counts& counts_;
  bool over_ = false;
};

int64_t resident_bytes() {
  std::ifstream in("/proc/self/statm");
  int64_t size = 0, resident = 0;
  in >> size >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

int num_entries(const char* folder) {
  int num = 0;
  DIR* dir = opendir(folder);
  for (; dir && readdir(dir);) ++num;
  if (dir) closedir(dir);
  return num;
}

Request make_request(std::mt19937_64& rng, const Clock& clock) {
  auto pick = [&](int lo, int hi) {
    return lo + static_cast<int>(rng() % static_cast<uint64_t>(hi - lo + 1));
  };
  Request r;
  int len = pick(1, 100) <= 5 ? pick(60, 200) : pick(1, 40);
  if (pick(1, 200) == 1) len = 400;  // longer than the context: refused
  auto prompt = std::make_shared<std::vector<Token>>();
  int shared = pick(0, 1) ? std::min(len, 24) : 0;
  for (int i = 0; i < len; ++i) prompt->push_back(i < shared ? i : pick(0, 96));
  r.prompt = std::move(prompt);
  r.sampling = std::make_shared<const SamplingSpec>();
  r.stop.tokens = {13};
  r.max_new = pick(1, 12);
  if (pick(1, 20) == 1) r.n = pick(2, 4);
  r.tenant = static_cast<TenantId>(pick(0, 3));
  if (pick(1, 50) == 1) r.deadline = clock.now() + std::chrono::milliseconds(pick(0, 3));
  return r;
}

// One client of several: at most `most` requests are live in all.
void submit(Engine& engine, const Clock& clock, Counts& counts, int64_t num, uint64_t seed) {
  std::mt19937_64 rng(seed);
  for (int64_t i = 0; i < num; ++i) {
    while (counts.live() > 400) std::this_thread::yield();
    counts.submitted.fetch_add(1);
    RequestId id = engine.submit(make_request(rng, clock), std::make_shared<CountingSink>(counts));
    if (rng() % 20 == 0) engine.cancel(id);
  }
}

TEST(Soak, MemoryDescriptorsAndBlocksStayFlat) {
  const char* full = std::getenv("SLUICE_TEST_FULL");
  int64_t total = full && *full == '1' ? 2'000'000 : 400'000, round = total / 10;
  SchedulerConfig c;
  c.num_blocks = 400;
  c.block_size = 8;
  c.budget = 256;
  c.chunk = 64;
  c.short_share = 0.25f;
  c.max_seqs = 48;
  c.max_len = 256;
  RealClock clock;
  FakeExecutor executor(draw);
  std::atomic<int> total_blocks{0}, available{0}, running{0};
  Engine::Options options;
  options.observer = [&](const StepReport& r, const StepPlan&, const Events&, const Scheduler&) {
    total_blocks = r.stats.total_blocks;
    available = r.stats.available_blocks;
    running = r.stats.num_running;
  };
  Counts counts;
  Engine engine(Scheduler(c, nullptr), executor, clock, std::move(options));
  int64_t resident = 0;
  int descriptors = 0, threads = 0;
  for (int r = 0; r < 10; ++r) {
    std::thread other([&] { submit(engine, clock, counts, round / 2, 1000 + uint64_t(r)); });
    submit(engine, clock, counts, round - round / 2, static_cast<uint64_t>(r));
    other.join();
    while (counts.live() > 0) std::this_thread::yield();
    engine.poke();
    while (running.load() > 0 || available.load() < total_blocks.load()) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));  // the last step may be in flight
      engine.poke();
    }
    if (r == 2) {  // warm
      resident = resident_bytes();
      descriptors = num_entries("/proc/self/fd");
      threads = num_entries("/proc/self/task");
    }
  }
  EXPECT_EQ(counts.submitted.load(), counts.finished.load() + counts.refused.load());
  EXPECT_GT(counts.refused.load(), total / 1000);
  EXPECT_GT(counts.cancelled.load(), total / 1000);
  EXPECT_EQ(num_entries("/proc/self/fd"), descriptors);
  EXPECT_EQ(num_entries("/proc/self/task"), threads);
  // A hundredth, and what the allocator may hold for a thread.
  EXPECT_LE(resident_bytes(), resident + resident / 100 + (256 << 10));
  std::printf("soak: %lld requests, %lld tokens, resident %.1f MB after the warm-up, %.1f MB now\n",
              static_cast<long long>(counts.submitted), static_cast<long long>(counts.tokens),
              static_cast<double>(resident) / 1e6, static_cast<double>(resident_bytes()) / 1e6);
}

}  // namespace
}  // namespace sluice
