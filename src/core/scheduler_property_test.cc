// Random workloads over random cache groups against a shadow of the cache, which knows of every
// block and group what was written where: each query must find all that it sees, in its own group,
// of its own sequence. Blocks are conserved and bounded, every request ends once.
#include <algorithm>
#include <deque>
#include <map>
#include <random>
#include <set>
#include <utility>

#include <gtest/gtest.h>

#include "base/test_slice.h"
#include "core/fake_executor.h"
#include "core/plan_codec.h"
#include "core/policy.h"
#include "core/scheduler.h"

namespace sluice {
namespace {

uint64_t mixed(uint64_t a, uint64_t b) {
  uint64_t x = (a ^ (b + 0x9E3779B97F4A7C15u)) * 0xD1B54A32D192ED03u;
  return x ^ (x >> 29);
}

// Runs plans one after the other; what a position's K and V depend on is a hash of all tokens
// before.
class ShadowCache {
 public:
  ShadowCache(const SchedulerConfig& c, const std::map<RequestId, Request>& requests)
      : config_(c),
        requests_(requests),
        groups_(c.group_windows.size()),
        rows_(static_cast<size_t>(c.max_len / c.block_size + 1)),
        tables_(static_cast<size_t>(c.max_seqs) * groups_ * rows_, kNullBlock),
        mapped_(static_cast<size_t>(c.max_seqs)),
        content_(num_ids(c) * static_cast<size_t>(c.block_size)),
        places_(static_cast<size_t>((c.tiers.total() + 1) * c.block_size), kPoison) {}

  // Memory is mapped when a step is launched. What was not mapped before holds anything.
  void map(const StepPlan& plan) {
    for (const PageOp& op : plan.pages) {
      int before = mapped_[op.slot], now = static_cast<int>(op.num_pages);
      mapped_[op.slot] = now;
      for (size_t g = 0; g < groups_ && config_.mapped(); ++g) {
        for (int64_t k = 0; k < config_.pages.slot_blocks; ++k) {
          int page = config_.pages.pages_for(k + 1);
          if (page > std::min(before, now))
            std::fill_n(slot_block(op.slot, g, k), config_.block_size, kPoison);
        }
      }
    }
    int sum = 0;
    for (int m : mapped_) sum += m;
    EXPECT_LE(sum, config_.mapped() ? config_.num_pages() : 0) << "more pages than there are";
  }

  StepResult run(const StepPlan& plan) {
    for (const RowOp& op : plan.rows) {
      if (op.kind == RowOp::open) ids_[op.slot] = op.id;
    }
    for (const TableEdit& e : plan.edits) table(e.slot, e.group)[e.index] = e.block;
    for (const Transfer& t : plan.transfers) {
      if (!from_disk(t)) move(t);
    }
    for (const Slice& s : plan.slices) {
      for (int p = s.pos; p < s.pos + s.count; ++p) write(s, p);
    }
    for (const Slice& s : plan.slices) {
      for (int p = s.pos; p < s.pos + s.count; ++p) read(s, p);
    }
    StepResult result;
    auto draw = [&](const StepPlan&, const Slice& s) {
      return sample(ids_.at(s.slot), s.pos + s.count);
    };
    FakeExecutor::answer(plan, draw, result);
    if (config_.tiers.disk > 0) use_disk(plan, result);
    return result;
  }

  // The step failed: what its transfers should have filled holds anything.
  void lose(const std::vector<Transfer>& transfers) {
    for (const Transfer& t : transfers)
      std::fill_n(t.kind == Transfer::out ? place(t.to) : block(t.to), config_.block_size, kPoison);
  }

  // Overwrites what free blocks hold: a query that still sees one finds no value it expects.
  void poison(const Scheduler& scheduler) {
    if (config_.mapped()) return;  // map() does
    uses_.resize(static_cast<size_t>(config_.num_blocks));
    scheduler.block_uses(uses_);
    for (size_t k = 0; k < uses_.size(); ++k) {
      if (uses_[k] == BlockUse::free)
        std::fill_n(block(static_cast<BlockId>(k + 1)), config_.block_size, kPoison);
    }
  }

