// Host time of a step: plan and complete of the scheduler, with an executor that only answers.
// Rows decode at a context of 128k positions with blocks of 16. Times are of the calling thread's
// CPU clock, so other work on the machine does not count.
//   host_bench [--steady] [ROWS ...]      default 256 2048
//   host_bench --long                     what it costs to admit and to end one long sequence
//   host_bench --admission                what it costs to ask whether the next sequence may start,
//                                         with some 256 that run and 256 that wait
//   host_bench --observe [ROWS ...]       what a server's metrics and dashboard cost of a step;
//                                         default 1 16 256
//   host_bench --record [ROWS ...]        what serve --record costs of a step; default 1 16 256
#include <ctime>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "core/fake_executor.h"
#include "engine/flight_recorder.h"
#include "engine/loop.h"
#include "server/meters.h"
#include "server/observe.h"

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

  // Of steps that decode: the scheduler beside what serve does after each of them.
  void observe() {
    start();
    Meters meters("model");
    auto recorder = std::make_unique<Recorder>();
    recorder->begin(scheduler_.config());
    std::vector<double> host, metrics, dashboard;
    for (int i = 0; i < kMeasured; ++i) {
      const StepReport r = iterate();
      const Time begin = clock_.now();
      meters.on_step(r, begin);
      if (meters.wants_kv_use(r, begin)) meters.on_kv_use(scheduler_.kv_use());
      const Time between = clock_.now();
      recorder->observe(r, loop_.last_plan(), events_, scheduler_);
      const Time end = clock_.now();
      host.push_back(seconds(r.host_time()) * 1e6);
      metrics.push_back(seconds(between - begin) * 1e6);
      dashboard.push_back(seconds(end - between) * 1e6);
    }
    auto median = [](std::vector<double>& v) {
      std::sort(v.begin(), v.end());
      return v[v.size() / 2];
    };
    std::printf("%6d %10.2f %10.2f %10.2f\n", case_.rows, median(host), median(metrics),
                median(dashboard));
    std::fflush(stdout);
  }

  // Of steps that decode: the scheduler without a recorder, and with one.
  void record(const std::string& dir) {
    start();
    auto measure = [&] {
      std::vector<double> us;
      for (int i = 0; i < kMeasured; ++i) us.push_back(seconds(iterate().host_time()) * 1e6);
      std::sort(us.begin(), us.end());
      return us[us.size() / 2];
    };
    FlightOptions o;
    o.dir = dir;
    o.bytes = uint64_t{1} << 30;  // 256 rows of 128k positions are a state of 223 MiB
    o.header.vocab = 32000;
    auto recorder = FlightRecorder::open(std::move(o)).value();
    const double without = measure();
    const Time begin = clock_.now();
    SchedulerListener* listener = recorder->start(scheduler_);
    const double state_ms = seconds(clock_.now() - begin) * 1e3;
    scheduler_.listen(listener);
    const double with = measure();
    scheduler_.listen(nullptr);
    FlightRecorder::Stats stats = recorder->stats();
    std::printf("%6d %10.2f %10.2f %10.2f %12.1f %9llu\n", case_.rows, without, with,
                with - without, state_ms, static_cast<unsigned long long>(stats.dropped));
    std::fflush(stdout);
  }

  void run() {
    start();
    std::vector<StepReport> reports;
    reports.reserve(kMeasured);
    for (int i = 0; i < kMeasured; ++i) reports.push_back(iterate());
    print(reports);
  }

 private:
  // Until all rows decode.
  void start() {
    for (int i = 0; i < case_.rows; ++i) add(i);
    while (scheduler_.stats().num_waiting > 0) iterate();
    for (int i = 0; i < kWarmUp; ++i) iterate();
  }

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

// One sequence of 128k positions after the other beside 64 short ones that decode, in a pool for
// three of them: from the fourth on every block that it takes was another's cached prefix.
class LongBench {
 public:
  LongBench(bool prefix_cache, bool hit, Pipeline pipeline)
      : cache_(prefix_cache),
        hit_(hit),
        pipeline_(pipeline),
        scheduler_(config(prefix_cache), nullptr),
        loop_(scheduler_, executor_, clock_, pipeline) {
    auto prompt = std::make_shared<std::vector<Token>>(static_cast<size_t>(kPromptLen));
    for (size_t i = 0; i < prompt->size(); ++i) (*prompt)[i] = static_cast<Token>(i * 7919 % 32000);
    prompt_ = prompt;
  }

