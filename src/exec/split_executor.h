// Runs plans on a model in two parts: the first layers on the host, the rest by another executor,
// which begins with the residual stream that the host's layers leave. Both parts have every block,
// each with the planes of its own layers, and do the same table edits and copies. One step is in
// flight at a time: the host computes its layers on a thread of its own after launch(), the rest
// follows in wait(). Where a step has many rows of prompts, the device computes the host's layers
// for these too (layer_stream.h), while the host has the other rows. Engine thread, but for
// masks().
#pragma once

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "core/executor.h"
#include "exec/executor_config.h"
#include "exec/host_batch.h"
#include "exec/kv_cache.h"
#include "exec/layer_stream.h"
#include "exec/plan_reader.h"
#include "model/model.h"

namespace sluice {

class SplitExecutor final : public Executor {
 public:
  // `model` has the first layers alone, `host` their cache groups and KV type. The residual stream
  // goes to `states`, [max_step_tokens, hidden], which is ExecutorConfig::states of `rest`.
  // `stream` has the same layers, or is null. Everything that is given by reference or pointer
  // outlives the executor.
  SplitExecutor(Backend& backend,
                Model& model,
                ExecutorConfig host,
                const Clock& clock,
                float* states,
                Executor& rest,
                LayerStream* stream = nullptr);
  ~SplitExecutor() override;

  void launch(const StepPlan& plan) override;
  void masks(StepMasks masks) override;
  const StepResult& wait() override;

  const KvCache& kv_cache() const { return cache_; }
  // A step with at least so many rows of prompts streams them; 0: none does. The first step
  // measures it.
  int streams_from() const { return streams_from_.load(); }
  // Replaces what would be measured; call it before the first step.
  void set_streams_from(int rows) { asked_streams_from_.store(rows); }
  uint64_t num_streamed_rows() const { return num_streamed_rows_.load(); }
  // Bytes that the host's part allocates besides weights and KV cache, `states` included.
  static size_t workspace_bytes(const Model& model, const ExecutorConfig& host);

 private:
  enum class Phase : uint8_t { idle, planned, streams, computed, stop };
  void host_main();
  void compute();
  void run_rest();
  std::string run_streamed();
  void drop_streamed() noexcept;
  void choose_threshold();
  void measure();
  bool choose_streamed();
  void embed_streamed();
  void compute_rows();
  void compute_turn();
  void add_to_turn(const Slice& slice, int row, int first, int count);
  void copy_states(int from, int to, int rows);
  void set_phase(Phase phase);

  Backend& backend_;
  Model& model_;
  ExecutorConfig config_;
  const Clock& clock_;
  float* states_;
  Executor& rest_;
  LayerStream* stream_;
  int max_rows_;  // that the host computes at once

  // The host's thread, and before and after it the engine's.
  KvCache cache_;
  PlanReader reader_;
  HostBatch batch_;
  StepWork work_;
  StepPlan plan_;
  std::vector<bool> streamed_;  // by slice of the plan
  bool stores_ = false;         // K and V of the last step are still to be stored
  // Slices of a turn on the host, or parts of them; where their states go.
  struct Turn {
    std::vector<Slice> slices;
    std::vector<SliceView> views;
    std::vector<int> state_rows;
    int num_rows = 0, num_decode = 0;
    void clear() {
      slices.clear(), views.clear(), state_rows.clear();
      num_rows = num_decode = 0;
    }
  } turn_;
  std::string failure_;
  Time begin_{0};

  StepResult result_;  // engine thread

  std::mutex mutex_;
  std::condition_variable planned_, computed_;
  Phase phase_ = Phase::idle;
  uint64_t step_ = 0;               // in flight
  bool rest_launched_ = false;      // of that step
  std::optional<StepMasks> early_;  // its masks, until the rest is launched
  std::atomic<int> streams_from_{0}, asked_streams_from_{0};
  std::atomic<uint64_t> num_streamed_rows_{0};
  std::thread thread_;
};

}  // namespace sluice
