// K and V are computed in the right blocks, whatever sequences share: an executor that knows of
// each position which tokens lead to it stands for the model.
#include "exec/kv_restore.h"

#include <algorithm>
#include <map>
#include <random>
#include <vector>

#include <gtest/gtest.h>

namespace sluice {
namespace {

constexpr int kRestoreBlock = 4, kRestorePlaces = 24;

// Content of a position: a hash of its token and of the content before it.
uint64_t mix(uint64_t before, Token token) {
  uint64_t x =
      (before ^ (static_cast<uint64_t>(token) + 0x9E3779B97F4A7C15u)) * 0xBF58476D1CE4E5B9u;
  return x ^ (x >> 29);
}

class ShadowExecutor final : public Executor {
 public:
  ShadowExecutor(const ExecutorConfig& c, int num_extra)
      : groups_(c.groups.num_groups()),
        blocks(static_cast<size_t>(c.num_blocks + num_extra) + 1, Content(kRestoreBlock)),
        places(static_cast<size_t>(c.num_places) + 1, Content(kRestoreBlock)) {}

  void launch(const StepPlan& p) override {
    for (const TableEdit& e : p.edits) table_[{e.index, e.group}] = e.block;
    for (const Transfer& t : p.transfers) {
      ASSERT_TRUE(t.kind == Transfer::copy || t.kind == Transfer::out);
      auto& to = t.kind == Transfer::copy ? blocks : places;
      to.at(static_cast<size_t>(t.to)) = blocks.at(static_cast<size_t>(t.from));
    }
    for (const Slice& s : p.slices) {
      for (int g = 0; g < groups_; ++g) {
        for (int k = 0; k < s.count; ++k) {
          const int pos = s.pos + k;
          const uint64_t before = pos > 0 ? at(pos - 1, g) : 0;
          at(pos, g) = mix(before, p.tokens[s.token_at + static_cast<size_t>(k)]);
        }
      }
      num_computed += s.count;
    }
  }
  void masks(StepMasks) override {}
  const StepResult& wait() override { return result_; }

 private:
  using Content = std::vector<uint64_t>;
  uint64_t& at(int pos, int group) {
    const BlockId b = table_.at({static_cast<uint32_t>(pos / kRestoreBlock), group});
    EXPECT_NE(b, kNullBlock);
    return blocks.at(static_cast<size_t>(b)).at(static_cast<size_t>(pos % kRestoreBlock));
  }
  int groups_;
  std::map<std::pair<uint32_t, int>, BlockId> table_;
  StepResult result_;

 public:
  std::vector<Content> blocks, places;
  int num_computed = 0;
};

// Sequences that share beginnings, some of them with blocks of their own for the same tokens, in
// host memory, or without the blocks outside a window.
class Contents {
 public:
  explicit Contents(unsigned seed) : random_(seed) {
    config.block_size = kRestoreBlock, config.max_len = 64, config.max_step_tokens = pick(1, 20);
    config.num_places = kRestorePlaces;
    config.groups.windows.assign(static_cast<size_t>(pick(1, 2)), 0);
    const int num = pick(1, 8);
    for (int i = 0; i < num; ++i) add();
    std::ranges::sort(content.held, {}, &HeldTokens::tokens);
    config.num_blocks = next_ - 1 + pick(0, 10);
  }

  ExecutorConfig config;
  ExecutorContent content;

 private:
  int pick(int low, int high) { return std::uniform_int_distribution(low, high)(random_); }

  void add() {
    HeldTokens h;
    const HeldTokens* from = nullptr;
    if (!content.held.empty() && pick(0, 3) > 0)
      from = &content.held[static_cast<size_t>(pick(0, static_cast<int>(content.held.size()) - 1))];
    if (from)
      h.tokens.assign(from->tokens.begin(),
                      from->tokens.begin() + pick(0, static_cast<int>(from->tokens.size())));
    const int shared = static_cast<int>(h.tokens.size()) / kRestoreBlock, more = pick(0, 20);
    for (int k = 0; k < more && h.tokens.size() < 64; ++k) h.tokens.push_back(pick(0, 2));
    if (h.tokens.empty()) h.tokens.push_back(1);
    const bool shares = from && pick(0, 1) == 1, away = pick(0, 4) == 0;
    const int rows = (static_cast<int>(h.tokens.size()) + kRestoreBlock - 1) / kRestoreBlock;
    const int groups = config.groups.num_groups();
    const int first = pick(0, 3) == 0 ? pick(0, rows) : 0;  // that is not outside a window
    for (int k = 0; k < rows; ++k) {
      for (int g = 0; g < groups; ++g) {
        if (g == groups - 1 && k < first) continue;
        BlockId b = kNullBlock;
        if (shares && k < shared) {
          auto at = std::ranges::find_if(
              from->blocks, [&](const HeldBlock& x) { return x.index == k && x.group == g; });
          if (at != from->blocks.end()) b = at->block;
        }
        if (b == kNullBlock && away && place_ <= kRestorePlaces) b = -place_++;
        if (b == kNullBlock) b = next_++;
        h.blocks.push_back({k, g, b});
      }
    }
    const HeldTokens copy = h;
    content.held.push_back(copy);
  }