  // The token at a position of a sequence: of the prompt, or what was drawn there.
  Token token(SeqId id, int pos) const {
    const Request& r = requests_.at(id.req);
    auto at = static_cast<size_t>(pos);
    return at < r.prompt->size() ? (*r.prompt)[at] : sample(id, pos);
  }

 private:
  // Few tokens, and the same for many sequences: outputs meet in the prefix cache too.
  static Token sample(SeqId id, int pos) {
    return static_cast<Token>(mixed(id.req % 3 + id.choice % 2, static_cast<uint64_t>(pos)) % 2);
  }
  BlockId* table(Slot slot, size_t group) {
    return tables_.data() + (slot * groups_ + group) * rows_;
  }
  static size_t num_ids(const SchedulerConfig& c) {
    if (!c.mapped()) return static_cast<size_t>(c.num_blocks) + 1;
    return (static_cast<size_t>(c.max_seqs) * c.group_windows.size() + 1) *
           static_cast<size_t>(c.pages.slot_blocks);
  }
  uint64_t* slot_block(Slot slot, size_t group, int64_t index) {
    auto first = static_cast<int64_t>(slot * groups_ + group + 1) * config_.pages.slot_blocks;
    return block(static_cast<BlockId>(first + index));
  }
  // The block of a position: from the slot's table, or where its addresses are.
  uint64_t* at(Slot slot, size_t group, int pos) {
    int index = pos / config_.block_size;
    if (!config_.mapped()) return block(table(slot, group)[index]);
    EXPECT_LE(config_.pages.pages_for(index + 1), mapped_[slot]) << "position " << pos;
    return slot_block(slot, group, index);
  }
  uint64_t* block(BlockId b) {
    return content_.data() + static_cast<ptrdiff_t>(b) * config_.block_size;
  }
  uint64_t expected(SeqId id, int pos, size_t group) {
    std::vector<uint64_t>& h = prefix_[id];
    while (static_cast<int>(h.size()) <= pos) {
      uint64_t before = h.empty() ? requests_.at(id.req).tenant + 1 : h.back();
      h.push_back(
          mixed(before, static_cast<uint64_t>(token(id, static_cast<int>(h.size()))) + 100));
    }
    return mixed(h[static_cast<size_t>(pos)], group);
  }
  void move(const Transfer& t) {
    uint64_t* from = t.kind == Transfer::in ? place(t.from) : block(t.from);
    uint64_t* to = t.kind == Transfer::out ? place(t.to) : block(t.to);
    std::copy_n(from, config_.block_size, to);
  }
  bool from_disk(const Transfer& t) const {
    return t.kind == Transfer::in && t.from > config_.tiers.memory();
  }
  // Blocks come from disk some steps later; some are lost on their way there or back.
  void use_disk(const StepPlan& plan, StepResult& result) {
    std::erase_if(reads_, [&](const Transfer& t) { return t.id < plan.oldest; });
    auto lost = [&](const Transfer& t) {
      std::erase(result.transfers, t.id);
      result.lost.push_back(t.id);
    };
    for (const Transfer& t : plan.transfers) {
      bool disk = from_disk(t) || (t.kind == Transfer::out && t.to > config_.tiers.memory());
      ASSERT_EQ(t.key != kNoKey, disk);
      if (!disk) continue;
      ASSERT_EQ(plan.keys[static_cast<size_t>(t.key)].num_tokens,
                static_cast<uint32_t>(config_.block_size));
      if (from_disk(t)) {
        std::erase(result.transfers, t.id);
        reads_.push_back(t);
      } else if (luck_() % 8 == 0) {
        std::fill_n(place(t.to), config_.block_size, kPoison);
        lost(t);
      }
    }
    std::erase_if(reads_, [&](const Transfer& t) {
      if (luck_() % 3 != 0) return false;
      if (luck_() % 8 == 0) return lost(t), true;
      move(t);
      result.transfers.push_back(t.id);
      return true;
    });
  }
  uint64_t* place(PlaceId p) {
    EXPECT_LE(p, config_.tiers.total());
    return places_.data() + static_cast<ptrdiff_t>(p) * config_.block_size;
  }
  void write(const Slice& s, int pos) {
    for (size_t g = 0; g < groups_; ++g) {
      if (!config_.mapped()) {
        ASSERT_NE(table(s.slot, g)[pos / config_.block_size], kNullBlock)
            << "position " << pos << " has no block in group " << g;
      }
      at(s.slot, g, pos)[pos % config_.block_size] = expected(ids_.at(s.slot), pos, g);
    }
  }
  void read(const Slice& s, int pos) {
    for (size_t g = 0; g < groups_; ++g) {
      int window = config_.group_windows[g];
      for (int p = window == 0 ? 0 : std::max(0, pos - window + 1); p <= pos; ++p) {
        ASSERT_EQ(at(s.slot, g, p)[p % config_.block_size], expected(ids_.at(s.slot), p, g))
            << "a query at " << pos << " of request " << ids_.at(s.slot).req << " sees " << p
            << " in group " << g;
      }
    }
  }

