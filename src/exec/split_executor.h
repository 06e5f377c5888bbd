// Runs plans on a model in two parts: the first layers on the host, the rest by another executor,
// which begins with the residual stream that the host's layers leave. Both parts have every block,
// each with the planes of its own layers, and do the same table edits and copies. One step is in
// flight at a time: the host computes its layers on a thread of its own after launch(), the rest
// follows in wait(). Engine thread, but for masks().
#pragma once

#include <condition_variable>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "base/clock.h"
#include "core/executor.h"
#include "exec/executor_config.h"
#include "exec/host_batch.h"
#include "exec/kv_cache.h"
#include "exec/plan_reader.h"
#include "model/model.h"

namespace sluice {

class SplitExecutor final : public Executor {
 public:
  // `model` has the first layers alone, `host` their cache groups and KV type. The residual stream
  // goes to `states`, [max_step_tokens, hidden], which is ExecutorConfig::states of `rest`.
  // Everything that is given by reference outlives the executor.
  SplitExecutor(Backend& backend,
                Model& model,
                ExecutorConfig host,
                const Clock& clock,
                float* states,
                Executor& rest);
  ~SplitExecutor() override;

  void launch(const StepPlan& plan) override;
  void masks(StepMasks masks) override;
  const StepResult& wait() override;

  const KvCache& kv_cache() const { return cache_; }
  // Bytes that the host's part allocates besides weights and KV cache, `states` included.
  static size_t workspace_bytes(const Model& model, const ExecutorConfig& host);

 private:
  enum class Phase : uint8_t { idle, planned, computed, stop };
  void host_main();
  void compute();
  void copy_states(int rows);

  Backend& backend_;
  Model& model_;
  ExecutorConfig config_;
  const Clock& clock_;
  float* states_;
  Executor& rest_;

  // The host's thread, and before and after it the engine's.
  KvCache cache_;
  PlanReader reader_;
  HostBatch batch_;
  StepWork work_;
  StepPlan plan_;
  std::string failure_;
  Time begin_{0};

  StepResult result_;  // engine thread

  std::mutex mutex_;
  std::condition_variable planned_, computed_;
  Phase phase_ = Phase::idle;
  uint64_t step_ = 0;               // in flight
  bool rest_launched_ = false;      // of that step
  std::optional<StepMasks> early_;  // its masks, until the rest is launched
  std::thread thread_;
};

}  // namespace sluice
