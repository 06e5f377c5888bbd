// Decides what the next step computes. Owned by the engine thread.
// Deterministic: same calls, same plans. Reads no clock; takes `now`. Copyable: a copy plans alike.
// There is no prefill or decode state: a sequence has positions still to run, and a step gives it
// some.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "core/beam_search.h"
#include "core/block_cache.h"
#include "core/block_table.h"
#include "core/events.h"
#include "core/fair_share.h"
#include "core/kv_exporter.h"
#include "core/length_predictor.h"
#include "core/peak_forecast.h"
#include "core/pipeline.h"
#include "core/range_allocator.h"
#include "core/room_forecast.h"
#include "core/routing_policy.h"
#include "core/sequence.h"
#include "core/slo_budget.h"
#include "core/slot_pages.h"
#include "core/step_plan.h"
#include "core/swap_cost.h"

namespace sluice {

enum class Batching : uint8_t {
  static_,
  continuous
};                                                // static: no admission until all have finished
enum class Prefill : uint8_t { whole, chunked };  // may a prompt be spread over steps?
// May prompts and decodes share a step? separate: no, prompts first; decode_first: no, and prompts
// run only when nothing can decode.
enum class Mix : uint8_t { separate, decode_first, mixed };
enum class Order : uint8_t {
  fcfs,
  priority,         // the request's, lower first
  longest_output,   // by predicted output: fewest steps for a batch of requests
  shortest_output,  // by predicted output: smallest mean latency
  fair,             // the account that has had the fewest tokens (fair_share.h)
};
enum class Admission : uint8_t {
  reserve_max,     // the blocks that it may need at most are set aside
  watermark,       // eager: its known tokens fit, and a share of the pool stays free
  predicted_peak,  // with all that run it fits the pool until the end, if outputs are as predicted
};
// Where a sequence's blocks come from.
enum class KvAllocator : uint8_t {
  reserve,   // one run of consecutive blocks for max_len positions, claimed at admission
  range,     // one run for the prompt and the predicted output, best fit
  paged,     // any blocks, taken as the sequence grows; the only one that shares blocks
  virtual_,  // addresses for max_len positions in every slot, memory behind them page by page
};

// What becomes of the K and V of a preempted sequence.
enum class Preempt : uint8_t {
  recompute,  // dropped, but for what the prefix cache keeps
  swap,       // moved to host memory, while it has room and where that is cheaper
};

struct SchedulerConfig {
  Batching batching = Batching::continuous;
  Prefill prefill = Prefill::chunked;
  Mix mix = Mix::mixed;
  Order order = Order::fcfs;
  Time aging{0};  // in any order: who has waited longer goes before all others; 0: never
  Admission admission = Admission::watermark;
  PredictorConfig predictor;
  KvAllocator allocator = KvAllocator::paged;
  int budget = 512;      // tokens per step
  int chunk = 0;         // max prompt tokens in a step that also decodes; 0: all that is left
  int mixed_budget = 0;  // tokens per step that runs prompts and decodes; 0: budget
  // Prompt tokens beside decodes are chosen by the time that the step will take; none: the above.
  SloTarget slo;
  // Share of a step's prompt tokens that goes to prompts shorter than the one in front, which does
  // not fit the step. 0: strictly in order of service.
  float short_share = 0;
  int max_seqs = 256;  // sequences that run at once
  // New sequences start when so many slots are free, and then until none is or nobody waits; 0: 1.
  int prefill_delay = 0;
  int prefill_batch = 0;  // prompts per step; 0: any number
  // While nothing runs, new sequences wait so long for others to fill a step with them; 0: never.
  Time fill_wait{0};
  int max_len = 4096;  // positions of a sequence: prompt and output
  int num_blocks = 0;
  int block_size = 16;
  KvPages pages;  // under allocator=virtual: the memory of num_blocks is given out in these
  // One per cache group: how far back its layers see, 0 = everything. What lies outside the window
  // is given back, so that such a group holds few blocks however long a sequence gets.
  std::vector<int> group_windows = {0};
  float watermark = 0.01f;  // share of the pool that admission leaves free
  bool prefix_cache = true;
  Preempt preempt = Preempt::recompute;
  SwapCost swap_cost;
  TierSizes tiers;  // blocks of K and V outside the pool
  int max_queued = 1 << 20;
  Pipeline pipeline;        // the most that runs ahead: margins are sized for it
  SamplingLimits sampling;  // of the executor; requests beyond them are refused
  // A sequence's blocks are consecutive: nothing is shared, and window groups keep everything.
  bool contiguous() const { return allocator != KvAllocator::paged; }
  // Every sequence claims its one range of blocks at admission.
  bool ranged() const {
    return allocator == KvAllocator::reserve || allocator == KvAllocator::range;
  }
  bool mapped() const { return allocator == KvAllocator::virtual_; }
  // Pages under allocator=virtual, each in every cache group.
  int num_pages() const {
    return static_cast<int>(num_blocks * pages.block_bytes / pages.page_bytes /
                            static_cast<int64_t>(group_windows.size()));
  }
  // Positions that the pool has room for: each takes a block in every cache group.
  int64_t num_positions() const {
    return int64_t{num_blocks} * block_size / static_cast<int64_t>(group_windows.size());
  }
  bool operator==(const SchedulerConfig&) const = default;
};

// One of preset_names(), policy.h: sets the policy knobs, leaves sizes alone.
Result<void> apply_preset(std::string_view name, SchedulerConfig& config);

// Whether the request's beam search, if it is one, can be done with this configuration.
Result<void> check_beams(const Request& request, const SchedulerConfig& config);
// How its sequences sample: the likeliest tokens are all that counts.
std::shared_ptr<const SamplingSpec> beam_sampling(const Request& request);

class Scheduler;

// Blocks that a sequence was promised and has not taken count as its own.
struct BlockCounts {
  int free = 0, cached = 0, owned = 0, pending = 0, total = 0;
  bool conserved() const { return free + cached + owned + pending == total; }
};

// What a block is to somebody who looks on; shared: held by several sequences.
// reserved: in a sequence's range or pages, or kept mapped for the next sequence, not used yet.
enum class BlockUse : uint8_t { free, cached, owned, shared, pending, reserved };
inline constexpr size_t kNumBlockUses = 6;

// How well the KV pool is used, in positions of one cache group's blocks.
struct KvUse {
  int64_t total = 0;
  int64_t held = 0;      // of blocks that cannot be given to others
  int64_t unfilled = 0;  // of those, positions that running sequences hold without a token for them
  int64_t free = 0;
  int64_t largest = 0;  // the longest run of free ones that one sequence could have

