// Computes K and V of tokens straight in the blocks that hold them, so that the host keeps nothing
// but tokens. For replays that begin in the middle of a run. One thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <set>
#include <span>
#include <tuple>
#include <vector>

#include "base/result.h"
#include "core/executor.h"
#include "core/executor_content.h"
#include "exec/executor_config.h"

namespace sluice {

// Runs one step alone; throws if it fails.
void run_alone(Executor& executor, const StepPlan& plan, const char* what);

// Blocks of the pool and the tokens whose K and V they hold: a hash of all tokens from the
// sequence's first on.
class BlockContents {
 public:
  BlockContents() = default;
  BlockContents(const ExecutorContent& content, int block_size);
  bool has(BlockId block, const BlockHash& tokens) const {
    return list_.contains({block, tokens.a, tokens.b});
  }

 private:
  std::set<std::tuple<BlockId, uint64_t, uint64_t>> list_;
};

class KvRestore {
 public:
  // `config` has the recorded sizes; content whose sizes check() accepts. Both outlive this, and so
  // does `there`: blocks that need not be computed.
  KvRestore(const ExecutorConfig& config,
            const ExecutorContent& content,
            const BlockContents& there);
  static Result<void> check(const ExecutorContent& content,
                            const ExecutorConfig& config,
                            int vocab);

  // Blocks that the executor needs behind its pool: positions may have no block there (those in
  // host memory, those outside a window), and the pool's unused blocks may be too few for them.
  int num_extra() const { return num_extra_; }

  // Opens slot 0's row, which whoever uses it afterwards opens again. Returns the number of
  // positions computed; throws if a step fails. `progress`: positions done and in all.
  uint64_t run(Executor& executor, const std::function<void(size_t, size_t)>& progress);

 private:
  size_t cell(int index, int group) const;
  void find_scratch();
  int first_row_to_compute(const HeldTokens& held) const;
  size_t set_table(const HeldTokens& held, StepPlan& plan);
  void compute(const HeldTokens& held, size_t pos, StepPlan& plan, Executor& executor);
  void move_out(const HeldTokens& held, Executor& executor);

  const ExecutorConfig& config_;
  const ExecutorContent& content_;
  const BlockContents& there_;
  int num_extra_ = 0;
  bool opened_ = false;
  std::vector<BlockId> scratch_;  // by cell: for positions that have no block in the pool
  std::vector<BlockId> table_;    // by cell: the slot's
  std::vector<Token> tokens_;     // whose K and V the table's blocks hold
};

}  // namespace sluice
