#include "server/meters.h"

#include <algorithm>
#include <cmath>

#include "base/log.h"

namespace sluice {

TwoHistograms Meters::histogram(const char* name,
                                const char* theirs,
                                const char* help,
                                double first) {
  std::vector<double> bounds = exponential_bounds(first, 2, 18);
  return {metrics_.histogram(name, help, bounds),
          metrics_.histogram(theirs, help, bounds, labels_)};
}

TwoCounters Meters::counter(const char* name, const char* theirs, const char* help) {
  return {metrics_.counter(name, help), metrics_.counter(theirs, help, labels_)};
}

TwoGauges Meters::gauge(const char* name, const char* theirs, const char* help) {
  return {metrics_.gauge(name, help), metrics_.gauge(theirs, help, labels_)};
}

Meters::Meters(const std::string& model)
    : labels_{{"model_name", model}},
      ttft(histogram("sluice_time_to_first_token_seconds",
                     "vllm:time_to_first_token_seconds",
                     "From arrival to the first token.",
                     1e-3)),
      itl(histogram("sluice_inter_token_latency_seconds",
                    "vllm:inter_token_latency_seconds",
                    "Between two tokens of a sequence.",
                    1e-4)),
      tpot(histogram("sluice_time_per_output_token_seconds",
                     "vllm:request_time_per_output_token_seconds",
                     "Mean time per token after the first, of a sequence.",
                     1e-4)),
      e2e(histogram("sluice_request_seconds",
                    "vllm:e2e_request_latency_seconds",
                    "From arrival to the last token.",
                    1e-3)),
      queue(histogram("sluice_queue_seconds",
                      "vllm:request_queue_time_seconds",
                      "From arrival to the first step.",
                      1e-4)),
      prefill(histogram("sluice_prefill_seconds",
                        "vllm:request_prefill_time_seconds",
                        "From the first step to the first token.",
                        1e-3)),
      decode(histogram("sluice_decode_seconds",
                       "vllm:request_decode_time_seconds",
                       "From the first token to the last.",
                       1e-3)),
      prompt_tokens(counter("sluice_prompt_tokens_total",
                            "vllm:prompt_tokens_total",
                            "Prompt tokens of finished requests.")),
      output_tokens(counter(
          "sluice_generation_tokens_total", "vllm:generation_tokens_total", "Tokens generated.")),
      preemptions(counter("sluice_preemptions_total",
                          "vllm:num_preemptions_total",
                          "Sequences put back for want of KV blocks.")),
      prefix_queries(counter("sluice_prefix_cache_queries_total",
                             "vllm:prefix_cache_queries_total",
                             "Prompt tokens looked up in the prefix cache.")),
      prefix_hits(counter("sluice_prefix_cache_hits_total",
                          "vllm:prefix_cache_hits_total",
                          "Prompt tokens found in the prefix cache.")),
      running(gauge("sluice_requests_running", "vllm:num_requests_running", "Sequences that run.")),
      waiting(
          gauge("sluice_requests_waiting", "vllm:num_requests_waiting", "Sequences that wait.")),
      kv_usage(gauge("sluice_kv_cache_usage_ratio",
                     "vllm:kv_cache_usage_perc",
                     "Share of the KV blocks in use; 1 is full.")),
      kv_internal(metrics_.gauge("sluice_kv_internal_fragmentation_ratio",
                                 "Share of the KV positions that sequences hold without a token.")),
      kv_external(metrics_.gauge("sluice_kv_external_fragmentation_ratio",
                                 "Share of the free KV blocks outside their largest run; 0 if any "
                                 "free block will do.")),
      kv_waste(metrics_.gauge("sluice_kv_waste_ratio",
                              "Share of the KV cache lost to both fragmentations.")),
      running_peak(metrics_.gauge("sluice_requests_running_peak",
                                  "The most sequences that ran at once, so far.")),
      steps(metrics_.counter("sluice_steps_total", "Steps computed.")),
      failed_steps(metrics_.counter("sluice_failed_steps_total",
                                    "Steps that failed on the device, and their requests.")),
      restarts(metrics_.counter("sluice_engine_restarts_total",
                                "Times that all requests failed by an exception in the engine.")),
      step_tokens(metrics_.counter("sluice_step_tokens_total", "Tokens computed in steps.")),
      disconnects(metrics_.counter("sluice_disconnects_total",
                                   "Requests whose client went away before the end.")),
      refusals(metrics_.counter("sluice_refusals_total", "Requests refused because of load.")),
      slow_readers(metrics_.counter("sluice_slow_readers_total",
                                    "Connections cut because their clients read too slowly.")),
      log_lines_dropped(metrics_.counter("sluice_log_lines_dropped_total",
                                         "Log lines lost because stderr took none.")),
      swapped(metrics_.counter("sluice_swapped_sequences_total",
                               "Preempted sequences whose KV went to host memory.")),
      kv_blocks_out(metrics_.counter("sluice_kv_blocks_out_total",
                                     "KV blocks that went out to a slower tier.")),
      kv_blocks_in(metrics_.counter("sluice_kv_blocks_in_total",
                                    "KV blocks that came in from a slower tier.")),
      kv_bytes_out(
          metrics_.counter("sluice_kv_bytes_out_total", "Bytes of the KV blocks that went out.")),
      kv_bytes_in(
          metrics_.counter("sluice_kv_bytes_in_total", "Bytes of the KV blocks that came in.")),
      tier_hits(metrics_.counter("sluice_tier_prefix_hits_total",
                                 "Prompt tokens whose KV came in from a slower tier.")),
      disk_writes(metrics_.counter("sluice_disk_blocks_written_total",
                                   "KV blocks that went to the disk tier.")),
      disk_reads(
          metrics_.counter("sluice_disk_blocks_read_total", "KV blocks that came from disk.")),
      disk_lost(metrics_.counter("sluice_disk_blocks_lost_total",
                                 "KV blocks that were not written to disk because it was behind or "
                                 "off, or not found whole there.")),
      disk_hits(metrics_.counter("sluice_disk_prefix_hits_total",
                                 "Prompt tokens whose KV came from disk.")),
      tier_usage(metrics_.gauge("sluice_tier_usage_ratio",
                                "Share of the places in host memory that hold a KV block.")),
      disk_usage(metrics_.gauge("sluice_disk_usage_ratio",
                                "Share of the places on disk that hold a KV block.")),
      connections(metrics_.gauge("sluice_connections", "Open connections.")),
      unread_bytes(
          metrics_.gauge("sluice_unread_bytes", "Bytes of answers that wait for clients to read.")),
      waiting_tokens(metrics_.gauge("sluice_waiting_prompt_tokens",
                                    "Prompt tokens of requests without a first token.")),
      expected_wait(metrics_.gauge("sluice_expected_queue_seconds",
                                   "How long a request that comes now may wait, from those before "
                                   "it.")),
      ready(metrics_.gauge("sluice_ready",
                           "1 while requests are taken; 0 while loading, draining "
                           "or failed.")),
      max_sequences(metrics_.gauge("sluice_max_sequences", "Sequences that can run at once.")),
      kv_blocks(metrics_.gauge("sluice_kv_blocks", "KV blocks of the pool.")),
      step_seconds(metrics_.histogram(
          "sluice_step_seconds", "Time of a step on the device.", exponential_bounds(1e-4, 2, 16))),
      slo_tokens(
          metrics_.gauge("sluice_slo_prompt_tokens",
                         "Prompt tokens that --slo allows beside decodes; the last choice.")),
      slo_late(metrics_.gauge("sluice_slo_late_ratio",
                              "Share of tokens later than --slo says, of the last 500 steps.")),
      step_predicted(metrics_.gauge("sluice_step_predicted_seconds",
                                    "How long the step planned last will take, with --slo.")),
      prediction_error(
          metrics_.histogram("sluice_step_prediction_error_ratio",
                             "How far the predicted time of a step was off, of the time it took.",
                             exponential_bounds(1.0 / 256, 2, 10))),
      constraint_hits(metrics_.counter("sluice_constraint_cache_hits_total",
                                       "Constraints that were compiled already.")),
      constraint_misses(metrics_.counter("sluice_constraint_cache_misses_total",
                                         "Constraints that had to be compiled.")),
      compile_seconds(metrics_.histogram("sluice_constraint_compile_seconds",
                                         "Time to compile a constraint, or to refuse it.",
                                         exponential_bounds(1e-4, 2, 13))),
      constraint_bytes(metrics_.gauge("sluice_constraint_cache_bytes",
                                      "Memory of the compiled constraints that are kept.")),
      response_bytes(metrics_.gauge("sluice_stored_response_bytes",
                                    "Memory of the answers of /v1/responses that are kept.")) {}

std::string Meters::expose() {
  std::lock_guard lock(expose_mutex_);  // counted once by two that ask at the same time
  log_lines_dropped.add(static_cast<double>(log_dropped()) - log_lines_dropped.value());
  return metrics_.expose();
}

void Meters::on_ready(const SchedulerConfig& c) {
  max_sequences.set(c.max_seqs);
  kv_blocks.set(c.num_blocks);
  MetricLabels labels = labels_;
  labels.emplace_back("block_size", std::to_string(c.block_size));
  labels.emplace_back("num_gpu_blocks", std::to_string(c.num_blocks));
  labels.emplace_back("enable_prefix_caching", c.prefix_cache ? "True" : "False");
  metrics_.gauge("vllm:cache_config_info", "Sizes of the KV cache, as labels.", labels).set(1);
}

void Meters::on_kv_events(const KvPublisher::Stats& totals) {
  auto count = [&](const char* name, const char* help, uint64_t total) {
    Counter& c = metrics_.counter(name, help);
    c.add(static_cast<double>(total) - c.value());
  };
  count("sluice_kv_events_total", "Blocks told of in KV events.", totals.events);
  count("sluice_kv_events_dropped_total",
        "Changes of the prefix caches that were not published: a snapshot followed.",
        totals.dropped);
  count("sluice_kv_event_snapshots_total", "Times that all that is cached was published.",
        totals.snapshots);
}

void Meters::on_kv_transfer(const KvTransfer::Stats& t) {
  auto count = [&](const char* name, const char* help, double total,
                   const MetricLabels& labels = {}) {
    Counter& c = metrics_.counter(name, help, labels);
    c.add(total - c.value());
  };
  auto gauge = [&](const char* name, const char* help, double value) {
    metrics_.gauge(name, help).set(value);
  };
  gauge("sluice_kv_transfer_leases", "Prompts whose KV blocks other servers may fetch.",
        static_cast<double>(t.leases.leases));
  gauge("sluice_kv_transfer_places",
        "Places in host memory that leases hold, or that wait for blocks of others.",
        static_cast<double>(t.leases.places) + static_cast<double>(t.fetched.places));
  count("sluice_kv_transfer_leases_total", "Leases that were given.",
        static_cast<double>(t.leases.opened));
  count("sluice_kv_transfer_expired_total", "Leases that nobody gave back in time.",
        static_cast<double>(t.leases.expired));
  count("sluice_kv_transfer_sent_bytes_total", "Bytes of KV blocks that were sent.",
        static_cast<double>(t.sent.bytes));
  count("sluice_kv_transfer_prefixes_total", "Cached prefixes that other servers asked for.",
        static_cast<double>(t.sent.prefixes));
  count("sluice_kv_transfer_refused_total", "Connections for KV blocks that were ended.",
        static_cast<double>(t.sent.refused));
  constexpr const char* kFetches = "sluice_kv_transfer_fetches_total";
  constexpr const char* kHelp = "Prompts whose KV blocks were fetched: whole, in part, or not.";
  count(kFetches, kHelp, static_cast<double>(t.fetched.whole), {{"result", "whole"}});
  count(kFetches, kHelp, static_cast<double>(t.fetched.part), {{"result", "part"}});
  count(kFetches, kHelp, static_cast<double>(t.fetched.failed), {{"result", "failed"}});
  count("sluice_kv_transfer_received_bytes_total", "Bytes of KV blocks that were fetched.",
        static_cast<double>(t.fetched.bytes));
  count("sluice_kv_transfer_seconds_total", "Time of all fetches.", t.fetched.seconds);
}

void Meters::on_step(const StepReport& r, Time now) {
  const SchedulerStats& s = r.stats;
  running.set(s.num_running);
  waiting.set(s.num_waiting);
  most_running_ = std::max(most_running_, s.num_running);
  running_peak.set(most_running_);
  num_waiting_.store(s.num_waiting, std::memory_order_relaxed);
  num_running_.store(s.num_running, std::memory_order_relaxed);
  used_blocks_.store(s.total_blocks - s.available_blocks, std::memory_order_relaxed);
  if (s.total_blocks > 0)
    kv_usage.set(1.0 - static_cast<double>(s.available_blocks) / s.total_blocks);
  preemptions.add(static_cast<double>(s.num_preemptions - last_.num_preemptions));
  prefix_queries.add(static_cast<double>(s.prefix_queries - last_.prefix_queries));
  prefix_hits.add(static_cast<double>(s.prefix_hits - last_.prefix_hits));
  const TierStats &t = s.tiers, &before = last_.tiers;
  swapped.add(static_cast<double>(t.num_swapped - before.num_swapped));
  kv_blocks_out.add(static_cast<double>(t.blocks_out - before.blocks_out));
  kv_blocks_in.add(static_cast<double>(t.blocks_in - before.blocks_in));
  kv_bytes_out.add(static_cast<double>(t.bytes_out() - before.bytes_out()));
  kv_bytes_in.add(static_cast<double>(t.bytes_in() - before.bytes_in()));
  tier_hits.add(static_cast<double>(t.prefix_hits - before.prefix_hits));
  if (t.total_places > 0)
    tier_usage.set(static_cast<double>(t.used_places) / static_cast<double>(t.total_places));
  disk_writes.add(static_cast<double>(t.disk_writes - before.disk_writes));
  disk_reads.add(static_cast<double>(t.disk_reads - before.disk_reads));
  disk_lost.add(static_cast<double>(t.disk_lost - before.disk_lost));
  disk_hits.add(static_cast<double>(t.disk_hits - before.disk_hits));
  if (t.disk_places > 0)
    disk_usage.set(static_cast<double>(t.used_disk_places) / static_cast<double>(t.disk_places));
  if (s.slo.num_learnt != last_learnt_) {
    last_learnt_ = s.slo.num_learnt;
    slo_tokens.set(s.slo.prompt_tokens);
    slo_late.set(s.slo.late);
    step_predicted.set(s.slo.predicted);
    if (s.slo.last_predicted > 0)
      prediction_error.observe(std::fabs(s.slo.last_predicted - s.slo.last_seconds) /
                               s.slo.last_seconds);
  }
  last_ = s;
  restarts.add(static_cast<double>(r.num_restarts - last_restarts_));
  last_restarts_ = r.num_restarts;
  if (r.launched) step_tokens.add(r.num_tokens);
  if (!r.completed) return;
  steps.add();
  if (r.failed) failed_steps.add();
  failed_in_a_row_.store(r.failed ? failed_in_a_row() + 1 : 0, std::memory_order_relaxed);
  step_seconds.observe(seconds(r.end - r.begin));
  last_progress_.store(now.count(), std::memory_order_relaxed);
}

// Ten times a second, and whenever the last sequence has ended.
bool Meters::wants_kv_use(const StepReport& r, Time now) {
  if (r.stats.num_running > 0 && kv_use_at_ != Time{0} &&
      now - kv_use_at_ < std::chrono::milliseconds(100))
    return false;
  kv_use_at_ = now;
  return true;
}

void Meters::on_kv_use(const KvUse& use) {
  kv_internal.set(use.internal_fragmentation());
  kv_external.set(use.external_fragmentation());
  kv_waste.set(use.waste());
}

void Meters::on_finish(const Event& e, int num_prompt, int num_output, bool first_choice) {
  const SeqTiming& t = e.timing;
  metrics_
      .counter("sluice_requests_finished_total", "Sequences that ended, by reason.",
               {{"reason", finish_name(e.finish)}})
      .add();
  if (e.finish == Finish::stop || e.finish == Finish::length) {
    MetricLabels labels = labels_;
    labels.emplace_back("finished_reason", finish_name(e.finish));
    metrics_.counter("vllm:request_success_total", "Sequences that ended well.", labels).add();
  }
  if (first_choice) prompt_tokens.add(num_prompt);
  if (t.first_token.count() == 0) return;
  double waited = seconds(t.first_scheduled - t.arrival);
  queue.observe(waited);
  double old = queue_estimate_.load(std::memory_order_relaxed);
  queue_estimate_.store(old + (waited - old) / 8, std::memory_order_relaxed);
  prefill.observe(seconds(t.first_token - t.first_scheduled));
  decode.observe(seconds(t.last_token - t.first_token));
  e2e.observe(seconds(t.finish - t.arrival));
  if (num_output > 1) tpot.observe(seconds(t.last_token - t.first_token) / (num_output - 1));
}

void Meters::on_response(int status) {
  metrics_
      .counter("sluice_http_responses_total", "HTTP responses by status.",
               {{"code", std::to_string(status)}})
      .add();
}

void Meters::on_constrained(const char* kind) {
  metrics_
      .counter("sluice_constrained_requests_total",
               "Requests whose output a constraint limits, by its kind.", {{"kind", kind}})
      .add();
}

void Meters::on_submit(Time now) {
  if (outstanding_.fetch_add(1) == 0) last_progress_.store(now.count(), std::memory_order_relaxed);
}

double Meters::stalled(Time now) const {
  if (outstanding_.load() == 0) return 0;
  return std::max(seconds(now - Time(last_progress_.load(std::memory_order_relaxed))), 0.0);
}

}  // namespace sluice
