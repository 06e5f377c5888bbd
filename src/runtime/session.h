// A model ready to take requests: checkpoint, tokeniser, backend, executor and engine, assembled
// from options. Refuses before it loads when memory does not suffice. Made and destroyed by one
// thread; engine() and tokenizer() may then be used by any.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "backend/device.h"
#include "backend/traced_backend.h"
#include "base/clock.h"
#include "base/keyed_hash.h"
#include "base/result.h"
#include "base/trace.h"
#include "core/step_cost.h"
#include "engine/engine.h"
#include "engine/flight_recorder.h"
#include "exec/device_executor.h"
#include "exec/disk_tier.h"
#include "exec/model_executor.h"
#include "exec/swap_rates.h"
#include "load/open.h"
#include "model/model.h"
#include "runtime/ledger.h"
#include "runtime/options.h"
#include "runtime/sampling_defaults.h"
#include "runtime/step_log.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace sluice {

class Session {
 public:
  // `progress` is called while weights load.
  static Result<std::unique_ptr<Session>> open(const EngineOptions& options,
                                               std::function<void(size_t, size_t)> progress = {});
  // One whose steps compute nothing and take the time that `cost` says (simulated_model.h), on the
  // CPU. No weights are loaded.
  static Result<std::unique_ptr<Session>> simulate(const EngineOptions& options,
                                                   const StepCost& cost);
  ~Session();

  Engine& engine() { return *engine_; }
  const Clock& clock() const { return clock_; }
  const Model& model() const { return *model_; }
  // Sizes of the whole model; model() may be the part of it on a GPU.
  size_t weight_bytes() const;
  size_t step_bytes() const;  // Model::step_bytes()
  bool is_simulated() const;
  const Backend& backend() const { return *backend_; }
  // Null on the CPU. Where the CPU has layers too: of the others.
  DeviceExecutor* device_executor() {
    return device_ ? static_cast<DeviceExecutor*>(executor_.get()) : nullptr;
  }
  // Null unless the first layers run on the CPU and the others on a GPU.
  const Backend* host_backend() const;
  const Ledger& ledger() const { return ledger_; }
  const EngineOptions& options() const { return options_; }
  // Null for random weights, which have no vocabulary.
  const Tokenizer* tokenizer() const { return tokenizer_.get(); }
  const ChatTemplate* chat_template() const { return template_ ? &*template_ : nullptr; }
  // For requests that do not say how to sample.
  const SamplingDefaults& sampling_defaults() const { return sampling_; }
  // With --prefix-disk: what makes tenants' ids last across restarts.
  const std::optional<HashKey>& tenant_key() const { return tenant_key_; }
  // Host memory beside the pool, by place.
  const HostTier& host_tier() const;
  // What another process must agree on for its KV blocks to be ours: 64 hex digits.
  std::string shared_content() const;
  // Why --device auto did not take a GPU; empty: it did, or nothing suggests that one is here.
  const std::string& why_no_gpu() const { return why_no_gpu_; }
  // Seconds from open() to ready, and how many bytes of weights were loaded.
  double load_seconds() const { return load_seconds_; }

  // With --preempt swap: how fast blocks move, measured at the start.
  const std::optional<CopyRates>& copy_rates() const { return copy_rates_; }

  // With --record, else null.
  FlightRecorder* flight_recorder() { return recorder_.get(); }

  // A track of the trace for a thread of the front end; null: nobody traces.
  TraceTrack* trace_track(std::string name) {
    return trace_ ? trace_->track(std::move(name)) : nullptr;
  }
  // Writes the trace file, once; the destructor does it where nobody has.
  Result<void> write_trace();
  // Step reports since the last call, for benchmarks. Kept only after keep_reports().
  void keep_reports() { keep_reports_.store(true); }
  std::vector<StepReport> take_reports();

 private:
  Session() = default;
  Result<std::shared_ptr<const TokenText>> load_text();
  Result<void> open_backend(const ModelShape& shape);
  Result<void> open_cpu(std::unique_ptr<Backend>& backend);
  DeviceMemory device_memory() const;
  int host_layers() const { return ledger_.host.layers; }
  Executor& open_executor(ExecutorConfig config);
  Result<void> size_pool();
  ExecutorConfig executor_config(const Scheduler& scheduler) const;
  void measure_swap();
  std::vector<StoredBlock> open_disk();
  Result<void> open_recorder();
  static Result<std::unique_ptr<Session>> open_as(const EngineOptions& options,
                                                  std::function<void(size_t, size_t)> progress,
                                                  const StepCost* simulated);
  Result<std::unique_ptr<Model>> load_weights(std::function<void(size_t, size_t)> progress);
  Result<void> load_stream(const LoadOptions& load, const ModelShape& shape);
  Result<std::unique_ptr<Model>> load_simulated(const StepCost& cost);
  Result<void> start(std::function<void(size_t, size_t)> progress, const StepCost* simulated);
  void observe(const StepReport& report, const StepPlan& plan, const Scheduler& scheduler);

  EngineOptions options_;
  RealClock clock_;
  std::unique_ptr<TracedBackend> traced_;  // backend_ with a span per op, for --trace on the CPU
  std::unique_ptr<Trace> trace_;           // stays while the engine thread may write to its tracks
  bool trace_written_ = false;
  TraceTrack* engine_track_ = nullptr;
  TraceTrack* device_track_ = nullptr;
  std::optional<StepLog> step_log_;  // engine thread
  Ledger ledger_;
  SamplingDefaults sampling_;
  std::string why_no_gpu_;
  std::unique_ptr<Checkpoint> checkpoint_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::optional<ChatTemplate> template_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Model> model_;
  struct Split;
  std::unique_ptr<Split> split_;  // with layers on the CPU and on a GPU: the CPU's part
  Device* device_ = nullptr;      // backend_, where it is one
  std::unique_ptr<DiskTier> disk_;
  std::optional<HashKey> tenant_key_;
  std::unique_ptr<Executor> executor_;
  std::unique_ptr<FlightRecorder> recorder_;
  std::unique_ptr<MaskRecorder> mask_recorder_;
  std::unique_ptr<Engine> engine_;
  std::optional<CopyRates> copy_rates_;
  double load_seconds_ = 0;
  std::atomic<bool> keep_reports_{false};
  std::mutex reports_mutex_;
  std::vector<StepReport> reports_;
};

}  // namespace sluice