  void run() {
    auto one = std::make_shared<std::vector<Token>>(1, Token{1});
    for (int i = 0; i < kOthers; ++i) add(one, kContext - 1, false);
    for (int i = 0; i < 10; ++i) iterate();
    Worst admit, end;
    for (int k = 0; k < 24; ++k) {
      RequestId id = add(prompt_, 8, hit_);
      StepReport r;
      do {
        r = iterate();
      } while (scheduler_.stats().num_waiting > 0);
      if (k >= 4) admit.add(r.plan_end - r.plan_begin, loop_.last_plan().edits.size());
      while (!ended(id)) r = iterate();
      Time complete = r.complete_end - r.complete_begin;
      // With a step in flight the blocks come back with that one.
      r = iterate();
      if (k >= 4) end.add(std::max(complete, r.complete_end - r.complete_begin), 0);
    }
    std::printf("%-6s %-8s %-5s %8.1f %8.1f %8zu %8.1f %8.1f\n", cache_ ? "on" : "off",
                pipeline_ == Pipeline::sync ? "sync" : "overlap", hit_ ? "hit" : "miss",
                admit.p50(), admit.max(), admit.blocks, end.p50(), end.max());
    std::fflush(stdout);
  }

 private:
  static constexpr int kOthers = 64;
  struct Worst {
    void add(Time t, size_t num) {
      us.push_back(seconds(t) * 1e6);
      blocks = std::max(blocks, num);
    }
    double p50() {
      std::sort(us.begin(), us.end());
      return us[us.size() / 2];
    }
    double max() const { return *std::max_element(us.begin(), us.end()); }
    std::vector<double> us;
    size_t blocks = 0;
  };
  static SchedulerConfig config(bool prefix_cache) {
    SchedulerConfig s;
    s.block_size = kBlockSize;
    s.max_seqs = kOthers + 1;
    s.max_len = kContext;
    s.num_blocks = 3 * (kContext / kBlockSize) + kOthers * 2048;
    s.budget = 2048 + kOthers;
    s.watermark = 0;
    s.prefix_cache = prefix_cache;
    return s;
  }
  RequestId add(std::shared_ptr<const std::vector<Token>> prompt, int max_new, bool shared) {
    Request r;
    r.id = next_id_++;
    r.tenant = shared ? 0 : r.id;
    r.prompt = std::move(prompt);
    r.sampling = sampling_;
    r.max_new = max_new;
    if (cache_) r.block_hashes = hash_blocks(*r.prompt, kBlockSize, r.tenant);
    RequestId id = r.id;
    CHECK(scheduler_.add(std::move(r), clock_.now()).has_value());
    return id;
  }
  StepReport iterate() {
    events_.clear();
    return loop_.iterate(events_);
  }
  bool ended(RequestId id) const {
    return std::any_of(events_.list.begin(), events_.list.end(),
                       [&](const Event& e) { return e.req == id && e.last; });
  }

  bool cache_, hit_;
  Pipeline pipeline_;
  ThreadClock clock_;
  Scheduler scheduler_;
  FakeExecutor executor_{draw};
  Loop loop_;
  Events events_;
  std::shared_ptr<const std::vector<Token>> prompt_;
  std::shared_ptr<const SamplingSpec> sampling_ = std::make_shared<SamplingSpec>();
  RequestId next_id_ = 1;
};

// About 256 sequences run and 256 wait, of lengths that are learnt; nearly every step asks whether
// the next one fits and is told no.
class AdmissionBench {
 public:
  AdmissionBench(Admission admission, Predict predict, float short_share)
      : scheduler_(config(admission, predict, short_share), nullptr),
        executor_([](const StepPlan& plan, const Slice& s) {
          uint64_t x = (plan.step * 0x9E3779B97F4A7C15u + s.slot) * 0xD1B54A32D192ED03u;
          return static_cast<Token>((x >> 33) % 200);  // 0 ends: 200 tokens on average
        }),
        loop_(scheduler_, executor_, clock_, Pipeline::sync) {}

  // CPU time of plan() over steps that start nobody, in us.
  double median(int* num_running) {
    std::vector<double> plan;
    int64_t running = 0;
    for (int step = 0; step < 4000; ++step) {
      while (scheduler_.stats().num_waiting < kWaiting) add();
      int before = scheduler_.stats().num_running;
      events_.clear();
      StepReport r = loop_.iterate(events_);
      int ended = static_cast<int>(std::count_if(events_.list.begin(), events_.list.end(),
                                                 [](const Event& e) { return e.last; }));
      if (step < 2000 || r.stats.num_running + ended > before) continue;
      plan.push_back(seconds(r.plan_end - r.plan_begin) * 1e6);
      running += r.stats.num_running;
    }
    CHECK(!plan.empty());
    *num_running = static_cast<int>(running / static_cast<int64_t>(plan.size()));
    std::nth_element(plan.begin(), plan.begin() + static_cast<ptrdiff_t>(plan.size() / 2),
                     plan.end());
    return plan[plan.size() / 2];
  }