  // Share of what is held that holds no token.
  double internal_fragmentation() const { return ratio(unfilled, held); }
  // Share of what is free that the largest run leaves out.
  double external_fragmentation() const { return ratio(free - largest, free); }
  // Share of the pool lost to both.
  double waste() const { return ratio(unfilled + free - largest, total); }
  static double ratio(int64_t part, int64_t all) {
    return all > 0 ? static_cast<double>(part) / static_cast<double>(all) : 0;
  }
};

// Blocks outside the pool. Counts are totals since the start, but for the places.
struct TierStats {
  int total_places = 0, used_places = 0;  // in memory
  uint64_t num_swapped = 0;               // preempted sequences whose blocks went out
  uint64_t num_restored = 0;              // of those, sequences whose blocks came back
  uint64_t blocks_out = 0, blocks_in = 0;
  size_t block_bytes = 0;
  uint64_t bytes_out() const { return blocks_out * block_bytes; }
  uint64_t bytes_in() const { return blocks_in * block_bytes; }
  uint64_t prefix_hits = 0;  // prompt tokens of SchedulerStats::prefix_hits that came in
  // The disk, whose blocks the counts above include.
  int disk_places = 0, used_disk_places = 0;
  uint64_t disk_writes = 0, disk_reads = 0;  // blocks
  uint64_t disk_lost = 0;  // blocks that were not written, or not found whole where they should be
  uint64_t disk_hits = 0;  // prompt tokens of prefix_hits that came from disk
  bool operator==(const TierStats&) const = default;
};

struct SchedulerStats {
  int num_waiting = 0, num_running = 0, num_in_flight = 0;
  int available_blocks = 0, total_blocks = 0;
  uint64_t num_preemptions = 0, prefix_queries = 0, prefix_hits = 0;  // prefix_*: prompt tokens
  TierStats tiers;
  SloStats slo;
};

// Is told of everything that a scheduler is told, in its order and when it is done: calls and their
// arguments are all that plans depend on. Called on the scheduler's thread.
class SchedulerListener {
 public:
  virtual ~SchedulerListener() = default;
  // `asked`: the request's sampling as it was given.
  virtual void added(const Scheduler& by,
                     const Request& request,
                     const SamplingSpec& asked,
                     Time now) noexcept = 0;
  virtual void cancelled(const Scheduler& by, RequestId id, Time now) noexcept = 0;
  virtual void planned(const Scheduler& by, const StepPlan& plan, Time now) noexcept = 0;
  // `events`: those that came of it.
  virtual void completed(const Scheduler& by,
                         const StepResult& result,
                         Time now,
                         std::span<const Event> events) noexcept = 0;
  virtual void appended(const Scheduler& by,
                        SeqId id,
                        std::span<const Token> tokens,
                        Time now,
                        std::span<const Event> events) noexcept = 0;
  // Cached prefixes are gone; requests and steps in flight go on.
  virtual void flushed(const Scheduler& by) noexcept = 0;
  // What was told so far explains nothing any more.
  virtual void reset(const Scheduler& by) noexcept = 0;
};

class Scheduler {
 public:
  Scheduler(SchedulerConfig config, std::shared_ptr<const TokenText> text);

