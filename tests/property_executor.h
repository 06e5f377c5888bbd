// What the property tests put around an executor: all that goes through it is encoded and decoded
// on the way, and blocks that are free are overwritten.
#pragma once

#include <map>
#include <mutex>
#include <vector>

#include "core/executor.h"
#include "core/plan_codec.h"
#include "core/scheduler.h"
#include "exec/kv_cache.h"

namespace sluice {

// All that went into an executor and came out of it, in order.
struct Recorded {
  std::vector<Bytes> calls;         // plans and results
  std::vector<bool> launches;       // which of them are plans
  std::map<uint64_t, Bytes> masks;  // by step
};

// Passes plans, masks and results through their encoding, and checks that nothing is lost. Keeps
// what the steps in flight read: a block may be free while one that was launched still has to move
// it.
class EncodingExecutor final : public Executor {
 public:
  explicit EncodingExecutor(Executor& inner) : inner_(inner) {}
  void launch(const StepPlan& plan) override;
  void masks(StepMasks masks) override;  // on a thread of the masks
  const StepResult& wait() override;
  const std::map<TransferId, Transfer>& moving() const { return moving_; }
  // When all steps have come back.
  const Recorded& recorded() const { return recorded_; }

 private:
  Executor& inner_;
  Recorded recorded_;
  std::mutex mutex_;  // of its masks
  std::map<TransferId, Transfer> moving_;
  StepResult result_;
  Bytes bytes_;
};

// Overwrites every free block with large numbers, not NaN: kernels may multiply what lies behind
// the last position of a block by zero. Of free blocks the steps in flight name those alone that
// they copy or move out.
void poison_free_blocks(const Scheduler& scheduler,
                        const std::map<TransferId, Transfer>& moving,
                        const KvCache& cache);

// The same calls give the same results on another executor, byte for byte.
void replay(const Recorded& run, Executor& fresh);

}  // namespace sluice
