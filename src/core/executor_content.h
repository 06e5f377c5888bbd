// What an executor holds for a scheduler, as tokens: rows, and which positions are in which blocks.
// K and V depend on nothing else, so a fresh executor can be given the same. Pure; any thread. For
// replays that begin in the middle of a run.
#pragma once

#include <vector>

#include "base/result.h"
#include "core/scheduler.h"
#include "core/step_plan.h"

namespace sluice {

// Block `index` of a sequence in one cache group, in the pool or at a place in host memory.
struct HeldBlock {
  int index = 0, group = 0;
  BlockId block = kNullBlock;  // < 0: the place -block
  bool operator==(const HeldBlock&) const = default;
};

// The positions of a sequence from its first on, and the blocks that hold some of them.
struct HeldTokens {
  std::vector<Token> tokens;
  std::vector<HeldBlock> blocks;
};

struct ExecutorContent {
  StepPlan rows;                 // opens the rows of all running sequences, with their tables
  std::vector<HeldTokens> held;  // by their tokens: neighbours have the same beginning
  // Cached blocks that are needed, whose beginning is no longer cached; < 0: places.
  std::vector<BlockId> unknown;
};

// Cached blocks that will be read, by their ids.
struct NeededBlocks {
  std::vector<bool> blocks, places;
};

// Always lists the blocks of running and swapped sequences, and of cached blocks those that are
// needed. 422: the executor holds what tokens do not say (blocks on disk, mapped pages, sums of
// prompts that are pooled).
Result<ExecutorContent> content_of(const Scheduler& scheduler, const NeededBlocks& needed);

// For a plan that is in flight in this state, and an executor that was given content_of() it:
// drops the transfers whose targets have their content already.
void keep_needed_transfers(const Scheduler& scheduler, StepPlan& plan);

// Of a row that was open when `scheduler` was in this state: the token at a position, where it is
// known.
Token known_token(const Scheduler& scheduler, Slot slot, uint32_t epoch, int pos);

}  // namespace sluice