  // Whether a scheduler of this configuration can ever run the request (400). Front ends may ask
  // before they submit.
  static Result<void> check(const Request& request, const SchedulerConfig& config);
  // The most blocks that a sequence of so many positions holds at once, over all groups; and the
  // most when its prompt is done.
  static int64_t most_blocks(int64_t positions, const SchedulerConfig& config);
  static int64_t decode_blocks(int64_t positions, const SchedulerConfig& config);
  // The error becomes 400 (cannot ever run) or 429 (queue full). A call that throws changes
  // nothing.
  Result<void> add(Request request, Time now);
  void cancel(RequestId id, Time now, Events& out);
  // Before the first request: what the disk holds from an earlier run.
  void recall(std::span<const StoredBlock> blocks) { blocks_.tiers.recall(blocks); }
  // Legal with a step in flight; reuses out's memory. An empty plan must not be launched.
  void plan(Time now, StepPlan& out, Events& events);
  void complete(const StepResult& result, Time now, Events& out);
  // Output tokens that are sure to follow the token of `event`, the last known one of its sequence:
  // what steps in flight sample there is these very tokens. They become events of their own, as if
  // they had been sampled, and the next step computes them as one chunk. Only where the executor
  // needs no history to sample the tokens behind them.
  void append(const Event& event, std::span<const Token> tokens, Time now, Events& out);
  // For when cancel(), plan() or complete() threw, which may leave half a change: forgets all
  // requests, steps in flight and cached prefixes. Allocates nothing. Step numbers and totals go
  // on.
  void reset() noexcept;
  // Forgets the cached prefixes that no sequence holds; legal with steps in flight. Returns how
  // many blocks became free.
  int flush_prefixes();
  // Not copied with the scheduler; outlives it, or is taken back with null.
  void listen(SchedulerListener* listener) { listener_.to = listener; }
  // Is told which prefixes are cached; likewise. list_prefixes() tells of all that are.
  void listen_kv(KvListener* listener);
  void list_prefixes(KvListener& to) const;
  // Takes blocks of requests with a lease; likewise. Needs places in host memory. `sends`: the
  // executor does Transfer::send.
  void export_to(KvExporter* exporter, bool sends = false);
  // Offers a prompt's cached blocks from number `first` on to the exporter, up to the first that is
  // not cached, as far as host memory has them or room for them, and at most `most` of them. Those
  // on disk alone do not count. Returns where to go on in a later step; the prompt's number of
  // blocks: that was all.
  int export_prefix(const PromptBlocks& prompt, int first, int most, LeaseId lease);
  // Leading blocks of a prompt that are cached, in any tier, in the groups that see everything.
  int num_cached_blocks(const PromptBlocks& prompt) const;
  // Places for those blocks of a prompt that are cached nowhere, as far as there are any, appended
  // to `out`: the caller fills them, from any thread, and hands them to import_blocks(), or back.
  void reserve_blocks(const PromptBlocks& prompt, std::vector<PlacedBlock>& out);
  // These places have been filled, and hold prefixes from now on.
  void import_blocks(const PromptBlocks& prompt, std::span<const PlacedBlock> blocks);
  // An exporter's, or of reserve_blocks().
  void release_places(std::span<const PlacedBlock> blocks);
  // Hashes of blocks are of these ids: who sees hashes and mapped tokens learns nothing of the
  // tokens. Before the first request; null: of the tokens.
  void hash_as(std::shared_ptr<const TokenMap> map) { hash_map_ = std::move(map); }
  // Whether complete() can take the result (400): for those that come from a file.
  Result<void> check(const StepResult& result) const;
  // The row of the oldest step's result that is this sequence's, or -1.
  int row_of(SeqId id) const;
  // Slots and epochs of the sequences that are beams of a search.
  void beam_rows(std::vector<std::pair<Slot, uint32_t>>& out) const {
    out.clear();
    if (beams_.empty()) return;
    for (Index i : running_)
      if (seqs_[i].beam) out.emplace_back(seqs_[i].slot, seqs_[i].epoch);
  }
  // Copies are equal until they are told different things.
  bool operator==(const Scheduler&) const = default;

