// Random workloads over random cache groups against a shadow of the cache, which knows of every
// block and group what was written where: each query must find all that it sees, in its own group,
// of its own sequence. Blocks are conserved and bounded, every request ends once.
#include <algorithm>
#include <deque>
#include <map>
#include <random>
#include <set>
#include <tuple>
#include <utility>

#include <gtest/gtest.h>

#include "base/test_slice.h"
#include "core/fake_executor.h"
#include "core/plan_codec.h"
#include "core/policy.h"
#include "core/recording_fake.h"
#include "core/replay.h"
#include "core/scheduler.h"
#include "core/shadow_cache.h"

namespace sluice {
namespace {

struct Tally {
  uint64_t preemptions = 0, requeued = 0, unmapped = 0, hits = 0, forks = 0;
  uint64_t replayed = 0, segments = 0;  // plans of recordings; segments behind the first
  uint64_t exported = 0, imported = 0, unexported = 0;  // blocks
  uint64_t exported_prefix = 0;                         // of those, for no request
  uint64_t sent = 0;                                    // of all, as their step wrote them
  int64_t flushed = 0;                                  // blocks
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

// Leases of prefixes are numbered from here on: the request's id, and a multiple of this.
constexpr LeaseId kPrefixLease = 1000;

// Keeps what it is given for a while. Requests are their own leases.
class PickyExporter final : public KvExporter {
 public:
  PickyExporter(ShadowCache& cache, Tally& tally) : cache_(cache), tally_(tally) {}
  void offered(LeaseId lease) noexcept override { ++pending_[lease]; }
  bool exported(LeaseId lease, const PlacedBlock& block) noexcept override {
    EXPECT_GT(pending_[lease]--, 0);
    EXPECT_TRUE(seen_.insert({lease, block.index, block.group}).second) << "offered twice";
    cache_.check_place(lease % kPrefixLease, block);
    ++tally_.exported;
    tally_.exported_prefix += lease >= kPrefixLease;
    if (tally_.exported % 5 == 0) return false;
    held_.emplace_back(lease, block);
    return true;
  }
  void leaving(LeaseId lease, const PlacedBlock&, uint64_t) noexcept override {
    ++pending_[lease];
    ++tally_.sent;
  }
  void written(uint64_t, size_t) noexcept override {}
  void lost(LeaseId lease, const PlacedBlock&) noexcept override {
    EXPECT_GT(pending_[lease]--, 0);
    ++tally_.unexported;
  }
  void cleared() noexcept override { held_.clear(), pending_.clear(); }
  // Gives back what it has had longest, or all.
  void release(Scheduler& scheduler, size_t kept) {
    for (; held_.size() > kept; held_.pop_front()) {
      cache_.check_place(held_.front().first % kPrefixLease, held_.front().second);
      scheduler.release_places({&held_.front().second, 1});
    }
  }
  int num_pending() const {
    int sum = 0;
    for (const auto& [lease, num] : pending_) sum += num;
    return sum;
  }

 private:
  ShadowCache& cache_;
  Tally& tally_;
  std::map<LeaseId, int> pending_;
  std::set<std::tuple<LeaseId, int, int>> seen_;
  std::deque<std::pair<LeaseId, PlacedBlock>> held_;
};

class Workload {
 public:
  explicit Workload(uint64_t seed) : rng_(seed), seed_(seed) {
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
    flushes_ = seed % 7 == 2;
    exports_ = config_.prefix_cache && config_.tiers.host > 0 && seed % 3 == 2;
    for (auto& [id, r] : requests_) {
      if (!exports_) break;
      r.block_hashes = hash_blocks(*r.prompt, config_.block_size, r.tenant);
      if (chance(60)) r.lease = id;
    }
  }

  void run(Tally* tally) {
    Scheduler scheduler(config_, nullptr);
    SegmentEncoder encoder = record(scheduler);
    encoder.start(scheduler);
    if (!exports_) scheduler.listen(&encoder);
    config_.max_seqs = scheduler.config().max_seqs;
    config_.pages = scheduler.config().pages;
    ShadowCache cache(config_, requests_);
    PickyExporter exporter(cache, *tally);
    if (exports_) scheduler.export_to(&exporter, seed_ % 3 != 0);
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
      if (flushes_ && iteration % 32 == 31) tally->flushed += scheduler.flush_prefixes();
      if (exports_) import(scheduler, cache, tally);
      if (exports_ && chance(15)) export_prefix(scheduler);
      if (exports_) exporter.release(scheduler, static_cast<size_t>(pick(0, 40)));
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
    exporter.release(scheduler, 0);
    EXPECT_EQ(exporter.num_pending(), 0);
    import_rest(scheduler, cache, tally);
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
    if (!exports_) replay(tally);
  }

