// Host time of a step: plan and complete of the scheduler, with an executor that only answers.
// Rows decode at a context of 128k positions with blocks of 16. Times are of the calling thread's
// CPU clock, so other work on the machine does not count.
//   host_bench [--steady] [ROWS ...]      default 256 2048
#include <ctime>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "core/fake_executor.h"
#include "engine/loop.h"

namespace sluice {
namespace {

constexpr int kContext = 128 * 1024;
constexpr int kBlockSize = 16;
constexpr int kPromptLen = kContext - 4096;
constexpr int kWarmUp = 100, kMeasured = 1000;

class ThreadClock final : public Clock {
 public:
  Time now() const override {
    timespec t = {};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return std::chrono::seconds(t.tv_sec) + std::chrono::nanoseconds(t.tv_nsec);
  }
};

Token draw(const StepPlan& plan, const Slice& s) {
  return static_cast<Token>(plan.step * 31 + s.slot) % 32000;
}

struct Case {
  int rows;
  bool prefix_cache;
  Pipeline pipeline;
  bool turnover;  // sequences end and others take their place
};

class Bench {
 public:
  explicit Bench(const Case& c)
      : case_(c), scheduler_(config(c), nullptr), loop_(scheduler_, executor_, clock_, c.pipeline) {
    auto prompt = std::make_shared<std::vector<Token>>(static_cast<size_t>(kPromptLen));
    for (size_t i = 0; i < prompt->size(); ++i) (*prompt)[i] = static_cast<Token>(i * 7919 % 32000);
    prompt_ = prompt;
    auto sampling = std::make_shared<SamplingSpec>();
    sampling->temperature = 0;
    sampling_ = sampling;
    events_.list.reserve(static_cast<size_t>(c.rows) * 2);
  }

  void run() {
    for (int i = 0; i < case_.rows; ++i) add(i);
    while (scheduler_.stats().num_waiting > 0) iterate();
    for (int i = 0; i < kWarmUp; ++i) iterate();
    std::vector<StepReport> reports;
    reports.reserve(kMeasured);
    for (int i = 0; i < kMeasured; ++i) reports.push_back(iterate());
    print(reports);
  }

 private:
  static SchedulerConfig config(const Case& c) {
    SchedulerConfig s;
    s.block_size = kBlockSize;
    s.max_seqs = c.rows;
    s.max_len = kContext;
    s.num_blocks = (c.rows + 2) * (kContext / kBlockSize);
    // Steady: prompts are to be over quickly. Turnover: a new prompt takes several steps.
    s.budget = c.turnover ? c.rows + (1 << 14) : 1 << 19;
    s.watermark = 0;
    s.prefix_cache = c.prefix_cache;
    return s;
  }

  // Each under a tenant of its own: the same tokens, but nothing shared.
  void add(int i) {
    Request r;
    r.id = next_id_++;
    r.tenant = r.id;
    r.prompt = prompt_;
    r.sampling = sampling_;
    r.stop.tokens = {-2, -3};
    // With turnover a sequence ends every few steps, spread evenly from the first one on.
    r.max_new = case_.turnover ? 64 + i * 4 : 4096;
    if (case_.prefix_cache) r.block_hashes = hash_blocks(*prompt_, kBlockSize, r.tenant);
    CHECK(scheduler_.add(std::move(r), clock_.now()).has_value());
  }

  StepReport iterate() {
    events_.clear();
    StepReport r = loop_.iterate(events_);
    for (const Event& e : events_.list) {
      if (e.last) add(case_.rows);
    }
    return r;
  }

  void print(const std::vector<StepReport>& reports) const {
    std::vector<double> host, plan, complete;
    for (const StepReport& r : reports) {
      host.push_back(seconds(r.host_time()) * 1e6);
      plan.push_back(seconds(r.plan_end - r.plan_begin) * 1e6);
      complete.push_back(seconds(r.complete_end - r.complete_begin) * 1e6);
    }
    auto at = [](std::vector<double>& v, double q) {
      std::sort(v.begin(), v.end());
      return v[static_cast<size_t>(q * static_cast<double>(v.size() - 1))];
    };
    std::printf("%6d  %-6s %-8s %-9s %8.1f %8.1f %8.1f %8.1f %8.1f %8.1f\n", case_.rows,
                case_.prefix_cache ? "on" : "off",
                case_.pipeline == Pipeline::sync ? "sync" : "overlap",
                case_.turnover ? "turnover" : "steady", at(host, 0), at(host, 0.5), at(host, 0.99),
                at(host, 1), at(plan, 0.5), at(complete, 0.5));
    std::fflush(stdout);
  }

  Case case_;
  ThreadClock clock_;
  Scheduler scheduler_;
  FakeExecutor executor_{draw};
  Loop loop_;
  Events events_;
  std::shared_ptr<const std::vector<Token>> prompt_;
  std::shared_ptr<const SamplingSpec> sampling_;
  RequestId next_id_ = 1;
};

}  // namespace
}  // namespace sluice

int main(int argc, char** argv) {
  using namespace sluice;
  std::vector<int> rows;
  bool steady_only = argc > 1 && std::string_view(argv[1]) == "--steady";
  for (int i = steady_only ? 2 : 1; i < argc; ++i) rows.push_back(std::max(1, std::atoi(argv[i])));
  if (rows.empty()) rows = {256, 2048};
  std::printf("host time of a step in us; context 128k, blocks of 16\n");
  std::printf("%6s  %-6s %-8s %-9s %8s %8s %8s %8s %8s %8s\n", "rows", "prefix", "pipeline", "load",
              "min", "p50", "p99", "max", "plan", "complete");
  for (int n : rows) {
    for (bool turnover : {false, true}) {
      if (turnover && steady_only) continue;
      for (bool cache : {true, false}) {
        for (Pipeline p : {Pipeline::sync, Pipeline::overlap}) Bench({n, cache, p, turnover}).run();
      }
    }
  }
}