  bool idle() const {
    return requests_live_ == 0 && flights_.empty() && closing_.empty() &&
           blocks_.moves.moving().empty();
  }
  // Is there anything plan() could schedule, now or after the steps in flight complete?
  bool has_work() const {
    return requests_live_ > 0 || !closing_.empty() || !blocks_.moves.moving().empty();
  }
  // Whether all there is to do waits for others to fill a step, as of the last plan().
  bool filling() const { return fill_until_ != kNever; }
  // When plan() has to be called though nothing happens.
  Time next_wakeup() const { return std::min(next_deadline_, fill_until_); }
  const SchedulerConfig& config() const { return config_; }
  // Live requests with a constraint.
  int num_constrained() const { return num_constrained_; }
  // A request that has not had its terminal event, else null. Valid until it has.
  const Request* find(RequestId id) const;
  SchedulerStats stats() const;
  BlockCounts count_blocks() const;  // walks everything: tests and /debug
  int num_held_places() const { return blocks_.tiers.num_held(); }
  // out[b - 1] is block b's, for as many as there is room. Walks the pool, allocates nothing.
  void block_uses(std::span<BlockUse> out) const;
  // Walks the running sequences, allocates nothing.
  KvUse kv_use() const;
  // The work that waits, runs and is cached when this request comes (routing_policy.h); without a
  // cost.
  WorkerView view_for(const Request& request) const;
  int expected_output(const Request& r) const { return predictor_.expect(r, 0); }  // tokens
  // --slo starts from these costs instead of from nothing; before the first step.
  void expect(const StepCost& cost) { slo_.start(cost); }
  // The most tokens a plan may hold: what executors size their workspace by.
  int max_step_tokens() const;