 private:
  // Blocks of prompts that come from elsewhere, some steps after places were set aside for them;
  // some never come.
  void import(Scheduler& scheduler, ShadowCache& cache, Tally* tally) {
    if (chance(80)) return;
    if (!coming_.empty() && chance(50)) return import_rest(scheduler, cache, tally);
    const Request& r = requests_.at(static_cast<RequestId>(pick(1, num_requests())));
    if (!coming_.empty()) return;
    coming_from_ = r.id;
    scheduler.reserve_blocks({r.prompt, r.block_hashes, r.tenant}, coming_);
    for (const PlacedBlock& b : coming_) cache.poison_place(b.place);
  }
  void export_prefix(Scheduler& scheduler) {
    const Request& r = requests_.at(static_cast<RequestId>(pick(1, num_requests())));
    if (r.block_hashes.empty()) return;
    const int first = pick(0, static_cast<int>(r.block_hashes.size()) - 1);
    scheduler.export_prefix({r.prompt, r.block_hashes, r.tenant}, chance(50) ? 0 : first,
                            pick(1, 6), r.id + kPrefixLease * ++num_prefixes_);
  }
  void import_rest(Scheduler& scheduler, ShadowCache& cache, Tally* tally) {
    if (coming_.empty()) return;
    const Request& r = requests_.at(coming_from_);
    auto end = coming_.begin() + pick(0, static_cast<int>(coming_.size()));
    std::vector<PlacedBlock> came(coming_.begin(), end), lost(end, coming_.end());
    for (const PlacedBlock& b : came) cache.fill_place(r.id, b);
    scheduler.import_blocks({r.prompt, r.block_hashes, r.tenant}, came);
    scheduler.release_places(lost);
    tally->imported += came.size();
    coming_.clear();
  }
  int num_requests() const { return static_cast<int>(requests_.size()); }

  // Every third recording has pseudonyms for tokens, some lose segments.
  SegmentEncoder record(Scheduler& scheduler) {
    std::shared_ptr<const TokenMap> map = seed_ % 3 == 1 ? shuffled_tokens(2, seed_) : nullptr;
    if (map) scheduler.hash_as(map);
    RecordingHeader header;
    header.vocab = 2;
    return {header, 500 + seed_ % 11 * 500, std::move(map), sink_};
  }
  // Each segment alone gives the plans that it holds.
  void replay(Tally* tally) const {
    for (const Bytes& segment : sink_.segments) {
      if (segment.empty()) continue;  // there was no room for its beginning
      Result<ScheduleReport> report = replay_schedule(segment);
      ASSERT_TRUE(report) << report.error().message;
      EXPECT_EQ(report->difference, "") << "segment " << report->header.segment;
      EXPECT_EQ(report->tail, RecordReader::Tail::whole);
      tally->replayed += report->num_plans;
      tally->segments += report->header.segment > 0;
      if (testing::Test::HasFailure()) return;
    }
  }

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
  uint64_t seed_;
  MemorySink sink_{[this] { return seed_ % 5 == 1 && ++num_writes_ % 17 == 0; }};
  int num_writes_ = 0;
  SchedulerConfig config_;
  int depth_ = 0;
  bool fails_ = false, flushes_ = false, exports_ = false;
  LeaseId num_prefixes_ = 0;
  std::vector<PlacedBlock> coming_;
  RequestId coming_from_ = 1;
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
  EXPECT_GT(tally.preemptions, uint64_t{2500}) << "the workloads prove too little";
  EXPECT_GT(tally.requeued, uint64_t{300}) << "outputs hardly outgrow their ranges";
  EXPECT_GT(tally.unmapped, uint64_t{300}) << "slots hardly take pages from each other";
  EXPECT_GT(tally.hits, uint64_t{10000});
  EXPECT_GT(tally.forks, uint64_t{1000});
  EXPECT_GT(tally.flushed, 1000) << "few prefixes are there to be flushed";
  EXPECT_GT(tally.replayed, uint64_t{20000});
  EXPECT_GT(tally.segments, uint64_t{5000}) << "few recordings begin in the middle";
  EXPECT_GT(tally.tiers.num_swapped, uint64_t{300}) << "few sequences are swapped";
  EXPECT_GT(tally.tiers.num_restored, uint64_t{200});
  EXPECT_GT(tally.tiers.prefix_hits, uint64_t{1000}) << "few prefixes come from host memory";
  EXPECT_GT(tally.tiers.disk_hits, uint64_t{800}) << "few prefixes come from disk";
  EXPECT_GT(tally.tiers.disk_lost, uint64_t{300}) << "few blocks are lost";
  EXPECT_GT(tally.exported, uint64_t{5000});
  EXPECT_GT(tally.exported_prefix, uint64_t{500});
  EXPECT_GT(tally.sent, uint64_t{500});
  EXPECT_GT(tally.unexported, uint64_t{5}) << "few exports are lost";
  EXPECT_GT(tally.imported, uint64_t{3000});
}

}  // namespace
}  // namespace sluice
