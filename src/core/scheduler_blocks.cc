// Who holds which blocks: claims, windows, growth, sharing, the prefix cache.
#include <algorithm>

#include "base/check.h"
#include "core/scheduler.h"

namespace sluice {

namespace {

// Positions of a prompt that window groups hold blocks for beyond those computed: the chunks of the
// steps in flight, the one being planned included.
int64_t chunk_reach(const SchedulerConfig& c) {
  return int64_t{c.pipeline.max_in_flight()} * c.budget;
}

// Window groups hold what the first position not yet computed sees, and `reach` positions from it
// on. Neither end need be a block's.
int64_t blocks_held(int64_t positions, int64_t reach, const SchedulerConfig& c) {
  auto blocks = [&](int64_t n) { return (n + c.block_size - 1) / c.block_size; };
  int64_t sum = 0;
  for (int window : c.group_windows) {
    int64_t all = blocks(positions);
    sum += window == 0 ? all : std::min(all, blocks(window - 1 + reach) + 1);
  }
  return sum;
}

}  // namespace

// A whole prompt is in one step: then window groups hold it all.
int64_t Scheduler::most_blocks(int64_t positions, const SchedulerConfig& c) {
  return blocks_held(positions, c.prefill == Prefill::whole ? positions : chunk_reach(c), c);
}

int64_t Scheduler::decode_blocks(int64_t positions, const SchedulerConfig& c) {
  return blocks_held(positions, c.pipeline.max_in_flight(), c);
}

// How far a prompt in progress has its blocks in window groups, of a table of so many blocks.
int Scheduler::prompt_reach(const Sequence& s, int rows) const {
  int end = rows * config_.block_size;
  if (config_.prefill == Prefill::whole) return end;
  return static_cast<int>(std::min<int64_t>(end, s.computed + chunk_reach(config_)));
}

// What a waiting sequence takes from the pool to start, behind the blocks it shares.
int Scheduler::missing_blocks(const Sequence& s) const {
  int rows = blocks_for(known_len(s)), shared = s.num_registered;
  return (num_groups_ - num_windowed_) * (rows - shared) +
         num_windowed_ * (blocks_for(prompt_reach(s, rows)) - shared);
}

// Blocks that a sequence still takes from the pool for its next `tokens` positions, or all that it
// has left. Window groups release as they go: two for a boundary that the window straddles.
int64_t Scheduler::growth_blocks(const Sequence& s, int tokens) const {
  int64_t len = known_len(s), full = prompt_len(s) + s.max_new;
  int64_t end = std::min(len + tokens, full);
  int64_t rows = std::max<int64_t>(num_rows(s), blocks_for(static_cast<int>(len)));
  int64_t more = blocks_for(static_cast<int>(end)) - rows;
  int64_t blocks = (num_groups_ - num_windowed_) * more + 2 * num_windowed_;
  return s.fork_pending ? request_of(s).n * (blocks + num_groups_) : blocks;
}

// Blocks for all its known tokens, shared ones first; in window groups as far as the prompt reaches
// in the next two steps. Takes nothing on failure.
bool Scheduler::claim_blocks(Index i) {
  // A failed attempt is repeated only when more blocks are there: matching a long prompt costs
  // time.
  // (After a preemption more than blocks decides: kept_free().)
  Sequence& s = seqs_[i];
  if (blocked_ == i && !running_.empty() && s.timing.num_preemptions == 0 &&
      pool_.available() <= blocked_available_)
    return false;
  auto reserve = static_cast<int>(most_blocks(prompt_len(s) + s.max_new, config_));
  if (config_.admission == Admission::reserve_max && reserved_ + reserve > config_.num_blocks) {
    return false;
  }
  match_prefix(s);
  if (pool_.available() - missing_blocks(s) < kept_free(s)) {
    for (size_t b = s.blocks.size(); b > 0; --b) {
      if (s.blocks[b - 1] != kNullBlock) pool_.release(s.blocks[b - 1]);
    }
    s.blocks.clear();
    s.reset_progress();
    blocked_ = i;
    blocked_available_ = pool_.available();
    return false;
  }
  blocked_ = kNone;
  int rows = blocks_for(known_len(s));
  s.blocks.resize(static_cast<size_t>(rows) * static_cast<size_t>(num_groups_), kNullBlock);
  for (int index = s.num_registered; index < rows; ++index) {
    for (int g = 0; g < num_groups_; ++g) {
      if (!windowed(g)) put_block(s, index, g, nullptr);
    }
  }
  s.ready = num_windowed_ > 0 ? s.num_registered : rows;
  extend_windows(s, prompt_reach(s, rows), nullptr);
  if (config_.admission == Admission::reserve_max) reserved_ += s.reserved = reserve;
  bool first = s.timing.num_steps == 0;
  if (first) {
    s.timing.num_cached = s.planned;
    prefix_queries_ += static_cast<uint64_t>(prompt_len(s));
    prefix_hits_ += static_cast<uint64_t>(s.planned);
  }
  return true;
}

// A further choice, one token before the prompt's end: the first one's full blocks, as far back as
// they are still seen, and copies of the partial ones. Takes nothing on failure.
bool Scheduler::share_blocks(Sequence& s, const Sequence& parent, StepPlan& out) {
  int computed = prompt_len(s) - 1;
  int shared = computed / config_.block_size;
  bool partial = computed % config_.block_size != 0;
  auto reserve = static_cast<int>(most_blocks(prompt_len(s) + s.max_new, config_));
  if (pool_.available() < num_groups_ ||
      (config_.admission == Admission::reserve_max && reserved_ + reserve > config_.num_blocks)) {
    return false;
  }
  s.blocks.assign(static_cast<size_t>(shared + 1) * static_cast<size_t>(num_groups_), kNullBlock);
  for (int g = 0; g < num_groups_; ++g) {
    for (int index = first_seen(g, computed); index < shared; ++index) {
      BlockId b = cell(parent, index, g);
      pool_.retain(b);
      cell(s, index, g) = b;
    }
    put_block(s, shared, g, nullptr);
    if (!partial) continue;
    transfers_.push_back(next_transfer_);
    out.transfers.push_back(
        {Transfer::copy, cell(parent, shared, g), cell(s, shared, g), next_transfer_++});
  }
  s.planned = s.computed = s.slid = computed;
  s.ready = shared + 1;
  s.num_registered = shared;
  if (config_.prefix_cache && shared > 0) {
    s.last_hash = request_of(s).block_hashes[static_cast<size_t>(shared - 1)];
  }
  if (config_.admission == Admission::reserve_max) reserved_ += s.reserved = reserve;
  return true;
}

// Window groups give back what no query from here on sees, at once: the steps in flight start at
// `computed` or later. A prompt in progress gets as much ahead.
void Scheduler::slide_windows(StepPlan& out) {
  if (num_windowed_ == 0) return;
  for (size_t k = 0; k < running_.size(); ++k) {
    if (k + 8 < running_.size()) prefetch(running_[k + 8]);
    Sequence& s = seqs_[running_[k]];
    if (s.slid == s.computed) continue;
    for (int g = 0; g < num_groups_; ++g) {
      int end = first_seen(g, s.computed);
      for (int index = first_seen(g, s.slid); index < end; ++index) {
        pool_.release(cell(s, index, g));
        cell(s, index, g) = kNullBlock;
        out.edits.push_back(
            {s.slot, static_cast<uint32_t>(index), kNullBlock, static_cast<uint8_t>(g)});
      }
    }
    s.slid = s.computed;
    extend_windows(s, prompt_reach(s, num_rows(s)), &out);
  }
}

// Blocks of the window groups for positions up to `end`, while the pool has them.
void Scheduler::extend_windows(Sequence& s, int end, StepPlan* out) {
  for (; s.ready < blocks_for(end) && pool_.available() >= num_windowed_; ++s.ready) {
    for (int g = 0; g < num_groups_; ++g) {
      if (windowed(g)) put_block(s, s.ready, g, out);
    }
  }
}

// Whether the next position of a prompt in progress has its blocks in the window groups. They are
// claimed ahead, but where others share what the window leaves behind, the pool may have none in
// return. Then the prompt waits; with nothing to wait for, the last sequence in order of service is
// preempted.
bool Scheduler::feed(Index i, StepPlan& out) {
  Sequence& s = seqs_[i];
  while (s.ready * config_.block_size <= s.planned) {
    extend_windows(s, prompt_reach(s, num_rows(s)), &out);
    if (s.ready * config_.block_size > s.planned) break;
    starved_ = true;
    if (!draft_.empty() || !flights_.empty()) return false;
    Index victim = last_unplanned();
    CHECK(victim != kNone);
    preempt(victim);
    if (victim == i) return false;
  }
  return true;
}

// A block in every group for the next position of a decode. Without one, the last sequence in order
// of service is preempted; if that is this one, it goes back to the queue itself.
bool Scheduler::grow(Index i, StepPlan& out) {
  Sequence& s = seqs_[i];
  for (;;) {
    bool in_table = static_cast<int64_t>(s.blocks.size()) * config_.block_size >=
                    int64_t{s.planned + 1} * num_groups_;
    // A preempted sequence's last known token counts as a decode: window groups may not have it.
    bool ready = num_windowed_ == 0 || s.ready * config_.block_size > s.planned;
    if (in_table && ready) return true;
    if (pool_.available() >= (in_table ? num_windowed_ : num_groups_)) {
      int index = s.planned / config_.block_size;
      if (!in_table) s.blocks.resize(s.blocks.size() + static_cast<size_t>(num_groups_));
      for (int g = 0; g < num_groups_; ++g) {
        if (!in_table || windowed(g)) put_block(s, index, g, &out);
      }
      s.ready = index + 1;
      continue;
    }
    // Blocks that a launched step still names are on their way: sit this step out.
    if (!pending_.empty()) {
      hungry_ = true;
      return false;
    }
    Index victim = last_unplanned();
    CHECK(victim != kNone);
    preempt(victim);
    if (victim == i) return false;
  }
}

void Scheduler::put_block(Sequence& s, int index, int group, StepPlan* out) {
  BlockId b = take_block();
  CHECK(b != kNullBlock);
  cell(s, index, group) = b;
  if (out)
    out->edits.push_back({s.slot, static_cast<uint32_t>(index), b, static_cast<uint8_t>(group)});
}

BlockId Scheduler::take_block() {
  BlockId evicted;
  BlockId b = pool_.alloc(evicted);
  if (evicted != kNullBlock) index_.erase(evicted);
  return b;
}

// Last block first, so that of a cached prefix the tail is older than the head and goes first.
void Scheduler::release_blocks(Sequence& s) {
  for (size_t b = s.blocks.size(); b > 0; --b) {
    if (b > 8) pool_.prefetch(s.blocks[b - 9]);
    if (s.blocks[b - 1] == kNullBlock) continue;
    if (s.in_flight > 0) {
      pending_.push_back({next_step_ - 1, s.blocks[b - 1]});
    } else {
      pool_.release(s.blocks[b - 1]);
    }
  }
  s.blocks.clear();
  s.ready = s.slid = 0;
  reserved_ -= s.reserved;
  s.reserved = 0;
}

// ---- prefix cache ----

std::span<const Token> Scheduler::block_tokens(const Sequence& s, int block) const {
  int begin = block * config_.block_size, prompt = prompt_len(s);
  auto size = static_cast<size_t>(config_.block_size);
  if (begin + config_.block_size <= prompt) {
    return std::span(*request_of(s).prompt).subspan(static_cast<size_t>(begin), size);
  }
  if (begin >= prompt)
    return std::span(s.output).subspan(static_cast<size_t>(begin - prompt), size);
  for (int k = 0; k < config_.block_size; ++k)
    straddle_[static_cast<size_t>(k)] = token_at(s, begin + k);
  return straddle_;
}

BlockHash Scheduler::block_hash(const Sequence& s, int block, BlockHash parent) const {
  const auto& hashes = request_of(s).block_hashes;
  if (static_cast<size_t>(block) < hashes.size()) return hashes[static_cast<size_t>(block)];
  if (block == 0) parent = root_hash(request_of(s).tenant);
  return chain_hash(parent, block_tokens(s, block));
}

BlockId Scheduler::find_block(const Sequence& s, int index, int group, BlockHash hash) const {
  return index_.find({hash, group, request_of(s).tenant}, block_tokens(s, index));
}

// Takes the longest cached run of full blocks: all of them in groups that see everything, those
// still seen in window groups. At least one position is left to compute, for its logits; with
// log-probabilities wanted for the prompt, or the mean of its hidden states, all are.
void Scheduler::match_prefix(Sequence& s) {
  s.blocks.clear();
  s.num_registered = 0;
  if (!config_.prefix_cache || wants_scores(s) || s.pooling == Pooling::mean) return;
  int limit = (known_len(s) - 1) / config_.block_size, num = 0;
  chain_.clear();
  for (BlockHash hash; num < limit; ++num) {
    hash = block_hash(s, num, hash);
    bool found = true;
    for (int g = 0; g < num_groups_ && found; ++g) {
      s.blocks.push_back(windowed(g) ? kNullBlock : find_block(s, num, g, hash));
      found = windowed(g) || s.blocks.back() != kNullBlock;
    }
    if (!found) break;
    chain_.push_back(hash);
  }
  if (num_windowed_ > 0) num = window_hit(s, num);
  s.blocks.resize(static_cast<size_t>(num) * static_cast<size_t>(num_groups_));
  s.num_registered = num;
  s.planned = s.computed = s.slid = num * config_.block_size;
  if (num == 0) return;
  s.last_hash = chain_[static_cast<size_t>(num - 1)];
  for (int g = 0; g < num_groups_; ++g) {
    for (int index = first_seen(g, s.computed); index < num; ++index) {
      if (windowed(g))
        cell(s, index, g) = find_block(s, index, g, chain_[static_cast<size_t>(index)]);
      pool_.retain(cell(s, index, g));
    }
  }
}

// The longest hit of at most `num` blocks whose end every window group has. A block that is missing
// rules out all hits that see it, so the next candidate ends before it: each block is looked up
// once.
int Scheduler::window_hit(const Sequence& s, int num) const {
  for (int index = num - 1; index >= 0; --index) {
    bool seen = false;
    for (int g = 0; g < num_groups_; ++g) {
      if (!windowed(g) || index < first_seen(g, num * config_.block_size)) continue;
      seen = true;
      if (find_block(s, index, g, chain_[static_cast<size_t>(index)]) == kNullBlock) {
        num = index;
        break;
      }
    }
    if (!seen) break;
  }
  return num;
}

}  // namespace sluice
