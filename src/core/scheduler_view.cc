// A scheduler as a conductor sees a worker: what waits, what decodes, what is cached.
#include <algorithm>

#include "core/scheduler.h"

namespace sluice {

namespace {

// Waiting sequences, and cached blocks of theirs that are looked up: sequences behind these are
// taken to be alike, so that a long queue of long prompts does not hold up the engine.
constexpr size_t kViewedWaiting = 64;
constexpr int kViewedBlocks = 2048;

StepLoad scaled_load(StepLoad load, size_t num, size_t of) {
  const auto part = [&](auto n) {
    return static_cast<decltype(n)>(static_cast<double>(n) * static_cast<double>(num) /
                                    static_cast<double>(of));
  };
  return {part(load.tokens), part(load.sampled), part(load.context), part(load.attended)};
}

}  // namespace

int Scheduler::cached_tokens(const Request& r) const {
  if (!config_.prefix_cache || config_.contiguous()) return 0;
  std::vector<BlockHash> own;
  // A request that was added has the hashes that count.
  if (!choices_of_.contains(r.id) && (r.block_hashes.empty() || hash_map_))
    own = hash_blocks(*r.prompt, config_.block_size, r.tenant, hash_map_.get());
  const std::vector<BlockHash>& hashes = own.empty() ? r.block_hashes : own;
  const auto size = static_cast<size_t>(config_.block_size);
  size_t num = 0;
  for (; num < hashes.size(); ++num) {
    const std::span<const Token> tokens(r.prompt->data() + num * size, size);
    const auto there = [&](int g) {
      if (layout_.windowed(g)) return true;
      const PrefixKey key{hashes[num], g, r.tenant};
      return blocks_.index.find(key, tokens) != kNullBlock ||
             blocks_.tiers.find(key, tokens) != kNullBlock;
    };
    bool found = true;
    for (int g = 0; g < layout_.num_groups && found; ++g) found = there(g);
    if (!found) break;
  }
  return static_cast<int>(num * size);
}

WorkerView Scheduler::view_for(const Request& request) const {
  WorkerView v;
  v.budget = config_.mixed_budget > 0 ? config_.mixed_budget : config_.budget;
  for (Index i : running_) {
    const Sequence& s = seqs_[i];
    const int rest = remaining(s);
    if (s.planned < prompt_len(s)) {
      v.queued += chunk_load(s.planned, std::max(rest, 1));
    } else {
      v.decode += chunk_load(s.planned, 1);
    }
  }
  const size_t most = std::min(waiting_.size(), kViewedWaiting);
  size_t num = 0;
  StepLoad waiting;
  for (int blocks = 0; num < most && blocks < kViewedBlocks; ++num) {
    const Sequence& s = seqs_[waiting_[waiting_.size() - 1 - num]];
    const int known = prompt_len(s) + static_cast<int>(s.output.size());
    const int from = std::clamp(cached_tokens(request_of(s)), 0, known - 1);
    waiting += chunk_load(from, known - from);
    blocks += from / config_.block_size;
  }
  if (num > 0) v.queued += scaled_load(waiting, waiting_.size(), num);
  // A step beside decodes takes no more of prompts than `chunk`.
  if (config_.chunk > 0 && v.decode.tokens > 0)
    v.budget = std::min(v.budget, config_.chunk + v.decode.tokens);
  v.cached = cached_tokens(request);
  if (!config_.contiguous())
    v.free_tokens =
        int64_t{std::max(blocks_.available(), 0)} * config_.block_size / layout_.num_groups;
  return v;
}

}  // namespace sluice
