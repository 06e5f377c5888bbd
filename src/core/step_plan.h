// One step as plain data: what the scheduler decides, what the executor answers.
// Plans carry deltas: the executor mirrors rows and block tables by slot.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "base/token.h"
#include "core/request.h"

namespace sluice {

struct SeqId {
  RequestId req = 0;
  uint16_t choice = 0;
  auto operator<=>(const SeqId&) const = default;
};

using Slot = uint32_t;    // a sequence's stable row on the executor
using BlockId = int32_t;  // block 0 is the null block: never allocated, pads tables
inline constexpr BlockId kNullBlock = 0;
// Layers whose K and V share blocks form a cache group; a sequence has one block table for each.
inline constexpr int kMaxCacheGroups = 16;

enum class Want : uint8_t {
  none,   // K and V only: a prefill chunk that is not the last
  last,   // sample after the last position
  all,    // score every position against its successor (prompt logprobs), sample after the last
  score,  // score every position, sample nothing: a chunk that is not the last
  add,    // add every position's hidden state to the row's sum (pooling: mean), not the last chunk
  pool,   // the row's pooled vector, with the positions of this slice: its last chunk
};

// Opens or closes a row: once per admission, not per step.
struct RowOp {
  enum Kind : uint8_t { open, close } kind = open;
  SeqId id;
  Slot slot = 0;
  uint32_t epoch = 0;
  uint32_t num_prompt = 0;  // positions [0, num_prompt) are prompt
  // What sampling looks back on, in StepPlan::tokens: the prompt if penalties need it, then the
  // output so far (after a preemption).
  uint32_t history_at = 0, num_history = 0, num_history_prompt = 0;
  std::shared_ptr<const SamplingSpec> sampling;
  Pooling pooling = Pooling::none;
};

struct TableEdit {
  Slot slot = 0;
  uint32_t index = 0;
  BlockId block = kNullBlock;
  uint8_t group = 0;
};

struct Slice {
  Slot slot = 0;
  uint32_t epoch = 0;
  int32_t pos = 0, count = 0;
  Want want = Want::none;
  bool chained = false;   // the (single) input token is the row's last sampled one, on the device
  uint32_t token_at = 0;  // in StepPlan::tokens; with `all`/`score` one more token follows: the
                          // successor of the last position, when it is known
};

struct Transfer {
  enum Kind : uint8_t { copy } kind = copy;  // block `from` to block `to`, before the step computes
  BlockId from = kNullBlock, to = kNullBlock;
};

struct StepPlan {
  uint64_t step = 0;
  int32_t num_tokens = 0;
  int32_t num_decode = 0;  // slices [0, num_decode) have count 1
  std::vector<RowOp> rows;
  std::vector<TableEdit> edits;
  std::vector<Slice> slices;
  std::vector<Token> tokens;
  std::vector<Transfer> transfers;

  bool empty() const { return slices.empty() && rows.empty() && edits.empty(); }
  void clear() {
    num_tokens = num_decode = 0;
    rows.clear(), edits.clear(), slices.clear(), tokens.clear(), transfers.clear();
  }
};

// One scored token. For a scored position the first entry is the token that is there (prompt) or
// was sampled; the most likely ones follow, most likely first.
struct TopLogprob {
  int32_t pos = 0;  // position of the token itself
  Token token = kNoToken;
  float logprob = 0;
  int32_t rank = 0;  // 1 = most likely
};

struct Sampled {
  Slot slot = 0;
  uint32_t epoch = 0;
  Token token = kNoToken;            // kNoToken: nothing sampled (Want::score, add, pool)
  uint32_t top_at = 0, num_top = 0;  // in StepResult::top: prompt positions first, then the sample
  int32_t pooled = -1;               // Want::pool: in StepResult::pooled
};

using Vector = std::shared_ptr<const std::vector<float>>;  // [hidden]

struct StepResult {
  uint64_t step = 0;
  std::vector<Sampled> rows;  // in the order of the plan's slices that want something
  std::vector<TopLogprob> top;
  std::vector<Vector> pooled;
  Time begin{0}, end{0};  // on the executor
  std::string failure;    // not empty: the device failed and no row is valid
};

}  // namespace sluice
