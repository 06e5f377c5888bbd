// One step as plain data: what the scheduler decides, what the executor answers.
// Plans carry deltas: the executor mirrors rows and block tables by slot. Neither holds a pointer
// into live objects: both can be compared, sent, recorded and replayed (core/plan_codec.h).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
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
  last,   // sample after the last position; with drafts, after each of them too
  all,    // score every position against its successor (prompt logprobs), sample after the last
  score,  // score every position, sample nothing: a chunk that is not the last
  add,    // add every position's hidden state to the row's sum (pooling: mean), not the last chunk
  pool,   // the row's pooled vector, with the positions of this slice: its last chunk
};
inline bool samples(Want w) { return w == Want::last || w == Want::all; }
inline bool scores(Want w) { return w == Want::all || w == Want::score; }

// Opens or closes a row: once per admission, not per step.
struct RowOp {
  enum Kind : uint8_t { open, close } kind = open;
  Pooling pooling = Pooling::none;
  SeqId id;
  Slot slot = 0;
  uint32_t epoch = 0;
  uint32_t num_prompt = 0;  // positions [0, num_prompt) are prompt
  // What sampling looks back on, in StepPlan::tokens: the prompt if penalties need it, then the
  // output so far (after a preemption).
  uint32_t history_at = 0, num_history = 0, num_history_prompt = 0;
  uint32_t sampling = 0;  // open: in StepPlan::sampling
  bool operator==(const RowOp&) const = default;
};

struct TableEdit {
  Slot slot = 0;
  uint32_t index = 0;
  BlockId block = kNullBlock;
  uint8_t group = 0;
  bool operator==(const TableEdit&) const = default;
};

// With memory mapped by pages (slot_pages.h): from this step on the slot's first `num_pages` pages
// of addresses are mapped, in every cache group, and none behind them. A plan names a slot once;
// pages that are taken from one slot may go to another in the same plan, and no step in flight uses
// them.
struct PageOp {
  Slot slot = 0;
  uint32_t num_pages = 0;
  bool operator==(const PageOp&) const = default;
};

inline constexpr int32_t kNoMask = -1;

struct Slice {
  Slot slot = 0;
  uint32_t epoch = 0;
  int32_t pos = 0, count = 0;
  Want want = Want::none;
  bool chained = false;    // the first input token is the row's last sampled one, on the device
  uint16_t num_draft = 0;  // of `count`, the last so many inputs are guesses: the executor samples
                           // before each and after the last, and keeps those that agree
  uint32_t token_at = 0;   // in StepPlan::tokens, of the inputs behind a chained one; with
                           // `all`/`score` one more token follows: the successor of the last
                           // position, when it is known
  // Which mask the sample obeys, of those that follow the plan: a mask may depend on a token that
  // is not known when the step is planned.
  int32_t mask = kNoMask;
  bool operator==(const Slice&) const = default;
};

// Moves a block. The scheduler numbers transfers; each is named in exactly one StepResult, that of
// its own step or a later one, and until then its target belongs to it. Executors begin a step's
// transfers in their order, before the step computes. By then a copy is done, and an out has read
// its block, which may be another's in the same step; the block of an in is used by nobody until a
// result names it. A send is done while the step computes: its block is one that the step fills.
using TransferId = uint64_t;
inline constexpr int32_t kNoKey = -1;
struct Transfer {
  enum Kind : uint8_t {
    copy,     // block `from` to block `to`
    out,      // block `from` to place `to` of a slower tier
    in,       // place `from` of a slower tier to block `to`
    send,     // block `from`, as the step writes it layer by layer, to place `to` in host memory
    receive,  // from another process to block `to`
  } kind = copy;
  BlockId from = kNullBlock, to = kNullBlock;
  TransferId id = 0;
  int32_t key = kNoKey;  // of a place on disk: in StepPlan::keys
  bool operator==(const Transfer&) const = default;
};
inline constexpr int kNumTransferKinds = Transfer::receive + 1;
const char* transfer_name(Transfer::Kind kind);

// The key of a block on disk. Executors write it beside the block, and compare it before they give
// the block back: a place with another key is a failed transfer.
struct BlockKey {
  BlockHash hash;
  TenantId tenant = 0;
  uint32_t group = 0;
  uint32_t token_at = 0, num_tokens = 0;  // of the block's positions, in StepPlan::tokens
  bool operator==(const BlockKey&) const = default;
};