 private:
  static constexpr int kWaiting = 256;
  static SchedulerConfig config(Admission admission, Predict predict, float short_share) {
    SchedulerConfig s;
    s.admission = admission;
    s.predictor.kind = predict;
    s.short_share = short_share;
    s.prefix_cache = false;
    s.max_seqs = 1024;
    s.budget = 1024 + 64;
    s.max_len = 4096;
    s.num_blocks = 256 * 47;
    s.pipeline = Pipeline::sync;
    return s;
  }
  void add() {
    Request r;
    r.id = next_id_++;
    auto length = static_cast<size_t>(r.id % 4 == 0 ? 1500 : 64 + r.id % 64);
    r.prompt = std::make_shared<const std::vector<Token>>(length, Token{7});
    r.sampling = sampling_;
    r.stop.tokens = {0};
    r.max_new = 1024;
    CHECK(scheduler_.add(std::move(r), clock_.now()).has_value());
  }

  ThreadClock clock_;
  Scheduler scheduler_;
  FakeExecutor executor_;
  Loop loop_;
  Events events_;
  std::shared_ptr<const SamplingSpec> sampling_ = std::make_shared<SamplingSpec>();
  RequestId next_id_ = 1;
};

void admission_bench() {
  std::printf("plan() of a step that starts nobody, us of CPU time, median; 256 wait\n");
  std::printf("%-15s %-9s %11s %8s %8s\n", "admission", "predict", "short-share", "running",
              "plan");
  for (float share : {0.0f, 0.25f}) {
    auto row = [&](Admission admission, const char* name, Predict predict, const char* by) {
      int running = 0;
      double us = AdmissionBench(admission, predict, share).median(&running);
      std::printf("%-15s %-9s %11.2f %8d %8.1f\n", name, by, share, running, us);
    };
    row(Admission::watermark, "watermark", Predict::oracle, "");
    row(Admission::predicted_peak, "predicted-peak", Predict::quantile, "quantile");
    row(Admission::predicted_peak, "predicted-peak", Predict::survival, "survival");
  }
}

}  // namespace
}  // namespace sluice

int main(int argc, char** argv) {
  using namespace sluice;
  std::vector<int> rows;
  if (argc > 1 && std::string_view(argv[1]) == "--long") {
    std::printf(
        "a sequence of 128k positions, beside 64 that decode: host time of the step that\n");
    std::printf("admits it (2,048 of its tokens) and of the one that ends it, us; table edits\n");
    std::printf("%-6s %-8s %-5s %8s %8s %8s %8s %8s\n", "prefix", "pipeline", "it is", "admit",
                "max", "edits", "end", "max");
    for (Pipeline p : {Pipeline::sync, Pipeline::overlap}) {
      LongBench(true, false, p).run();
      LongBench(true, true, p).run();
      LongBench(false, false, p).run();
    }
    return 0;
  }
  if (argc > 1 && std::string_view(argv[1]) == "--admission") {
    admission_bench();
    return 0;
  }
  if (argc > 1 && std::string_view(argv[1]) == "--observe") {
    for (int i = 2; i < argc; ++i) rows.push_back(std::max(1, std::atoi(argv[i])));
    if (rows.empty()) rows = {1, 16, 256};
    std::printf("us of CPU time per step of decodes, median\n%6s %10s %10s %10s\n", "rows",
                "scheduler", "metrics", "dashboard");
    for (int n : rows) Bench({n, true, Pipeline::overlap, false}).observe();
    return 0;
  }
  if (argc > 1 && std::string_view(argv[1]) == "--record") {
    for (int i = 2; i < argc; ++i) rows.push_back(std::max(1, std::atoi(argv[i])));
    if (rows.empty()) rows = {1, 16, 256};
    std::printf(
        "us of CPU time per step of decodes, median; state: ms for the pseudonyms and the first\n"
        "state\n%6s %10s %10s %10s %12s %9s\n",
        "rows", "without", "recorded", "more", "state", "dropped");
    std::string dir = (std::filesystem::temp_directory_path() / "sluice_bench_XXXXXX").string();
    CHECK(mkdtemp(dir.data()) != nullptr);
    for (int n : rows) Bench({n, true, Pipeline::overlap, false}).record(dir);
    std::filesystem::remove_all(dir);
    return 0;
  }
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
