// A scheduler as a conductor sees a worker: what waits, what decodes, what is cached.
#include <algorithm>
#include <functional>

#include "core/scheduler.h"

namespace sluice {

namespace {

// Waiting sequences, and cached blocks of theirs that are looked up: sequences behind these are
// taken to be alike, so that a long queue of long prompts does not hold up the engine.
constexpr size_t kViewedWaiting = 64;
constexpr int kViewedBlocks = 2048;
// Waiting sequences whose start is foreseen; who waits behind these waits no less.
constexpr size_t kForecastWaiting = 256;

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

// A running sequence gives its blocks back when it ends, and those promised to it, but for blocks
// that it shares: they are at its beginning, where no group has a window.
RoomUser Scheduler::room_of(const Sequence& s) const {
  RoomUser out;
  const int num_output = static_cast<int>(s.output.size());
  out.steps = std::max(predictor_.expect(request_of(s), num_output) - num_output, 1);
  if (config_.contiguous()) return out;
  const std::vector<BlockId>& blocks = s.table.blocks();
  const auto end = blocks.begin() + std::ptrdiff_t{s.table.ready()} * layout_.num_groups;
  const auto own = [&](BlockId b) { return b != kNullBlock && blocks_.pool.refs(b) <= 1; };
  out.blocks = layout_.num_windowed > 0
                   ? std::count_if(blocks.begin(), end, own)
                   : end - std::partition_point(blocks.begin(), end, std::not_fn(own));
  out.blocks += s.table.promised(layout_);
  return out;
}

// Room that a sequence needs to start, of whose `known` tokens some are cached.
RoomUser Scheduler::room_for(const Request& r, int known, int cached, int slots) const {
  RoomUser out;
  out.slots = slots;
  const int num_output = known - static_cast<int>(r.prompt->size());
  out.steps = std::max(predictor_.expect(r, num_output) - num_output, 1);
  if (config_.contiguous()) return out;
  const int64_t shared = int64_t{cached} / config_.block_size * layout_.num_groups;
  out.blocks = std::max<int64_t>(0, most_blocks(known, config_) - shared);
  return out;
}

// Sequences that wait, in their order: their tokens go to `v`, and each one's room to `room`.
void Scheduler::view_waiting(WorkerView& v, std::vector<RoomUser>& room) const {
  const size_t most = std::min(waiting_.size(), kViewedWaiting);
  size_t num = 0;
  StepLoad load;
  std::vector<uint32_t> seen;  // requests: their choices share a prompt, which is computed once
  for (int blocks = 0; num < most && blocks < kViewedBlocks; ++num) {
    const Sequence& s = seqs_[waiting_[waiting_.size() - 1 - num]];
    const int known = prompt_len(s) + static_cast<int>(s.output.size());
    int cached = cached_tokens(request_of(s));
    blocks += cached / config_.block_size;
    if (config_.prefix_cache && !config_.contiguous()) {
      if (std::ranges::find(seen, s.choices) == seen.end()) {
        seen.push_back(s.choices);
      } else {
        cached = prompt_len(s) / config_.block_size * config_.block_size;
      }
    }
    const int from = std::clamp(cached, 0, known - 1);
    load += chunk_load(from, known - from);
    room.push_back(room_for(request_of(s), known, from, num_slots(s)));
  }
  if (num > 0) v.queued += scaled_load(load, waiting_.size(), num);
  const size_t all = std::min(waiting_.size(), kForecastWaiting);
  for (size_t k = num; num > 0 && k < all; ++k) room.push_back(room[k % num]);
}

WorkerView Scheduler::view_for(const Request& request) const {
  WorkerView v;
  std::vector<RoomUser> running, waiting;
  running.reserve(running_.size());
  v.budget = config_.mixed_budget > 0 ? config_.mixed_budget : config_.budget;
  for (Index i : running_) {
    const Sequence& s = seqs_[i];
    const int rest = remaining(s);
    if (s.planned < prompt_len(s)) {
      v.queued += chunk_load(s.planned, std::max(rest, 1));
    } else {
      v.decode += chunk_load(s.planned, 1);
    }
    running.push_back(room_of(s));
  }
  view_waiting(v, waiting);
  // A step beside decodes takes no more of prompts than `chunk`.
  if (config_.chunk > 0 && v.decode.tokens > 0)
    v.budget = std::min(v.budget, config_.chunk + v.decode.tokens);
  v.cached = cached_tokens(request);
  Room free;
  free.slots = config_.max_seqs - static_cast<int>(running_.size()) - held_slots_;
  if (!config_.contiguous()) {
    free.blocks = std::max(blocks_.available(), 0);
    v.free_tokens = free.blocks * config_.block_size / layout_.num_groups;
  }
  const int tokens = static_cast<int>(request.prompt->size());
  waiting.push_back(room_for(request, tokens, std::min(static_cast<int>(v.cached), tokens - 1),
                             request.beams ? request.n : 1));
  v.room_steps = steps_until_room(free, running, waiting);
  return v;
}

}  // namespace sluice