 private:
  friend struct SchedulerState;
  using Index = uint32_t;
  static constexpr Index kNone = UINT32_MAX;
  static constexpr int kMaxPreemptions = 3;
  struct InFlight {
    uint64_t step = 0;
    Time scheduled{0};
    SloBudget::Planned slo;  // where there is a target
    struct Item {
      Index seq;
      uint32_t epoch;
      int32_t pos, count;
      Want want;
      bool operator==(const Item&) const = default;
    };
    std::vector<Item> items;
    bool lost = false;  // a step before it has failed: whatever its result is, nobody waits for it
    bool operator==(const InFlight&) const = default;
  };
  struct PendingBlock {
    uint64_t step;
    BlockId block;
    bool operator==(const PendingBlock&) const = default;
  };
  // Under allocator=reserve and range: a sequence's blocks.
  struct Claim {
    BlockRange range;
    int predicted = 0;  // output tokens that the next range has room for
    bool operator==(const Claim&) const = default;
  };
  // Blocks of a sequence outside the pool.
  struct Away {
    std::vector<PlaceId> places;  // [rows, groups] of its table when it was preempted; or empty
    int positions = 0;            // that they hold
    int num_coming = 0;           // in transfers that it waits for
    bool lost = false;            // one of those has failed: it starts again
    bool counted = false;         // its prompt is in prefix_queries_
    bool operator==(const Away&) const = default;
  };
  // A request that searches. Its sequences are its beams: they share blocks, none is preempted, and
  // the blocks and slots that all of them may need at most are set aside when the first one starts.
  struct Beams {
    BeamSearch search;
    std::vector<Index> seqs;  // of search.beams(); before the first step: one
    std::vector<std::vector<BeamSearch::Option>> options;  // of these: what may follow
    int num_parked = 0;                                    // of these: those whose result is there
    int promised = 0;     // blocks set aside for sequences that hold none
    int held_slots = 0;   // slots for sequences that have not started
    bool chosen = false;  // the next beams are known, and plan() makes them
    bool operator==(const Beams&) const = default;
  };
  // Where a block's content is: a block of the pool, or a place outside it, negative; 0: nowhere.
  using Source = int32_t;
  struct Fetch {
    int index, group;
    PlaceId place;
    bool operator==(const Fetch&) const = default;
  };
  // A block whose way to host memory is not over.
  struct Export {
    LeaseId lease;
    PlacedBlock block;
    bool operator==(const Export&) const = default;
  };
  // A block for another process.
  struct Offer {
    LeaseId lease;
    int index, group;
    PrefixKey key;
    std::span<const Token> tokens;
    BlockHash parent;
    BlockId block;  // where the pool has it, or kNullBlock
  };
  struct PendingRange {
    uint64_t step;
    BlockRange range;
    bool operator==(const PendingRange&) const = default;
  };
  struct PendingSlot {
    uint64_t step;
    Slot slot;
    bool operator==(const PendingSlot&) const = default;
  };

  static const Request& request_of(const Sequence& s) { return *s.request; }
  static int prompt_len(const Sequence& s) { return s.num_prompt; }
  int known_len(const Sequence& s) const {
    return prompt_len(s) + static_cast<int>(s.output.size());
  }
  // Walks over thousands of sequences ask for what they come to a few turns later: first the
  // record, then what it points to.
  void prefetch(Index i) const {
    auto* line = reinterpret_cast<const std::byte*>(&seqs_[i]);
    for (size_t at = 0; at < 192; at += 64) __builtin_prefetch(line + at, 1);
  }
  void prefetch_output(Index i) const {
    const Sequence& s = seqs_[i];
    __builtin_prefetch(s.output.data() + s.output.size(), 1);
    __builtin_prefetch(&s.request->stop);
  }
  Token token_at(const Sequence& s, int pos) const;
  void append_tokens(const Sequence& s, int begin, int end, std::vector<Token>& out) const;

  // order of service
  bool before(Index a, Index b) const;
  int64_t waiting_rank(Index i) const;
  bool aged(Index i) const;
  void enqueue(Index i);
  void dequeue(Index i);
  size_t next_waiting() const;
  void promote_aged(Time now);
  void rank_running(Index i);
  void charge_accounts();

  int blocks_for(int positions) const { return layout_.blocks_for(positions); }
  int available_blocks() const {
    return config_.mapped()   ? blocks_in_pages(pages_.available())
           : config_.ranged() ? ranges_.num_free()
                              : blocks_.available();
  }
  EditLog edits_of(const Sequence& s, StepPlan& out) const { return {&out, s.slot}; }
  // Unchained, a sequence waits for the step that it is in, also when it was preempted meanwhile.
  // So does a beam: what follows depends on the others.
  bool must_wait(const Sequence& s) const {
    return (s.beam || !config_.pipeline.chained) && s.in_flight > 0;
  }
  int remaining(const Sequence& s) const;
  bool decoding(const Sequence& s) const {
    if (s.planned < prompt_len(s)) return false;
    int rest = remaining(s);
    return rest == 1 || (rest > 1 && s.forced);
  }
  bool wants_scores(const Sequence& s) const;
  Want wanted(const Sequence& s, int count) const;