struct StepPlan {
  uint64_t step = 0;
  int32_t num_tokens = 0;
  int32_t num_decode = 0;  // slices [0, num_decode) have count 1
  std::vector<RowOp> rows;
  std::vector<SamplingSpec> sampling;  // of the rows that open
  std::vector<TableEdit> edits;
  std::vector<PageOp> pages;  // never alone: they can wait for the next step
  std::vector<Slice> slices;
  std::vector<Token> tokens;
  std::vector<Transfer> transfers;
  std::vector<BlockKey> keys;
  // With places on disk: transfers below this id are nobody's any more, and are dropped.
  TransferId oldest = 0;
  // There is nothing to do but to wait for a transfer of an earlier step, a few milliseconds.
  bool awaits = false;

  bool empty() const {
    return slices.empty() && rows.empty() && edits.empty() && transfers.empty() && !awaits;
  }
  void clear() {
    num_tokens = num_decode = 0;
    rows.clear(), sampling.clear(), edits.clear(), pages.clear(), slices.clear(), tokens.clear();
    transfers.clear(), keys.clear();
    oldest = 0, awaits = false;
  }
  bool operator==(const StepPlan&) const = default;
};

// The token masks of one step. They follow its plan in a second message, because a mask may depend
// on a token that the step before has yet to sample. Slice::mask is an index into `rows`.
struct StepMasks {
  using Row = std::vector<uint32_t>;  // bit t % 32 of word t / 32 allows token t
  uint64_t step = 0;
  std::vector<Row> rows;

  // What is not there is forbidden: tokens past the end of a row, and every token of a missing row.
  std::span<const uint32_t> row(int32_t index) const {
    static constexpr uint32_t kNothing = 0;
    auto at = static_cast<size_t>(index);
    if (at >= rows.size() || rows[at].empty()) return {&kNothing, 1};
    return rows[at];
  }
  bool operator==(const StepMasks&) const = default;
};

// One scored token. For a scored position the first entry is the token that is there (prompt) or
// was sampled; the most likely ones follow, most likely first.
struct TopLogprob {
  int32_t pos = 0;  // position of the token itself
  Token token = kNoToken;
  float logprob = 0;
  int32_t rank = 0;  // 1 = most likely
};

// The result of one slice whose `want` is not none.
struct Sampled {
  Slot slot = 0;
  uint32_t epoch = 0;
  // In StepResult::tokens: none with Want::score, add and pool, else one; with drafts those that
  // agreed and the one behind them. kNoToken where a slice with a mask had no token left to sample.
  uint32_t token_at = 0, num_tokens = 0;
  uint32_t top_at = 0, num_top = 0;  // in StepResult::top: prompt positions first, then the samples
  int32_t pooled = -1;               // Want::pool: in StepResult::pooled
  bool operator==(const Sampled&) const = default;
};

using Vector = std::shared_ptr<const std::vector<float>>;  // [hidden], never null in a result

struct StepResult {
  uint64_t step = 0;
  std::vector<Sampled> rows;  // in the order of the plan's slices that want something
  std::vector<Token> tokens;
  std::vector<TopLogprob> top;
  std::vector<Vector> pooled;
  std::vector<TransferId> transfers;  // those that are complete, of this step and earlier ones
  std::vector<TransferId> lost;       // those that have failed: the content was not to be had
  Time begin{0}, end{0};              // on the executor
  std::string failure;                // not empty: the device failed and no row is valid

  // Keeps the memory.
  void clear() {
    rows.clear(), tokens.clear(), top.clear(), pooled.clear(), transfers.clear(), lost.clear();
    failure.clear();
    begin = end = Time{0};
  }
  // A row without a token yet.
  Sampled& add_row(const Slice& s) {
    rows.push_back({s.slot, s.epoch, static_cast<uint32_t>(tokens.size())});
    return rows.back();
  }
  // One with its only token.
  void add_row(const Slice& s, Token token) {
    add_row(s).num_tokens = 1;
    tokens.push_back(token);
  }
};
// Contents, floats bit for bit; when the step ran is left out.
bool operator==(const StepResult& a, const StepResult& b);

}  // namespace sluice
