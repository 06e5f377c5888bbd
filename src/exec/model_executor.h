// Runs plans on a model: mirrors rows and block tables by slot, builds the ragged batch, runs the
// forward pass, samples. The engine thread calls launch() and wait(), any thread masks();
// everything else happens on the device thread, which owns backend, model and cache while it lives.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "core/executor.h"
#include "exec/disk_tier.h"
#include "exec/executor_config.h"
#include "exec/host_batch.h"
#include "exec/host_tier.h"
#include "exec/kv_cache.h"
#include "exec/plan_reader.h"
#include "exec/pooler.h"
#include "exec/sampler.h"
#include "model/model.h"

namespace sluice {

class ModelExecutor final : public Executor, private KvWatch {
 public:
  // `clock` stamps begin and end of steps. Backend, model and clock outlive the executor.
  // `disk` holds config.num_disk places and outlives it too; null: none.
  ModelExecutor(Backend& backend,
                Model& model,
                ExecutorConfig config,
                const Clock& clock,
                DiskTier* disk = nullptr);
  ~ModelExecutor() override;

  void launch(const StepPlan& plan) override;
  void masks(StepMasks masks) override;
  const StepResult& wait() override;

  size_t kv_bytes() const { return cache_.bytes(); }
  // Places that no transfer names may be read and written by any thread.
  const HostTier& host_tier() const { return tier_; }
  const KvCache& kv_cache() const { return cache_; }
  // Bytes this executor allocates besides weights and the KV pool.
  static size_t workspace_bytes(const Model& model, const ExecutorConfig& config);

 private:
  struct Job {
    StepPlan plan;
    StepResult result;
    uint64_t failures_seen = 0;  // by the engine, when it planned this step
    uint64_t num_failures = 0;   // num_failures_ after it
  };

  void device_main();
  void run(Job& job);
  void apply_deltas(const StepPlan& plan);
  void move_blocks(const StepPlan& plan);
  void move_disk(const StepPlan& plan, const Transfer& transfer);
  void collect_disk(const StepPlan& plan, StepResult& result);
  void forward(const BatchView& batch, const StepPlan& plan);
  void wrote(int layer) override;
  void send_planes(size_t end);
  void compute_outputs(StepResult& result);
  void sample_turn(uint64_t step, size_t at, size_t num);
  // Outputs first + list[k] for k < num; without a list, first + k.
  struct SampledRows {
    ModelExecutor* self;
    size_t first, num;
    const size_t* list = nullptr;
  };
  void sample_rows(SampledRows rows);
  RowState& row_of(size_t output) { return rows_[static_cast<size_t>(work_.outputs[output].slot)]; }
  void take_masks(uint64_t step);
  void set_masks(uint64_t step, size_t first, std::span<const size_t> outputs);
  void compute_pooled(StepResult& result);
  void sample(size_t index, float* logits);
  const RowState& sampling(const OutputRow& o) const { return rows_[static_cast<size_t>(o.slot)]; }

  Backend& backend_;
  Model& model_;
  ExecutorConfig config_;
  const Clock& clock_;
  KvCache cache_;
  int logits_per_turn_;
  HostTier tier_;
  DiskTier* disk_;
  Buffer logits_;  // [logits_per_turn_, vocab], or hidden states

  // Device thread only.
  std::vector<RowState> rows_;  // by slot
  HostBatch batch_;
  PlanReader reader_;
  StepWork work_;
  std::vector<int32_t> out_rows_;
  Pooler pooler_;
  std::vector<Token> sampled_;                 // by output
  std::vector<std::vector<TopLogprob>> tops_;  // by output of the current turn
  std::vector<Best> best_;                     // the same, of rows that are plainly greedy
  std::vector<SampleScratch> scratch_;         // by output of the current turn
  std::vector<size_t> turn_;                   // outputs of a turn with masks, those without first
  StepMasks masks_;                            // of the step at hand, if has_masks_
  bool has_masks_ = false;
  uint64_t num_failures_ = 0;  // steps that failed by themselves
  uint64_t sending_step_ = 0;
  std::vector<Transfer> sends_;  // of that step
  size_t num_sent_planes_ = 0;   // of each

  // Hand-over between the two threads.
  std::mutex mutex_;
  std::condition_variable launched_, finished_, masks_came_;
  std::vector<StepMasks> arrived_;  // of steps that have not asked for them yet
  uint64_t next_step_ = 0;          // the one behind the last that is done
  std::vector<std::unique_ptr<Job>> idle_, queue_, done_;  // queue_, done_: oldest first
  std::unique_ptr<Job> returned_;                          // the result that wait() handed out
  uint64_t failures_seen_ = 0;                             // engine thread
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace sluice
