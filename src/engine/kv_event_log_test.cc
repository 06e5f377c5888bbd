#include "engine/kv_event_log.h"

#include <gtest/gtest.h>

#include <set>

#include "core/fake_executor.h"
#include "core/scheduler.h"
#include "engine/loop.h"

namespace sluice {
namespace {

// A scheduler that computes nothing, with a log and a reader's idea of what is cached.
struct Mirrored {
  explicit Mirrored(SchedulerConfig c, size_t most = KvEventLog::kMost)
      : scheduler(c, nullptr), log([this] { ++num_wakes; }, most) {
    scheduler.listen_kv(&log);
  }
  void run(std::vector<Token> prompt, int max_new) {
    Request r;
    r.id = next_id++;
    r.block_hashes = hash_blocks(prompt, scheduler.config().block_size, 0);
    r.prompt = std::make_shared<const std::vector<Token>>(std::move(prompt));
    r.sampling = std::make_shared<const SamplingSpec>();
    r.max_new = max_new;
    ASSERT_TRUE(scheduler.add(std::move(r), clock.now()));
    Events events;
    while (scheduler.has_work()) {
      loop.iterate(events);
      log.hand_over(scheduler);
    }
  }
  void read() {
    KvChanges changes;
    while (log.take(changes)) {
      for (const KvChange& c : changes.list) {
        auto name = std::tuple(c.tier, c.key.hash.a, c.key.hash.b);
        if (c.kind == KvChange::cleared) known.clear();
        if (c.kind == KvChange::stored) {
          EXPECT_TRUE(known.insert(name).second) << "stored twice";
          std::vector<Token> tokens(changes.tokens.begin() + c.token_at,
                                    changes.tokens.begin() + c.token_at + c.num_tokens);
          EXPECT_EQ(chain_hash(c.parent, tokens), c.key.hash) << "tokens and parent make the hash";
        }
        if (c.kind == KvChange::removed) {
          EXPECT_EQ(known.erase(name), 1u) << "removed, and was not there";
        }
      }
    }
  }
  size_t of(KvTier tier) const {
    return static_cast<size_t>(
        std::ranges::count_if(known, [&](const auto& n) { return std::get<0>(n) == tier; }));
  }

  RealClock clock;
  Scheduler scheduler;
  FakeExecutor executor{[](const StepPlan&, const Slice&) { return Token{5}; }, Pipeline::sync};
  Loop loop{scheduler, executor, clock, Pipeline::sync};
  KvEventLog log;
  std::set<std::tuple<KvTier, uint64_t, uint64_t>> known;
  RequestId next_id = 1;
  int num_wakes = 0;
};

SchedulerConfig small_pool() {
  SchedulerConfig c;
  c.num_blocks = 12;
  c.block_size = 4;
  c.budget = 32;
  c.max_seqs = 2;
  c.max_len = 40;
  c.pipeline = Pipeline::sync;
  return c;
}

std::vector<Token> prompt_of(int seed, int size) {
  std::vector<Token> p;
  for (int k = 0; k < size; ++k) p.push_back(seed * 100 + k);
  return p;
}

TEST(KvEventLog, AReaderKnowsWhatIsCached) {
  SchedulerConfig c = small_pool();
  c.tiers.host = 6;
  Mirrored m(c);
  for (int i = 0; i < 20; ++i) {
    m.run(prompt_of(i % 7, 13), 6);
    m.read();
    ASSERT_EQ(m.of(KvTier::device), static_cast<size_t>(m.scheduler.count_blocks().cached));
    ASSERT_EQ(m.of(KvTier::host), static_cast<size_t>(m.scheduler.stats().tiers.used_places));
  }
  EXPECT_GT(m.of(KvTier::host), 0u) << "nothing was ever evicted";
  EXPECT_EQ(m.log.num_dropped(), 0u);
  EXPECT_EQ(m.log.num_snapshots(), 0u);
  m.scheduler.flush_prefixes();
  m.log.hand_over(m.scheduler);
  m.read();
  EXPECT_TRUE(m.known.empty());
}

TEST(KvEventLog, WhatIsNotReadIsReplacedByASnapshot) {
  Mirrored m(small_pool(), 8);
  for (int i = 0; i < 10; ++i) m.run(prompt_of(i, 13), 6);
  EXPECT_GT(m.log.num_dropped(), 8u);
  EXPECT_GT(m.log.num_snapshots(), 0u);
  m.read();
  EXPECT_EQ(m.of(KvTier::device), static_cast<size_t>(m.scheduler.count_blocks().cached));
  m.run(prompt_of(50, 13), 6);
  m.read();
  EXPECT_EQ(m.of(KvTier::device), static_cast<size_t>(m.scheduler.count_blocks().cached));
}

TEST(KvEventLog, ASnapshotThatIsAskedForStartsAnew) {
  Mirrored m(small_pool());
  m.run(prompt_of(1, 13), 2);
  m.read();
  const auto before = m.known;
  m.known.insert({KvTier::disk, 1, 1});  // what a reader got wrong
  m.log.ask_snapshot();
  m.log.hand_over(m.scheduler);
  m.read();
  EXPECT_EQ(m.known, before);
  EXPECT_EQ(m.log.num_dropped(), 0u);
}

TEST(KvEventLog, AResetClearsAll) {
  Mirrored m(small_pool());
  m.run(prompt_of(1, 13), 2);
  m.read();
  EXPECT_FALSE(m.known.empty());
  m.scheduler.reset();
  m.log.hand_over(m.scheduler);
  m.read();
  EXPECT_TRUE(m.known.empty());
  m.run(prompt_of(1, 13), 2);
  m.read();
  EXPECT_EQ(m.of(KvTier::device), static_cast<size_t>(m.scheduler.count_blocks().cached));
}

TEST(KvEventLog, NothingNewWakesNobody) {
  Mirrored m(small_pool());
  m.log.hand_over(m.scheduler);
  EXPECT_EQ(m.num_wakes, 0);
  m.run(prompt_of(1, 13), 2);
  EXPECT_EQ(m.num_wakes, 1) << "once, until it is read";
}

}  // namespace
}  // namespace sluice