  // plan
  void expire(Time now, Events& events);
  void fork_ready(Time now, StepPlan& out);
  void fork_choices(Index parent, Time now, StepPlan& out);
  void plan_decodes(StepPlan& out, int& budget);
  int prompt_budget(int num_decodes, int budget) const;
  int slo_tokens(Time now, int budget);
  int cached_tokens(const Request& request) const;  // leading ones of its prompt, whole blocks
  RoomUser room_of(const Sequence& s) const;
  RoomUser room_for(const Request& r, int known, int cached, int slots) const;
  void view_waiting(WorkerView& v, std::vector<RoomUser>& room) const;
  int64_t tokens_behind(Index front) const;
  void plan_prompts(Time now, bool may_admit, StepPlan& out, int& budget);
  void plan_short_prompts(Time now, bool may_admit, StepPlan& out, int& budget);
  void plan_prefills(StepPlan& out, int& budget);
  void run_prompt(Index i, StepPlan& out, int& budget);
  void emit_prompt(Index i, int rest, StepPlan& out, int& budget);
  bool prefilling(const Sequence& s) const {
    return s.planned_step != next_step_ && remaining(s) > 0 && !decoding(s);
  }
  Index front_prompt() const;
  Index shortest_prompt(Index front, bool may_admit) const;
  bool may_overtake(Index i, Index front, Index next) const;
  void admit(Time now, StepPlan& out, int& budget);
  bool admit_one(Index i, Time now, StepPlan& out, int& budget);
  bool can_start() const { return can_start(1); }
  bool can_start(int num) const;
  bool may_join();
  bool wait_to_fill(Time now);
  void preempt_for_priority();

  // admission
  bool has_blocks_for(Index i) const;
  int watermark_blocks() const;
  int kept_free(const Sequence& s) const;
  bool reservation_fits(int64_t blocks) const;
  bool peak_fits(const Sequence& s, const Sequence* other = nullptr) const;
  void add_peak(const Sequence& s) const;
  bool forecast_fits(const Sequence& s, const Sequence* other) const;

  int64_t growth_blocks(const Sequence& s, int tokens) const;
  void start(Index i, Time now, StepPlan& out);
  void emit_slice(Index i, int count, StepPlan& out);
  void finish_plan(Time now, StepPlan& out);
  void preempt(Index i);
  Index last_unplanned() const;
  Index last_preemptible() const;

  // blocks
  bool claim_blocks(Index i);
  int missing_blocks(const Sequence& s, int kept = 0) const;
  bool share_blocks(Sequence& s, const Sequence& parent);
  void slide_windows(StepPlan& out);
  int prompt_reach(const Sequence& s, int rows) const;
  void fill(Index i, int positions, StepPlan& out);
  bool feed(Index i, StepPlan& out);
  bool grow(Index i, StepPlan& out);
  int decode_count(Index i, int most, StepPlan& out);
  void release_blocks(Index i);
  int restore(Index i);
  int match_prefix(const Sequence& s);
  void prefetch_match(const Sequence& s, int num) const;
  int window_hit(const Sequence& s, int num) const;
  Source find_block(const Sequence& s, int index, int group, BlockHash hash) const;
  BlockHash block_hash(const Sequence& s, int block, BlockHash parent) const;
  std::span<const Token> block_tokens(const Sequence& s, int block) const;

