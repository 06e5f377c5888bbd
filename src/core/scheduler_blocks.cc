// Who holds which blocks: claims, windows, growth, sharing, the prefix cache.
#include <algorithm>
#include <utility>

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
  auto blocks = [&](int64_t n) {
    int64_t all = (n + c.block_size - 1) / c.block_size;
    if (!c.mapped()) return all;
    int64_t bytes = c.pages.pages_for(all) * c.pages.page_bytes;  // a page is nobody else's
    return (bytes + c.pages.block_bytes - 1) / c.pages.block_bytes;
  };
  int64_t sum = 0;
  for (int window : c.group_windows) {
    int64_t all = blocks(positions);
    sum += window == 0 || c.contiguous() ? all : std::min(all, blocks(window - 1 + reach) + 1);
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

// What a waiting sequence takes from the pool to start, behind the `kept` rows that it has.
int Scheduler::missing_blocks(const Sequence& s, int kept) const {
  if (s.beam) return layout_.num_groups * (beam_rows(s) - kept) + spare_blocks(s, prompt_len(s));
  int rows = blocks_for(known_len(s));
  return (layout_.num_groups - layout_.num_windowed) * (rows - kept) +
         layout_.num_windowed * (blocks_for(prompt_reach(s, rows)) - kept);
}

// Blocks that a sequence still takes from the pool for its next `tokens` positions, or all that it
// has left. Window groups release as they go: two for a boundary that the window straddles.
int64_t Scheduler::growth_blocks(const Sequence& s, int tokens) const {
  if (s.beam) return 0;  // set aside already
  int64_t len = known_len(s), full = prompt_len(s) + s.max_new;
  int64_t end = std::min(len + tokens, full);
  int64_t rows = std::max<int64_t>(s.table.num_rows(layout_), blocks_for(static_cast<int>(len)));
  int64_t more = blocks_for(static_cast<int>(end)) - rows;
  int64_t blocks = (layout_.num_groups - layout_.num_windowed) * more + 2 * layout_.num_windowed;
  return s.fork_pending ? request_of(s).n * (blocks + layout_.num_groups) : blocks;
}

// Blocks for all its known tokens, those with content first, of the prefix cache or from outside
// the pool; the others are promised, and taken when a step reaches them. Window groups get theirs
// as far as the prompt reaches in the steps that may be in flight. Takes nothing on failure.
bool Scheduler::claim_blocks(Index i) {
  // A failed attempt is repeated only when more blocks are there: matching a long prompt costs
  // time.
  // (After a preemption, and with predicted peaks, more than blocks decides.)
  Sequence& s = seqs_[i];
  if (config_.ranged()) return claim_range(i);
  if (config_.mapped()) return claim_pages(i);
  if (blocked_ == i && !running_.empty() && s.timing.num_preemptions == 0 &&
      config_.admission != Admission::predicted_peak && blocks_.available() <= blocked_available_)
    return false;
  auto reserve = static_cast<int>(reserve_blocks(s));
  // Outputs that ended while it waited have taught the predictor.
  if (config_.admission == Admission::predicted_peak && !s.beam)
    s.predicted_output = predictor_.predict(request_of(s), static_cast<int>(s.output.size()));
  if (!reservation_fits(reserve) || !peak_fits(s)) return false;
  int kept = restore(i);
  int taken = static_cast<int>(fetch_.size()) + missing_blocks(s, kept);
  if (blocks_.available() - taken < kept_free(s)) {
    drop_fetch();
    s.table.release([&](BlockId b) { blocks_.release(b); }, [](BlockId) {});
    s.reset_progress();
    blocked_ = i;
    blocked_available_ = blocks_.available();
    return false;
  }
  blocked_ = kNone;
  fetch_blocks(i);
  int rows = rows_of(s);
  s.table.claim(layout_of(s), blocks_, rows, kept, prompt_reach(s, rows));
  if (s.beam) claim_beams(i);
  if (config_.admission == Admission::reserve_max) reserved_ += s.reserved = reserve;
  bool first = s.timing.num_steps == 0;
  if (first) {
    s.timing.num_cached = s.planned;
    if (!away_.empty() && std::exchange(away_[i].counted, true)) return true;
    prefix_queries_ += static_cast<uint64_t>(prompt_len(s));
    prefix_hits_ += static_cast<uint64_t>(s.planned);
  }
  return true;
}

// A further choice, one token before the prompt's end: the first one's full blocks, as far back as
// they are still seen, and copies of the partial ones. Takes nothing on failure.
bool Scheduler::share_blocks(Sequence& s, const Sequence& parent) {
  int computed = prompt_len(s) - 1;
  int shared = computed / config_.block_size;
  bool partial = computed % config_.block_size != 0;
  auto reserve = static_cast<int>(most_blocks(prompt_len(s) + s.max_new, config_));
  if (blocks_.available() < layout_.num_groups || !reservation_fits(reserve)) return false;
  s.table.share(layout_, blocks_, parent.table, computed);
  for (int g = 0; partial && g < layout_.num_groups; ++g) {
    blocks_.moves.add(Transfer::copy, parent.table.at(layout_, shared, g),
                      s.table.at(layout_, shared, g));
  }
  s.planned = s.computed = computed;
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
  if (layout_.num_windowed == 0) return;
  for (size_t k = 0; k < running_.size(); ++k) {
    if (k + 8 < running_.size()) prefetch(running_[k + 8]);
    Sequence& s = seqs_[running_[k]];
    if (s.table.slid() == s.computed || s.beam) continue;
    EditLog log = edits_of(s, out);
    s.table.slide(layout_, blocks_, s.computed, log);
    s.table.extend(layout_, blocks_, prompt_reach(s, s.table.num_rows(layout_)), log);
  }
}

// Takes the promised blocks of a prompt's positions up to `positions`.
void Scheduler::fill(Index i, int positions, StepPlan& out) {
  Sequence& s = seqs_[i];
  int rows = blocks_for(positions);
  if (slides(s) || s.table.ready() >= rows) return;
  if (config_.ranged()) {
    RangeRest rest = range_rest(i);
    s.table.fill(layout_, rest, rows, edits_of(s, out));
  } else if (config_.mapped()) {
    SlotBlocks blocks = slot_blocks(s.slot, s.table.ready());
    s.table.fill(layout_, blocks, rows, {});
  } else {
    s.table.fill(layout_of(s), blocks_, rows, edits_of(s, out));
  }
}

// Whether the next position of a prompt in progress has its blocks in the window groups. They are
// claimed ahead, but where others share what the window leaves behind, the pool may have none in
// return. Then the prompt waits; with nothing to wait for, the last sequence in order of service is
// preempted.
bool Scheduler::feed(Index i, StepPlan& out) {
  Sequence& s = seqs_[i];
  while (s.table.ready() * config_.block_size <= s.planned) {
    s.table.extend(layout_, blocks_, prompt_reach(s, s.table.num_rows(layout_)), edits_of(s, out));
    if (s.table.ready() * config_.block_size > s.planned) break;
    prefill_blocked_ = true;
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
  while (!s.table.covers(layout_, s.planned)) {
    if (config_.ranged()) return grow_range(i, out);
    if (config_.mapped()) return grow_pages(i);
    if (s.table.grow(layout_of(s), blocks_, s.planned, edits_of(s, out))) return true;
    // Blocks that a launched step still names are on their way: sit this step out.
    if (!pending_.empty()) {
      decode_blocked_ = true;
      return false;
    }
    Index victim = last_unplanned();
    CHECK(victim != kNone);
    preempt(victim);
    if (victim == i) return false;
  }
  return true;
}

// Positions that a decode with forced tokens takes, of at most `most`: as far as there are blocks
// without preempting anybody. The first one has its blocks.
int Scheduler::decode_count(Index i, int most, StepPlan& out) {
  Sequence& s = seqs_[i];
  int count = std::min(remaining(s), most);
  auto ready = [&] { return s.table.ready() * config_.block_size; };
  while (s.planned + count > ready() && !config_.contiguous() &&
         s.table.grow(layout_, blocks_, ready(), edits_of(s, out))) {
  }
  return std::min(count, ready() - s.planned);
}

void Scheduler::release_blocks(Index i) {
  if (config_.ranged()) return release_range(i);
  if (config_.mapped()) return release_pages(i);
  Sequence& s = seqs_[i];
  auto give = [&](BlockId b) {
    if (s.in_flight > 0) {
      pending_.push_back({next_step_ - 1, b});
    } else {
      blocks_.pool.release(b);
    }
  };
  blocks_.unpromise(s.table.promised(layout_of(s)));
  s.table.release(give, [&](BlockId b) { blocks_.pool.prefetch(b); });
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
  return chain_hash(parent, block_tokens(s, block), hash_map_.get());
}

Scheduler::Source Scheduler::find_block(const Sequence& s,
                                        int index,
                                        int group,
                                        BlockHash hash) const {
  PrefixKey key{hash, group, request_of(s).tenant};
  std::span<const Token> tokens = block_tokens(s, index);
  BlockId b = blocks_.index.find(key, tokens);
  return b != kNullBlock ? b : -blocks_.tiers.find(key, tokens);
}

// The index is much larger than caches: places that match_prefix() comes to are asked for ahead.
void Scheduler::prefetch_match(const Sequence& s, int num) const {
  const auto& hashes = request_of(s).block_hashes;
  auto far = static_cast<size_t>(num) + 16, near = static_cast<size_t>(num) + 8;
  for (int g = 0; g < layout_.num_groups; ++g) {
    if (layout_.windowed(g)) continue;
    if (far < hashes.size()) blocks_.index.prefetch_slot(hashes[far], g);
    if (near < hashes.size()) blocks_.pool.prefetch(blocks_.index.prefetch_entry(hashes[near], g));
  }
}

// The longest cached run of full blocks: all of them in groups that see everything, those still
// seen in window groups. At least one position is left to compute, for its logits; with
// log-probabilities wanted for the prompt, or the mean of its hidden states, all are.
int Scheduler::match_prefix(const Sequence& s) {
  chain_.clear(), found_.clear();
  if (!config_.prefix_cache || wants_scores(s) || s.pooling == Pooling::mean) return 0;
  int limit = (known_len(s) - 1) / config_.block_size, num = 0;
  for (BlockHash hash; num < limit; ++num) {
    if (num > 0) prefetch_match(s, num);
    hash = block_hash(s, num, hash);
    bool found = true;
    for (int g = 0; g < layout_.num_groups && found; ++g) {
      found_.push_back(layout_.windowed(g) ? kNullBlock : find_block(s, num, g, hash));
      found = layout_.windowed(g) || found_.back() != kNullBlock;
    }
    if (!found) break;
    chain_.push_back(hash);
  }
  return layout_.num_windowed > 0 ? window_hit(s, num) : num;
}

// The longest hit of at most `num` blocks whose end every window group has. A block that is missing
// rules out all hits that see it, so the next candidate ends before it: each block is looked up
// once.
int Scheduler::window_hit(const Sequence& s, int num) const {
  for (int index = num - 1; index >= 0; --index) {
    bool seen = false;
    for (int g = 0; g < layout_.num_groups; ++g) {
      if (!layout_.windowed(g) || index < layout_.first_seen(g, num * config_.block_size)) continue;
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
