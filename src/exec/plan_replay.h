// Recorded plans through a fresh executor: its results must be those recorded, byte for byte. A
// segment in the middle of a run begins with rows and blocks that are not in it as K and V, only as
// tokens: the executor computes them first, in the blocks that hold them (kv_restore.h). A segment
// that begins where the one before it ended goes on with what is there; if records are missing in
// between, the blocks that differ are computed again. There is never more than one executor, since
// a device has one. One thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/executor.h"
#include "core/executor_content.h"
#include "core/recording.h"
#include "exec/executor_config.h"
#include "exec/kv_restore.h"

namespace sluice {

class Backend;

using MakeExecutor = std::function<std::unique_ptr<Executor>(const ExecutorConfig& config)>;

class PlanReplay {
 public:
  // `config` as the recorded executor had it, without a disk. What `make` uses outlives this.
  PlanReplay(MakeExecutor make, const ModelShape& shape, ExecutorConfig config);
  // On the CPU.
  PlanReplay(Backend& backend, Model& model, ExecutorConfig config, const Clock& clock);
  ~PlanReplay();
  PlanReplay(const PlanReplay&) = delete;
  PlanReplay& operator=(const PlanReplay&) = delete;

  // Of every segment that will follow the first one, before that is run: what they read is kept.
  void expect(std::span<const std::byte> segment);
  // A segment with text whose plans replay_schedule() found equal; segments come in their order,
  // and some may be missing. 422: see content_of().
  Result<void> run(std::span<const std::byte> segment);

  // Told while K and V are computed again: positions so far, and in all.
  std::function<void(size_t, size_t)> progress;

  uint64_t num_results = 0, num_tokens = 0;
  uint64_t num_restored = 0;  // positions whose K and V were computed again
  int num_unknown = 0;        // cached blocks that could not be
  std::string difference;     // the first, in words; empty: none

 private:
  struct Launched {
    uint64_t step = 0;
    bool masked = false;  // and its masks have not come
    bool partly = false;  // launched before a beginning: not all of its rows are known
    std::vector<Slice> slices;
  };
  void drain();
  Result<void> begin(std::span<const std::byte> segment);
  Result<void> find_end(std::span<const std::byte> segment);
  void make_early(const Scheduler& scheduler, StepPlan& plan);
  Result<void> restore(const ExecutorContent& content);
  void open(int num_extra);
  Result<void> launch(const StepPlan& plan, bool partly);
  Result<void> take(const Record& record);
  Result<void> take_result(const RecordedResult& recorded);
  void compare(const StepResult& was, const StepResult& is);
  void compare_known(const StepResult& was, const StepResult& is);

  MakeExecutor make_;
  int vocab_;
  ExecutorConfig config_;
  std::unique_ptr<Executor> executor_;          // from the first segment's beginning on
  int num_extra_ = 0;                           // blocks behind its pool
  Bytes end_state_;                             // of the scheduler, behind the last segment
  BlockContents there_;                         // then
  NeededBlocks needed_;                         // that segments read
  std::vector<Launched> steps_;                 // in flight
  std::set<std::pair<Slot, uint32_t>> known_;   // rows of the state it began with, by epoch
  std::set<std::pair<Slot, uint32_t>> opened_;  // and those that plans in flight opened
};

}  // namespace sluice