  // beams
  static int64_t beam_blocks(const Request& r, const SchedulerConfig& config);
  int64_t reserve_blocks(const Sequence& s) const;
  // Beams keep all positions, in window groups too: what they may need is then known.
  const CacheLayout& layout_of(const Sequence& s) const { return s.beam ? whole_ : layout_; }
  bool slides(const Sequence& s) const { return layout_of(s).num_windowed > 0; }
  int num_slots(const Sequence& s) const { return s.beam ? request_of(s).n : 1; }
  // Sequences that this one will become.
  int num_forks(const Sequence& s) const {
    return s.fork_pending || (s.beam && s.output.empty()) ? request_of(s).n : 1;
  }
  int beam_rows(const Sequence& s) const { return blocks_for(prompt_len(s) + s.max_new); }
  int rows_of(const Sequence& s) const { return s.beam ? beam_rows(s) : blocks_for(known_len(s)); }
  int spare_blocks(const Sequence& s, int positions) const;
  void claim_beams(Index i);
  void unclaim_beams(uint32_t c);
  void take_beam(Index i, std::span<const TopLogprob> top, Event& event, Time now, Events& out);
  void end_beams(uint32_t c, const Event& event, Time now, Events& out);
  bool awaited(Index i) const;
  void fork_beams(Time now, StepPlan& out);
  void fork_group(uint32_t c, Beams& group, Time now, StepPlan& out);
  void fork_beam(Index i, Index parent, std::span<const BlockId> held, Time now, StepPlan& out);

  // blocks outside the pool
  bool swap_out(Index i);
  void fetch_blocks(Index i);
  void drop_fetch();
  void drop_swap(Index i);
  void take_in(const Moving& m);
  void lose_transfer(const Moving& m);
  void end_fetch(const Moving& m);
  void fail_transfers();
  void add_keys(StepPlan& out) const;

  // blocks for other processes
  int num_transferable(const PromptBlocks& prompt) const;
  void note_lease(Index i);
  void export_leased();
  void export_blocks(const Sequence& s);
  void export_block(const Sequence& s, int index, int group);
  int num_exportable(const Sequence& s) const;
  void send_leased();
  void send_blocks(const Sequence& s, const Slice& slice);
  bool offer_block(const Offer& offer);
  Offer find_offer(const PromptBlocks& prompt, int index, int group, LeaseId lease) const;
  void end_exports(PlaceId place, bool arrived);

  // blocks, under allocator=reserve and range
  int range_blocks(Index i) const;
  RangeRest range_rest(Index i) const;
  bool claim_range(Index i);
  bool grow_range(Index i, StepPlan& out);
  void release_range(Index i);
  void range_uses(std::span<BlockUse> out) const;
  BlockCounts count_ranges() const;

  // pages, under allocator=virtual
  SlotBlocks slot_blocks(Slot slot, int taken_rows) const;
  int blocks_in_pages(int pages) const {
    return static_cast<int>(config_.pages.blocks_in(pages) * layout_.num_groups);
  }
  int pages_of(const Sequence& s, int64_t positions) const;
  int kept_pages(const Sequence& s) const;
  bool has_pages_for(const Sequence& s) const;
  bool claim_pages(Index i);
  bool grow_pages(Index i);
  void release_pages(Index i);
  void release_slots(uint64_t step);
  void page_uses(std::span<BlockUse> out) const;
  BlockCounts count_pages() const;

  // complete
  void take_result(const InFlight::Item& item,
                   const Sampled* sampled,
                   const StepResult& result,
                   const InFlight& flight,
                   Time now,
                   Events& out);
  void take_vector(Index i, const Vector& vector, Event& event, Time now, Events& out);
  void grow_prediction(Sequence& s) const;
  void take_token(Index i, Token token, Event& event, Time now, Events& out);
  void take_transfers(const StepResult& result);
  void release_pending(uint64_t step);
  void register_step(const InFlight& flight);
  void register_blocks(Sequence& s);
  void finish(Index i, Finish why, Time now, Event event, Events& out);
  void finish_choices(uint32_t c, Finish why, Time now, Events& out);
  void leave_slot(Index i);
  void recycle(Index i);
  void reserve_records(size_t num_sequences);
  void add_sequence(uint32_t c, int choice);
  void withdraw(uint32_t c) noexcept;

  template <typename To>
  struct Listener {
    Listener() = default;
    Listener(const Listener&) noexcept {}
    Listener& operator=(const Listener&) noexcept { return *this; }
    bool operator==(const Listener&) const { return true; }
    To* to = nullptr;
  };