  static constexpr uint64_t kPoison = 0xDEADBEEFDEADBEEF;

  const SchedulerConfig& config_;
  const std::map<RequestId, Request>& requests_;
  size_t groups_, rows_;
  std::vector<BlockUse> uses_;
  std::vector<BlockId> tables_;  // [slots, groups, rows_]
  std::vector<int> mapped_;      // pages, by slot
  std::vector<uint64_t> content_, places_;
  std::map<Slot, SeqId> ids_;
  std::map<SeqId, std::vector<uint64_t>> prefix_;
  std::vector<Transfer> reads_;  // on their way from disk
  std::mt19937 luck_{1};
};

struct Tally {
  uint64_t preemptions = 0, requeued = 0, unmapped = 0, hits = 0, forks = 0;
  TierStats tiers;
};

// The plan, encoded and decoded; expects it to be equal.
StepPlan encoded(const StepPlan& plan) {
  Bytes bytes;
  encode(plan, bytes);
  Result<StepPlan> back = decode_plan(bytes);
  EXPECT_TRUE(back) << back.error().message;
  EXPECT_EQ(*back, plan);
  return std::move(*back);
}
StepResult encoded(const StepResult& result) {
  Bytes bytes;
  encode(result, bytes);
  Result<StepResult> back = decode_result(bytes);
  EXPECT_TRUE(back) << back.error().message;
  EXPECT_TRUE(*back == result);
  return std::move(*back);
}

class Workload {
 public:
  explicit Workload(uint64_t seed) : rng_(seed) {
    static const std::vector<std::string> kPresets = preset_names();
    auto preset = static_cast<size_t>(pick(0, num_of(kPresets) - 1));
    apply_preset(chance(60) ? "sarathi" : kPresets[preset], config_).value();
    config_.group_windows.clear();
    int groups = pick(1, 4), windows[] = {pick(1, 9), pick(1, 40)};
    for (int g = 0; g < groups; ++g) {
      config_.group_windows.push_back(chance(35) ? 0 : windows[pick(0, 1)]);
    }
    config_.block_size = 1 << pick(0, 4);
    config_.max_len = 96;
    config_.budget = chance(50) ? pick(1, 8) : pick(8, 64);
    config_.chunk = chance(30) ? pick(1, 16) : 0;
    config_.short_share = chance(40) ? 0.25f * static_cast<float>(pick(1, 3)) : 0;
    config_.mixed_budget = chance(30) ? pick(1, 32) : 0;
    config_.max_seqs = pick(1, 8);
    config_.prefix_cache = chance(70);
    config_.prefill_delay = chance(20) ? pick(1, 8) : 0;
    config_.prefill_batch = chance(20) ? pick(1, 3) : 0;
    config_.watermark = chance(50) ? 0.0f : 0.1f;
    if (chance(60))
      config_.order = kOrders[pick(0, static_cast<int>(std::size(kOrders)) - 1)].value;
    if (chance(30)) config_.admission = kAdmissions[pick(0, 2)].value;
    config_.predictor = {static_cast<Predict>(pick(0, 4)), pick(1, 30), 0.5f};
    if (chance(30)) config_.aging = Time{pick(1, 40)};
    if (chance(20)) config_.mix = chance(50) ? Mix::separate : Mix::decode_first;
    depth_ = pick(0, 2);
    fails_ = seed % 7 == 0;
    // Margins for one step ahead, or for as many as there are; tokens from the device, or not.
    if (seed % 3 == 0) config_.pipeline = {depth_, seed % 2 == 0, 1};
    if (seed % 7 == 3) config_.fill_wait = Time{20};
    if (seed % 9 == 0) config_.pipeline = {depth_, false, depth_ + 1};
    if (chance(60)) {
      config_.preempt = chance(70) ? Preempt::swap : Preempt::recompute;
      if (chance(30)) config_.swap_cost = {1, 1, 8};
      config_.tiers.swap = chance(70) ? pick(1, 60) : 0;
      config_.tiers.host = chance(70) ? pick(1, 60) : 0;
    }
    make_requests();
    if (seed % 5 < 2) make_contiguous(seed % 5 == 0 ? KvAllocator::reserve : KvAllocator::range);
    if (seed % 10 == 3) make_virtual();
    for (const auto& [id, r] : requests_) {
      auto positions = static_cast<int64_t>(r.prompt->size()) + r.max_new;
      if (config_.allocator == KvAllocator::reserve) positions = config_.max_len;
      auto need = Scheduler::most_blocks(positions, config_);
      config_.num_blocks = std::max(config_.num_blocks, static_cast<int>(need));
    }
    config_.num_blocks += chance(70) ? pick(0, 3 * groups) : 300;
    if (config_.prefix_cache && seed % 4 == 0) config_.tiers.disk = pick(1, 80);
  }

