// The counters behind /metrics, and whether the engine makes progress. Updated by the engine thread
// once a step and by io threads once an event; read by any thread.
#pragma once

#include <atomic>
#include <mutex>
#include <string>

#include "base/clock.h"
#include "base/metrics.h"
#include "core/events.h"
#include "engine/loop.h"
#include "server/kv_events.h"
#include "server/kv_transfer.h"

namespace sluice {

// One quantity under our name and under the one that vLLM's dashboards know.
struct TwoHistograms {
  Histogram &ours, &theirs;
  void observe(double v) { ours.observe(v), theirs.observe(v); }
};
struct TwoCounters {
  Counter &ours, &theirs;
  void add(double v = 1) { ours.add(v), theirs.add(v); }
};
struct TwoGauges {
  Gauge &ours, &theirs;
  void set(double v) { ours.set(v), theirs.set(v); }
};

class Meters {
 public:
  explicit Meters(const std::string& model);

  // The step in hand goes on: it is long, not stuck.
  void on_progress(Time now) { last_progress_.store(now.count(), std::memory_order_relaxed); }
  // Sizes of the engine, before its first step.
  void on_ready(const SchedulerConfig& config);
  // Totals of KV events; one thread at a time.
  void on_kv_events(const KvPublisher::Stats& totals);
  // Likewise of blocks that move between servers.
  void on_kv_transfer(const KvTransfer::Stats& totals);
  // Engine thread.
  void on_step(const StepReport& report, Time now);
  // Engine thread, behind on_step(): whether kv_use() of the scheduler is wanted now.
  bool wants_kv_use(const StepReport& report, Time now);
  void on_kv_use(const KvUse& use);
  // Io threads. `prompt_tokens` once per request.
  void on_finish(const Event& event, int num_prompt, int num_output, bool first_choice);
  void on_response(int status);
  void on_constrained(const char* kind);
  // Any thread: how many requests the engine has been given and not yet answered.
  void on_submit(Time now);
  void on_terminal() { outstanding_.fetch_sub(1); }
  int outstanding() const { return outstanding_.load(); }
  // Seconds without a step, or progress in one, while there is work; 0 when idle.
  double stalled(Time now) const;
  // Steps that failed, one after the other, up to now: a device that is lost fails them all.
  int failed_in_a_row() const { return failed_in_a_row_.load(std::memory_order_relaxed); }
  // How long a request that comes now may wait, from those before it.
  double queue_seconds() const { return queue_estimate_.load(std::memory_order_relaxed); }
  int num_waiting() const { return num_waiting_.load(std::memory_order_relaxed); }
  int num_running() const { return num_running_.load(std::memory_order_relaxed); }
  // KV blocks that sequences hold.
  int used_blocks() const { return used_blocks_.load(std::memory_order_relaxed); }

  std::string expose();

 private:
  TwoHistograms histogram(const char* name, const char* theirs, const char* help, double first);
  TwoCounters counter(const char* name, const char* theirs, const char* help);
  TwoGauges gauge(const char* name, const char* theirs, const char* help);

  Metrics metrics_;
  MetricLabels labels_;

 public:
  TwoHistograms ttft, itl, tpot, e2e, queue, prefill, decode;
  TwoCounters prompt_tokens, output_tokens, preemptions, prefix_queries, prefix_hits;
  TwoGauges running, waiting, kv_usage;
  Gauge &kv_internal, &kv_external, &kv_waste, &running_peak;
  Counter &steps, &failed_steps, &restarts, &step_tokens, &disconnects, &refusals, &slow_readers,
      &log_lines_dropped;
  Counter &swapped, &kv_blocks_out, &kv_blocks_in, &kv_bytes_out, &kv_bytes_in, &tier_hits;
  Counter &disk_writes, &disk_reads, &disk_lost, &disk_hits;
  Gauge &tier_usage, &disk_usage, &connections, &unread_bytes;
  Gauge &waiting_tokens, &expected_wait, &ready, &max_sequences, &kv_blocks;
  Histogram& step_seconds;
  // With --slo.
  Gauge &slo_tokens, &slo_late, &step_predicted;
  Histogram& prediction_error;
  Counter &constraint_hits, &constraint_misses;
  Histogram& compile_seconds;
  Gauge& constraint_bytes;
  Gauge& response_bytes;

 private:
  std::atomic<int> outstanding_{0}, num_waiting_{0}, num_running_{0}, used_blocks_{0},
      failed_in_a_row_{0};
  std::atomic<int64_t> last_progress_{0};
  std::atomic<double> queue_estimate_{0};
  SchedulerStats last_;         // engine thread
  uint64_t last_restarts_ = 0;  // engine thread
  uint64_t last_learnt_ = 0;    // engine thread
  int most_running_ = 0;        // engine thread
  Time kv_use_at_{0};           // engine thread
  std::mutex expose_mutex_;
};

}  // namespace sluice