  SchedulerConfig config_;
  std::shared_ptr<const TokenText> text_;
  std::shared_ptr<const TokenMap> hash_map_;
  Listener<SchedulerListener> listener_;
  Listener<KvListener> kv_listener_;
  Listener<KvExporter> exporter_;
  Listener<KvExporter> sender_;  // the same, where the executor sends layers
  CacheLayout layout_;
  CacheLayout whole_;      // the same without windows
  BlockCache blocks_;      // allocator=paged
  RangeAllocator ranges_;  // allocator=reserve and range
  SlotPages pages_;        // allocator=virtual
  std::vector<Sequence> seqs_;
  std::vector<Standing> standings_;  // of seqs_
  std::vector<Index> free_seqs_;
  std::vector<Choices> choices_;
  std::vector<uint32_t> free_choices_;
  std::unordered_map<RequestId, uint32_t> choices_of_;  // looked up, never iterated
  int requests_live_ = 0;
  int num_constrained_ = 0;     // of those, with a constraint
  std::vector<Index> waiting_;  // in order of service, next one last; fair: by account
  std::vector<Index> running_;  // in order of service
  std::vector<Slot> free_slots_;
  std::map<uint32_t, Beams> beams_;  // by place in choices_
  int held_slots_ = 0;               // of free_slots_, those that beams will take
  std::vector<RowOp> closing_;       // rows to close with the next plan
  std::vector<InFlight> flights_;    // launched, oldest first
  std::vector<InFlight> spare_;
  std::vector<PendingBlock> pending_;
  std::vector<Away> away_;     // by sequence, where there are tiers
  std::vector<Claim> claims_;  // by sequence, under allocator=reserve and range
  std::vector<PendingRange> pending_ranges_;
  std::vector<PendingSlot> pending_slots_;  // under allocator=virtual
  std::vector<Index> full_;                 // register_step: sequences with a block to register
  std::vector<Index> leased_;               // the same: sequences with a lease
  std::multimap<PlaceId, Export> exports_;  // by the place that is being filled
  struct Draft {
    Slice slice;
    Index seq;
    bool operator==(const Draft&) const = default;
  };
  std::vector<Draft> draft_;             // the plan being made, in order of service
  std::vector<BlockHash> chain_;         // match_prefix: of the blocks it looks at
  std::vector<Source> found_;            // the same: what groups that see everything have of them
  std::vector<Fetch> fetch_;             // restore: blocks that must come in
  std::vector<int> fetched_;             // fetch_blocks: prefix blocks, by group
  mutable std::vector<Token> straddle_;  // a block's tokens when prompt and output meet in it
  Index blocked_ = kNone;  // the sequence that could not be admitted, and the blocks there were
  int blocked_available_ = 0;
  int reserved_ = 0;
  bool decode_blocked_ = false;   // a running sequence sat out the last step for want of a block
  bool prefill_blocked_ = false;  // the same for a prompt in progress
  bool forming_ = true;           // batching=static: the batch still takes sequences in
  bool joining_ = true;           // prefill_delay: enough slots were free, and sequences start
  int prompts_left_ = 0;          // prefill_batch: prompts that the step may still hold
  int32_t num_masks_ = 0;         // of the plan being made
  uint64_t next_step_ = 1;
  Time next_deadline_ = kNever;
  Time next_aging_ = kNever;  // when a waiting sequence has waited for `aging`
  Time fill_until_ = kNever;  // fill_wait: when those that wait start, whoever is there
  FairShare accounts_;        // under order=fair
  LengthPredictor predictor_;
  SloBudget slo_;
  struct Growth {
    int left;         // output tokens until its end
    int64_t held;     // positions it holds now, rounded up to blocks
    int num;          // sequences that grow like this
    int64_t windows;  // blocks in window groups
    bool operator==(const Growth&) const = default;
  };
  mutable std::vector<Growth> growths_;  // peak_fits: its own
  mutable PeakForecast forecast_;        // the same
  uint64_t num_preemptions_ = 0, prefix_queries_ = 0, prefix_hits_ = 0;
  TierStats tier_totals_;
};

}  // namespace sluice