  void run(Tally* tally) {
    Scheduler scheduler(config_, nullptr);
    config_.max_seqs = scheduler.config().max_seqs;
    config_.pages = scheduler.config().pages;
    ShadowCache cache(config_, requests_);
    Events events;
    StepPlan plan;
    std::deque<Flight> flights;
    auto next = requests_.begin();
    for (int iteration = 0; next != requests_.end() || !flights.empty() || scheduler.has_work();
         ++iteration) {
      ASSERT_LT(iteration, 20000) << "no progress";
      Time now{iteration};
      for (; next != requests_.end() && (chance(40) || !scheduler.has_work()); ++next) {
        auto ok = scheduler.add(arrived(next->second, now), now);
        ASSERT_TRUE(ok) << ok.error().message;
      }
      if (chance(2)) scheduler.cancel(static_cast<RequestId>(pick(1, 12)), now, events);
      scheduler.plan(now, plan, events);
      tally->forks += static_cast<uint64_t>(std::ranges::count_if(
          plan.transfers, [](const Transfer& t) { return t.kind == Transfer::copy; }));
      check_chunk(plan);
      for (const PageOp& op : plan.pages) {
        tally->unmapped += std::exchange(mapped_[op.slot], op.num_pages) > op.num_pages;
      }
      bool launched = !plan.empty();
      // A step fails, and those that are planned before it is known.
      bool failed = !flights.empty() && !flights.front().result.failure.empty();
      if (launched && failed) {
        flights.emplace_back().plan = plan;
        lose(flights.back(), cache);
      } else if (launched) {
        launch(encoded(plan), cache, flights);
      }
      if (fails_ && !failed && chance(2)) {
        for (Flight& f : flights) lose(f, cache);
      }
      if (testing::Test::HasFailure()) return;
      if (!flights.empty() && (static_cast<int>(flights.size()) > depth_ || !launched)) {
        compute(flights.front(), cache);
        if (testing::Test::HasFailure()) return;
        scheduler.complete(flights.front().result, now, events);
        flights.pop_front();
      }
      ASSERT_TRUE(scheduler.count_blocks().conserved());
      cache.poison(scheduler);
      check(events);
    }
    BlockCounts blocks = scheduler.count_blocks();
    EXPECT_EQ(blocks.free + blocks.cached, blocks.total) << "blocks left behind";
    for (const auto& [id, r] : requests_) EXPECT_TRUE(ended_[id]) << id;
    EXPECT_TRUE(scheduler.idle());
    EXPECT_EQ(scheduler.num_held_places(), 0) << "places left behind";
    const TierStats& tiers = scheduler.stats().tiers;
    tally->tiers.num_swapped += tiers.num_swapped;
    tally->tiers.num_restored += tiers.num_restored;
    tally->tiers.blocks_out += tiers.blocks_out;
    tally->tiers.blocks_in += tiers.blocks_in;
    tally->tiers.prefix_hits += tiers.prefix_hits;
    tally->tiers.disk_hits += tiers.disk_hits;
    tally->tiers.disk_lost += tiers.disk_lost;
    tally->preemptions += scheduler.stats().num_preemptions;
    if (config_.allocator == KvAllocator::range)
      tally->requeued += scheduler.stats().num_preemptions;
    tally->hits += scheduler.stats().prefix_hits;
  }