  std::mt19937 random_;
  BlockId next_ = 1, place_ = 1;
};

void expect_content(const ExecutorContent& content, const ShadowExecutor& executor) {
  for (const HeldTokens& h : content.held) {
    std::vector<uint64_t> want;
    for (Token t : h.tokens) want.push_back(mix(want.empty() ? 0 : want.back(), t));
    for (const HeldBlock& b : h.blocks) {
      const auto& is = b.block > 0 ? executor.blocks.at(static_cast<size_t>(b.block))
                                   : executor.places.at(static_cast<size_t>(-b.block));
      for (size_t k = 0; k < kRestoreBlock; ++k) {
        const size_t pos = static_cast<size_t>(b.index) * kRestoreBlock + k;
        if (pos < want.size()) {
          ASSERT_EQ(is[k], want[pos]) << "block " << b.block << " position " << pos;
        }
      }
    }
  }
}

TEST(KvRestore, EveryBlockHoldsItsTokens) {
  for (unsigned seed = 0; seed < 2000 && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(seed);
    const Contents c(seed);
    ASSERT_TRUE(KvRestore::check(c.content, c.config, 3));
    const BlockContents none;
    KvRestore restore(c.config, c.content, none);
    ShadowExecutor executor(c.config, restore.num_extra());
    const uint64_t computed = restore.run(executor, {});
    EXPECT_EQ(computed, static_cast<uint64_t>(executor.num_computed));
    expect_content(c.content, executor);
    // All is there: nothing more to compute, but for places.
    const BlockContents there(c.content, kRestoreBlock);
    KvRestore again(c.config, c.content, there);
    again.run(executor, {});
    expect_content(c.content, executor);
  }
}

// From one content to another with the same blocks in part.
TEST(KvRestore, OnlyWhatDiffersIsComputed) {
  uint64_t saved = 0;
  for (unsigned seed = 0; seed < 2000 && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(seed);
    Contents c(seed);
    ExecutorContent before = c.content;
    std::mt19937 random(seed);
    std::erase_if(before.held, [&](const HeldTokens&) { return random() % 3 == 0; });
    for (HeldTokens& h : before.held) {
      if (random() % 2) continue;
      h.tokens.resize(1 + random() % h.tokens.size());
      const int rows = (static_cast<int>(h.tokens.size()) + kRestoreBlock - 1) / kRestoreBlock;
      std::erase_if(h.blocks, [&](const HeldBlock& b) { return b.index >= rows; });
    }
    std::ranges::sort(before.held, {}, &HeldTokens::tokens);
    const BlockContents none, there(before, kRestoreBlock);
    KvRestore first(c.config, before, none), all(c.config, c.content, none),
        then(c.config, c.content, there);
    const int extra = std::max({first.num_extra(), all.num_extra(), then.num_extra()});
    ShadowExecutor executor(c.config, extra), fresh(c.config, extra);
    first.run(executor, {});
    expect_content(before, executor);
    const uint64_t less = then.run(executor, {}), whole = all.run(fresh, {});
    expect_content(c.content, executor);
    saved += whole > less ? whole - less : 0;
  }
  EXPECT_GT(saved, 10'000u);
}

TEST(KvRestore, UnknownBlocksStayAsTheyAre) {
  ExecutorConfig config;
  config.num_blocks = 3, config.block_size = kRestoreBlock, config.max_len = 32;
  config.max_step_tokens = 8, config.num_places = 1;
  config.groups.windows = {0};
  ExecutorContent content;
  content.held.push_back({{1, 2, 3, 4, 5}, {{1, 0, -1}}});  // in host memory only
  content.unknown = {1, 3};
  const BlockContents none;
  KvRestore restore(config, content, none);
  EXPECT_EQ(restore.num_extra(), 1) << "block 2 and one more";
  ShadowExecutor executor(config, restore.num_extra());
  EXPECT_EQ(restore.run(executor, {}), 5u);
  expect_content(content, executor);
  for (size_t b : {size_t{1}, size_t{3}})
    EXPECT_EQ(executor.blocks[b], std::vector<uint64_t>(kRestoreBlock)) << b;
}

TEST(KvRestore, RefusesWhatDoesNotFit) {
  ExecutorConfig config;
  config.num_blocks = 3, config.block_size = kRestoreBlock, config.max_len = 8,
  config.num_places = 1;
  config.groups.windows = {0};
  const auto check = [&](std::vector<Token> tokens, HeldBlock block) {
    ExecutorContent content;
    content.held.push_back({std::move(tokens), {block}});
    return KvRestore::check(content, config, 10).has_value();
  };
  EXPECT_TRUE(check({1, 2}, {0, 0, 3}));
  EXPECT_TRUE(check({1, 2}, {0, 0, -1}));
  EXPECT_FALSE(check({1, 10}, {0, 0, 3}));
  EXPECT_FALSE(check({1, -1}, {0, 0, 3}));
  EXPECT_FALSE(check(std::vector<Token>(9), {0, 0, 3}));
  EXPECT_FALSE(check({1, 2}, {1, 0, 3}));
  EXPECT_FALSE(check({1, 2}, {-1, 0, 3}));
  EXPECT_FALSE(check({1, 2}, {INT32_MAX, 0, 3}));
  EXPECT_FALSE(check({1, 2}, {0, 1, 3}));
  EXPECT_FALSE(check({1, 2}, {0, 0, 4}));
  EXPECT_FALSE(check({1, 2}, {0, 0, 0}));
  EXPECT_FALSE(check({1, 2}, {0, 0, -2}));
  EXPECT_FALSE(check({1, 2}, {0, 0, INT32_MIN}));
}

}  // namespace
}  // namespace sluice
