#include "exec/kv_restore.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "core/prefix_index.h"

namespace sluice {

namespace {

constexpr size_t kMoved = 64;  // blocks that one step moves at most

// Calls `row(index, hash)` for each row of blocks; the hash covers all tokens up to its end.
void for_rows(const std::vector<Token>& tokens, int block_size, auto&& row) {
  const auto size = static_cast<size_t>(block_size);
  BlockHash hash = root_hash(0);
  for (size_t at = 0; at < tokens.size(); at += size) {
    hash = chain_hash(hash, std::span(tokens).subspan(at, std::min(size, tokens.size() - at)));
    row(static_cast<int>(at / size), hash);
  }
}

std::vector<BlockHash> row_hashes(const std::vector<Token>& tokens, int block_size) {
  std::vector<BlockHash> out;
  for_rows(tokens, block_size, [&](int, const BlockHash& hash) { out.push_back(hash); });
  return out;
}

int num_rows(const HeldTokens& held, int block_size) {
  const auto size = static_cast<size_t>(block_size);
  return static_cast<int>(held.tokens.size() / size + (held.tokens.size() % size > 0));
}

Transfer block_move(Transfer::Kind kind, BlockId from, BlockId to) {
  Transfer t;
  t.kind = kind, t.from = from, t.to = to;
  return t;
}

}  // namespace

void run_alone(Executor& executor, const StepPlan& plan, const char* what) {
  executor.launch(plan);
  const StepResult& r = executor.wait();
  if (!r.failure.empty()) throw std::runtime_error(std::string(what) + ": " + r.failure);
}

BlockContents::BlockContents(const ExecutorContent& content, int block_size) {
  for (const HeldTokens& h : content.held) {
    const std::vector<BlockHash> hashes = row_hashes(h.tokens, block_size);
    for (const HeldBlock& b : h.blocks) {
      const auto index = static_cast<size_t>(b.index);
      if (b.block > 0 && index < hashes.size())
        list_.insert({b.block, hashes[index].a, hashes[index].b});
    }
  }
}

Result<void> KvRestore::check(const ExecutorContent& content,
                              const ExecutorConfig& config,
                              int vocab) {
  for (const HeldTokens& h : content.held) {
    if (h.tokens.size() > static_cast<size_t>(config.max_len))
      return Error{400, "a sequence is longer than the context"};
    if (!std::ranges::all_of(h.tokens, [&](Token t) { return t >= 0 && t < vocab; }))
      return Error{400, "a sequence has tokens that the model has not"};
    const int rows = num_rows(h, config.block_size);
    const bool valid = std::ranges::all_of(h.blocks, [&](const HeldBlock& b) {
      return b.index >= 0 && b.index < rows && b.group >= 0 &&
             b.group < config.groups.num_groups() && b.block != kNullBlock &&
             b.block <= config.num_blocks && b.block >= -config.num_places;
    });
    if (!valid) return Error{400, "a sequence has blocks that the executor has not"};
  }
  return {};
}

KvRestore::KvRestore(const ExecutorConfig& config,
                     const ExecutorContent& content,
                     const BlockContents& there)
    : config_(config), content_(content), there_(there) {
  find_scratch();
}

size_t KvRestore::cell(int index, int group) const {
  return static_cast<size_t>(index) * static_cast<size_t>(config_.groups.num_groups()) +
         static_cast<size_t>(group);
}

// A block for each cell that some sequence has none for in the pool: one that holds nothing, or one
// behind the pool.
void KvRestore::find_scratch() {
  int rows = 0;
  for (const HeldTokens& h : content_.held) rows = std::max(rows, num_rows(h, config_.block_size));
  std::vector<bool> used(static_cast<size_t>(config_.num_blocks) + 1), missing(cell(rows, 0));
  for (BlockId b : content_.unknown) {
    if (b > 0 && b <= config_.num_blocks) used[static_cast<size_t>(b)] = true;
  }
  for (const HeldTokens& h : content_.held) {
    std::vector<bool> own(cell(num_rows(h, config_.block_size), 0));
    for (const HeldBlock& b : h.blocks) {
      if (b.block < 0) continue;
      used[static_cast<size_t>(b.block)] = true;
      own[cell(b.index, b.group)] = true;
    }
    for (size_t c = 0; c < own.size(); ++c) missing[c] = missing[c] || !own[c];
  }
  scratch_.resize(missing.size());
  table_.resize(missing.size());
  BlockId next = 1;
  for (size_t c = 0; c < missing.size(); ++c) {
    if (!missing[c]) continue;
    while (next <= config_.num_blocks && used[static_cast<size_t>(next)]) ++next;
    scratch_[c] = next++;
  }
  num_extra_ = std::max(0, next - 1 - config_.num_blocks);
}

// Rows before it are in their own blocks already.
int KvRestore::first_row_to_compute(const HeldTokens& held) const {
  const std::vector<BlockHash> hashes = row_hashes(held.tokens, config_.block_size);
  std::vector<int> num_there(hashes.size());
  for (const HeldBlock& b : held.blocks) {
    const auto index = static_cast<size_t>(b.index);
    num_there[index] += b.block > 0 && there_.has(b.block, hashes[index]);
  }
  const auto at =
      std::ranges::find_if(num_there, [&](int num) { return num < config_.groups.num_groups(); });
  return static_cast<int>(at - num_there.begin());
}

// Points the slot's table at the sequence's blocks, with copies of what the table's blocks hold of
// its beginning. Returns the first position to compute.
size_t KvRestore::set_table(const HeldTokens& held, StepPlan& plan) {
  const auto size = static_cast<size_t>(config_.block_size);
  const auto common =
      static_cast<size_t>(std::ranges::mismatch(held.tokens, tokens_).in1 - held.tokens.begin());
  const size_t kept =
      std::min(static_cast<size_t>(first_row_to_compute(held)) * size, held.tokens.size());
  const bool copies = common > kept;
  const int rows = num_rows(held, config_.block_size), groups = config_.groups.num_groups();
  std::vector<BlockId> own(cell(rows, 0));
  for (const HeldBlock& b : held.blocks) {
    if (b.block > 0) own[cell(b.index, b.group)] = b.block;
  }
  for (int k = 0; k < rows; ++k) {
    const size_t begin = static_cast<size_t>(k) * size;
    const bool part = copies && begin < common, whole = copies && begin + size <= common;
    for (int g = 0; g < groups; ++g) {
      const size_t c = cell(k, g);
      const BlockId before = table_[c];
      const BlockId to = own[c] != kNullBlock ? own[c] : whole ? before : scratch_[c];
      if (to == before) continue;
      if (part) plan.transfers.push_back(block_move(Transfer::copy, before, to));
      plan.edits.push_back({0, static_cast<uint32_t>(k), to, static_cast<uint8_t>(g)});
      table_[c] = to;
    }
  }
  return std::max(common, kept);
}

void KvRestore::compute(const HeldTokens& held, size_t pos, StepPlan& plan, Executor& executor) {
  while (plan.transfers.size() > kMoved) {
    StepPlan some;
    some.transfers.assign(plan.transfers.end() - kMoved, plan.transfers.end());
    plan.transfers.resize(plan.transfers.size() - kMoved);
    run_alone(executor, some, "K and V cannot be copied");
  }
  if (pos == held.tokens.size()) {
    if (!plan.empty()) run_alone(executor, plan, "K and V cannot be copied");
    return;
  }
  while (pos < held.tokens.size()) {
    const size_t count =
        std::min(held.tokens.size() - pos, static_cast<size_t>(config_.max_step_tokens));
    const auto from = held.tokens.begin() + static_cast<std::ptrdiff_t>(pos);
    plan.num_tokens = static_cast<int32_t>(count);
    plan.num_decode = count == 1;
    plan.tokens.assign(from, from + static_cast<std::ptrdiff_t>(count));
    Slice slice;
    slice.pos = static_cast<int32_t>(pos);
    slice.count = static_cast<int32_t>(count);
    plan.slices = {slice};
    run_alone(executor, plan, "K and V cannot be computed");
    plan.clear();
    pos += count;
  }
}

// Copies blocks to the places in host memory where the executor had them.
void KvRestore::move_out(const HeldTokens& held, Executor& executor) {
  StepPlan plan;
  const auto move = [&] {
    if (!plan.transfers.empty()) run_alone(executor, plan, "K and V cannot be moved");
    plan.clear();
  };
  for (const HeldBlock& b : held.blocks) {
    if (b.block > 0) continue;
    plan.transfers.push_back(block_move(Transfer::out, table_[cell(b.index, b.group)], -b.block));
    if (plan.transfers.size() == kMoved) move();
  }
  move();
}

uint64_t KvRestore::run(Executor& executor, const std::function<void(size_t, size_t)>& progress) {
  size_t all = 0, before = 0;
  uint64_t computed = 0;
  for (const HeldTokens& h : content_.held) all += h.tokens.size();
  for (const HeldTokens& h : content_.held) {
    if (progress) progress(before, all);
    before += h.tokens.size();
    const std::vector<BlockHash> hashes = row_hashes(h.tokens, config_.block_size);
    if (std::ranges::all_of(h.blocks, [&](const HeldBlock& b) {
          return there_.has(b.block, hashes[static_cast<size_t>(b.index)]);
        }))
      continue;
    StepPlan plan;
    if (!opened_) {
      plan.rows.emplace_back().num_prompt = static_cast<uint32_t>(config_.max_len);
      plan.sampling.emplace_back();
      opened_ = true;
    }
    const size_t pos = set_table(h, plan);
    compute(h, pos, plan, executor);
    move_out(h, executor);
    tokens_ = h.tokens;
    computed += h.tokens.size() - pos;
  }
  return computed;
}

}  // namespace sluice