 private:
  struct Flight {
    StepPlan plan;
    int lane = 0;
    bool computed = false;
    std::set<SeqId> sequences;
    std::set<Slot> slots;  // whose rows, tables or tokens it reads or writes
    StepResult result;
  };

  // Steps in different lanes compute in any order, but for those that touch the same slot, and for
  // one that moves blocks between tiers: it has its turn between those before and behind it.
  void launch(StepPlan plan, ShadowCache& cache, std::deque<Flight>& flights) {
    Flight f;
    f.lane = num_launched_++ % config_.pipeline.lanes;
    cache.map(plan);
    for (const RowOp& op : plan.rows) {
      if (op.kind == RowOp::open) ids_[op.slot] = op.id, f.slots.insert(op.slot);
    }
    for (const TableEdit& e : plan.edits) f.slots.insert(e.slot);
    for (const Slice& s : plan.slices) f.slots.insert(s.slot), f.sequences.insert(ids_[s.slot]);
    f.plan = std::move(plan);
    auto meet = [](const auto& a, const auto& b) {
      return std::ranges::any_of(a, [&](const auto& x) { return b.contains(x); });
    };
    for (Flight& other : flights) {
      EXPECT_TRUE(config_.pipeline.chained || !meet(f.sequences, other.sequences))
          << "a sequence is in two steps in flight";
      if (other.lane == f.lane || meet(f.slots, other.slots) || moves(f.plan) || moves(other.plan))
        compute(other, cache);
    }
    flights.push_back(std::move(f));
    // Blocks that go out are free at once: only steps behind this one may use them.
    if (config_.pipeline.lanes == 1 || moves(flights.back().plan) || chance(50))
      compute(flights.back(), cache);
  }
  static bool moves(const StepPlan& plan) {
    return std::ranges::any_of(plan.transfers,
                               [](const Transfer& t) { return t.kind != Transfer::copy; });
  }
  static void compute(Flight& f, ShadowCache& cache) {
    if (!std::exchange(f.computed, true)) f.result = encoded(cache.run(f.plan));
  }
  static void lose(Flight& f, ShadowCache& cache) {
    f.computed = true;
    f.result = StepResult{};
    f.result.step = f.plan.step;
    f.result.failure = "lost";
    cache.lose(f.plan.transfers);
  }

  // Beside decodes prompts have their chunk, and no more. (A chained slice decodes for sure, one of
  // several tokens is a prompt's.)
  void check_chunk(const StepPlan& plan) const {
    for (const Slice& s : plan.slices) EXPECT_LE(s.chained, config_.pipeline.chained);
    if (config_.mix != Mix::mixed || config_.prefill != Prefill::chunked) return;
    int decodes = 0, prompts = 0;
    for (const Slice& s : plan.slices) {
      decodes += s.chained;
      if (s.count > 1) prompts += s.count;
    }
    if (decodes > 0 && config_.chunk > 0) {
      EXPECT_LE(prompts, config_.chunk);
    }
    if (decodes > 0 && config_.mixed_budget > 0) {
      int least = (config_.mixed_budget + 3) / 4;
      EXPECT_LE(prompts, std::max(config_.mixed_budget - decodes, least));
    }
  }
  static int num_of(const std::vector<std::string>& list) { return static_cast<int>(list.size()); }
  static Request arrived(Request r, Time now) {
    r.arrival = now;
    return r;
  }
  auto num_windowed() const {
    return std::ranges::count_if(config_.group_windows, [](int w) { return w > 0; });
  }
  int pick(int lo, int hi) {
    return lo + static_cast<int>(rng_() % static_cast<uint64_t>(hi - lo + 1));
  }
  bool chance(int percent) { return pick(1, 100) <= percent; }

  void make_requests() {
    std::vector<Token> family;
    for (int i = 0; i < 60; ++i) family.push_back(pick(0, 1));
    int num = pick(1, 12);
    for (int i = 1; i <= num; ++i) {
      Request r;
      r.id = static_cast<RequestId>(i);
      auto prompt = std::make_shared<std::vector<Token>>();
      int len = pick(1, 60), shared = chance(60) ? pick(0, len) : 0;
      for (int p = 0; p < len; ++p)
        prompt->push_back(p < shared ? family[static_cast<size_t>(p)] : pick(0, 1));
      r.prompt = prompt;
      auto spec = std::make_shared<SamplingSpec>();
      if (chance(15)) spec->prompt_logprobs = 0;
      r.sampling = spec;
      r.max_new = pick(1, 30);
      r.n = chance(25) ? pick(2, 4) : 1;
      r.priority = pick(0, 2);
      r.tenant = chance(20) ? 1 : 0;
      r.account = static_cast<TenantId>(pick(0, 3));
      requests_[r.id] = std::move(r);
    }
  }

  // Nothing shared; outputs predicted anyhow.
  void make_contiguous(KvAllocator allocator) {
    config_.allocator = allocator;
    config_.prefix_cache = false;
    config_.preempt = Preempt::recompute;
    config_.tiers = {};
    for (auto& [id, r] : requests_) {
      r.n = 1;
      r.predicted_output = chance(30) ? 0 : pick(1, 40);
    }
  }

  // Pages that are no multiple of blocks, and blocks that are none of pages.
  void make_virtual() {
    make_contiguous(KvAllocator::virtual_);
    if (config_.admission == Admission::predicted_peak) config_.admission = Admission::watermark;
    config_.pages.block_bytes = pick(1, 12);
    config_.pages.page_bytes = pick(1, 40);
  }

  void check(Events& events) {
    for (const Event& e : events.list) {
      EXPECT_FALSE(ended_[e.req]) << "an event after the terminal one";
      if (config_.order == Order::fcfs && num_windowed() == 0) {
        EXPECT_LE(e.timing.num_preemptions, 3) << "request " << e.req;
      }
      if (e.last) ended_[e.req] = true;
    }
    events.clear();
  }

  std::mt19937_64 rng_;
  SchedulerConfig config_;
  int depth_ = 0;
  bool fails_ = false;
  int num_launched_ = 0;
  std::map<Slot, SeqId> ids_;
  std::map<Slot, uint32_t> mapped_;
  std::map<RequestId, Request> requests_;
  std::map<RequestId, bool> ended_;
};

TEST(SchedulerProperty, EveryQueryFindsWhatItSees) {
  Tally tally;
  TestSlice slice;
  uint64_t num = 0;  // of 5,000
  for (uint64_t seed = 1; seed <= 5000; ++seed) {
    if (!slice.take()) continue;
    ++num;
    SCOPED_TRACE("seed " + std::to_string(seed));
    Workload(seed).run(&tally);
    if (HasFailure()) return;
  }
  if (num < 5000) return;  // a slice may leave out whole kinds of workloads
  EXPECT_GT(tally.preemptions, uint64_t{3000}) << "the workloads prove too little";
  EXPECT_GT(tally.requeued, uint64_t{300}) << "outputs hardly outgrow their ranges";
  EXPECT_GT(tally.unmapped, uint64_t{300}) << "slots hardly take pages from each other";
  EXPECT_GT(tally.hits, uint64_t{10000});
  EXPECT_GT(tally.forks, uint64_t{1000});
  EXPECT_GT(tally.tiers.num_swapped, uint64_t{300}) << "few sequences are swapped";
  EXPECT_GT(tally.tiers.num_restored, uint64_t{200});
  EXPECT_GT(tally.tiers.prefix_hits, uint64_t{1000}) << "few prefixes come from host memory";
  EXPECT_GT(tally.tiers.disk_hits, uint64_t{1000}) << "few prefixes come from disk";
  EXPECT_GT(tally.tiers.disk_lost, uint64_t{300}) << "few blocks are lost";
}

}  // namespace
}  // namespace sluice
