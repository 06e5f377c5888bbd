#include "exec/prefix_groups.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

namespace sluice {
namespace {

constexpr int kPerBlock = 16;

ExecutorConfig config(int slots, std::vector<int> windows = {0}) {
  ExecutorConfig c;
  c.num_blocks = 100'000;
  c.block_size = kPerBlock;
  c.max_seqs = slots;
  c.max_len = 64 * 1024;
  c.groups.windows = std::move(windows);
  return c;
}

// Tables as a scheduler would fill them, and steps that decode.
class Tables {
 public:
  explicit Tables(ExecutorConfig c, int64_t least = 1) : groups_(c, least), config_(c) {}

  // A sequence begins in the slot, with these blocks in every cache group.
  void open(Slot slot, const std::vector<int>& blocks) {
    RowOp op;
    op.slot = slot;
    plan_.rows.push_back(op);
    for (size_t g = 0; g < config_.groups.windows.size(); ++g)
      for (size_t k = 0; k < blocks.size(); ++k) edit(slot, k, blocks[k], g);
  }
  void edit(Slot slot, size_t index, int block, size_t group = 0) {
    plan_.edits.push_back({slot, static_cast<uint32_t>(index), static_cast<BlockId>(block),
                           static_cast<uint8_t>(group)});
  }
  bool step(const std::vector<std::pair<int, int>>& slot_and_pos) {
    groups_.read(plan_);
    plan_ = {};
    std::vector<SliceView> slices;
    for (auto [slot, pos] : slot_and_pos)
      slices.push_back({static_cast<int32_t>(slices.size()), 1, pos, slot});
    return groups_.find(slices);
  }
  const PrefixGroups& found() const { return groups_; }

 private:
  PrefixGroups groups_;
  ExecutorConfig config_;
  StepPlan plan_;
};

// `common` blocks from `first` on, then blocks of the sequence's own.
std::vector<int> blocks(int first, int common, int own, int num_own = 8) {
  std::vector<int> list;
  for (int k = 0; k < common; ++k) list.push_back(first + k);
  for (int k = 0; k < num_own; ++k) list.push_back(own + k);
  return list;
}
constexpr int positions(int blocks) { return blocks * kPerBlock; }

TEST(PrefixGroups, RowsWithOnePrompt) {
  Tables t(config(4));
  for (int s = 0; s < 3; ++s)
    t.open(static_cast<Slot>(s), blocks(1, 40, 1000 + 100 * s));  // 640 positions: two spans
  ASSERT_TRUE(t.step({{0, 700}, {1, 701}, {2, 702}}));
  ASSERT_EQ(t.found().groups().size(), 1u);
  EXPECT_EQ(t.found().groups()[0].rows, 3);
  EXPECT_EQ(t.found().groups()[0].positions, 512);
  EXPECT_EQ(t.found().members(), (std::vector<int32_t>{0, 1, 2}));
  EXPECT_EQ(t.found().places(),
            (std::vector<int32_t>{prefix_place(0, 0), prefix_place(0, 1), prefix_place(0, 2)}));
  EXPECT_EQ(t.found().saved(), 2 * 512);
}

TEST(PrefixGroups, NoneWhereTooLittleIsSaved) {
  Tables t(config(3), 1000);
  for (int s = 0; s < 3; ++s) t.open(static_cast<Slot>(s), blocks(1, 40, 1000 + 100 * s));
  EXPECT_FALSE(t.step({{0, 700}, {1, 700}}));  // 512 positions
  EXPECT_TRUE(t.found().groups().empty());
  EXPECT_TRUE(t.step({{0, 700}, {1, 700}, {2, 700}}));
}

TEST(PrefixGroups, NoneBelowASpan) {
  Tables t(config(2));
  for (int s = 0; s < 2; ++s) t.open(static_cast<Slot>(s), blocks(1, 15, 1000 + 100 * s, 40));
  EXPECT_FALSE(t.step({{0, 600}, {1, 600}}));
}

TEST(PrefixGroups, AGroupIsTheRowsThatSaveMost) {
  // A system prompt that all have, and a document that most have: not the first row.
  Tables t(config(6));
  t.open(0, blocks(1, 16, 9000));
  for (int s = 1; s < 6; ++s) {
    std::vector<int> list = blocks(1, 16, 500, 100);  // the same document
    for (int k = 0; k < 8; ++k) list.push_back(2000 + 100 * s + k);
    t.open(static_cast<Slot>(s), list);
  }
  ASSERT_TRUE(t.step({{0, positions(20)},
                      {1, positions(118)},
                      {2, positions(118)},
                      {3, positions(118)},
                      {4, positions(118)},
                      {5, positions(118)}}));
  // With the first row 256 positions of six rows; the others among themselves have 1,792.
  ASSERT_EQ(t.found().groups().size(), 1u);
  EXPECT_EQ(t.found().groups()[0].positions, 1792);
  EXPECT_EQ(t.found().members(), (std::vector<int32_t>{1, 2, 3, 4, 5}));
  EXPECT_EQ(t.found().saved(), 4 * 1792);
}

TEST(PrefixGroups, RowsThatHaveLittleInCommonHideNoGroup) {
  // All begin with a chat template's block. The first ten go on alone, the others with a document.
  Tables t(config(30));
  std::vector<std::pair<int, int>> rows;
  for (int s = 0; s < 30; ++s) {
    t.open(static_cast<Slot>(s),
           s < 10 ? blocks(1, 1, 1000 + 100 * s, 50) : blocks(1, 40, 1000 + 100 * s, 11));
    rows.push_back({s, positions(51)});
  }
  ASSERT_TRUE(t.step(rows));
  ASSERT_EQ(t.found().groups().size(), 1u);
  EXPECT_EQ(t.found().groups()[0].rows, 20);
  EXPECT_EQ(t.found().groups()[0].positions, 512);
}

TEST(PrefixGroups, ManyDocumentsBehindOneSystemPrompt) {
  // Ten documents of three rows each, in turns.
  Tables t(config(30));
  std::vector<std::pair<int, int>> rows;
  for (int s = 0; s < 30; ++s) {
    std::vector<int> list = blocks(1, 16, 1000 * (1 + s % 10), 40);
    for (int k = 0; k < 8; ++k) list.push_back(50'000 + 100 * s + k);
    t.open(static_cast<Slot>(s), list);
    rows.push_back({s, positions(60)});
  }
  for (int step = 0; step < 3; ++step) {
    ASSERT_TRUE(t.step(rows));
    ASSERT_EQ(t.found().groups().size(), 10u);
    EXPECT_EQ(t.found().saved(), 10 * 2 * 768);  // 56 blocks: three spans
  }
}

TEST(PrefixGroups, ASlotThatIsOpenedAgainIsComparedAgain) {
  Tables t(config(3));
  for (int s = 0; s < 2; ++s) t.open(static_cast<Slot>(s), blocks(1, 40, 1000 + 100 * s));
  ASSERT_TRUE(t.step({{0, 700}, {1, 700}}));
  t.open(1, blocks(1, 16, 5000, 40));
  ASSERT_TRUE(t.step({{0, 700}, {1, 700}}));
  EXPECT_EQ(t.found().groups()[0].positions, 256);
  t.open(0, blocks(3000, 40, 6000));
  EXPECT_FALSE(t.step({{0, 700}, {1, 700}}));
  t.edit(1, 3, 77);  // within what was compared before
  t.open(0, blocks(1, 16, 7000, 40));
  EXPECT_FALSE(t.step({{0, 700}, {1, 700}}));
}

TEST(PrefixGroups, AllGroupsWithoutAWindowMustAgree) {
  Tables t(config(2, {0, 0, 128}));
  for (int s = 0; s < 2; ++s) t.open(static_cast<Slot>(s), blocks(1, 40, 1000 + 100 * s));
  t.edit(1, 3, 4321, 2);  // of the group with a window: nothing
  ASSERT_TRUE(t.step({{0, 700}, {1, 700}}));
  EXPECT_EQ(t.found().groups()[0].positions, 512);
  t.edit(1, 20, 4321, 1);
  ASSERT_TRUE(t.step({{0, 700}, {1, 700}}));
  EXPECT_EQ(t.found().groups()[0].positions, 256);
}

TEST(PrefixGroups, NoMoreThanARowHas) {
  Tables t(config(2));
  for (int s = 0; s < 2; ++s) t.open(static_cast<Slot>(s), blocks(1, 64, 1000 + 100 * s));
  ASSERT_TRUE(t.step({{0, 1100}, {1, 600}}));  // computed to 600: what lies behind may not be
  EXPECT_EQ(t.found().groups()[0].positions, 512);
}

// Whatever is found: rows of a group have the same blocks, and no row is in two.
TEST(PrefixGroups, RandomTables) {
  std::mt19937 rng(5);
  auto below = [&](int n) { return static_cast<int>(rng() % static_cast<uint32_t>(n)); };
  for (int round = 0; round < 200; ++round) {
    const int slots = 2 + below(40);
    std::vector<std::vector<int>> tables(static_cast<size_t>(slots));
    Tables t(config(slots));
    int next = 10'000;
    for (int step = 0; step < 6; ++step) {
      std::vector<std::pair<int, int>> rows;
      for (int s = 0; s < slots; ++s) {
        auto& list = tables[static_cast<size_t>(s)];
        if (list.empty() || below(4) == 0) {
          list = blocks(1 + 1000 * below(3), below(100), next, 20 + below(20));
          next += 100;
          if (below(2) == 0)
            for (int k = 30; k < static_cast<int>(list.size()); ++k)
              list[static_cast<size_t>(k)] = next++;
          t.open(static_cast<Slot>(s), list);
        }
        if (below(3) > 0) rows.push_back({s, positions(static_cast<int>(list.size())) - 1});
      }
      std::shuffle(rows.begin(), rows.end(), rng);
      if (!t.step(rows)) continue;
      std::set<int32_t> seen;
      int64_t saved = 0;
      for (const PrefixGroup& g : t.found().groups()) {
        ASSERT_GE(g.rows, 2);
        ASSERT_EQ(g.positions, whole_spans(g.positions));
        saved += int64_t{g.rows - 1} * g.positions;
        const auto first = static_cast<size_t>(g.first);
        const int32_t leader = t.found().members()[first];
        const auto& of = tables[static_cast<size_t>(rows[static_cast<size_t>(leader)].first)];
        for (size_t k = first; k < first + static_cast<size_t>(g.rows); ++k) {
          const int32_t row = t.found().members()[k];
          ASSERT_TRUE(seen.insert(row).second);
          const auto& mine = tables[static_cast<size_t>(rows[static_cast<size_t>(row)].first)];
          ASSERT_LE(g.positions, rows[static_cast<size_t>(row)].second);
          for (int b = 0; b < g.positions / kPerBlock; ++b)
            ASSERT_EQ(mine[static_cast<size_t>(b)], of[static_cast<size_t>(b)]);
        }
      }
      EXPECT_EQ(saved, t.found().saved());
    }
  }
}

TEST(PrefixGroups, NoMoreGroupsThanADeviceTakes) {
  // Twenty documents of two rows; longer ones save more.
  Tables t(config(40));
  std::vector<std::pair<int, int>> rows;
  for (int s = 0; s < 40; ++s) {
    t.open(static_cast<Slot>(s), blocks(1 + 1000 * (s % 20), 16 + 16 * (s % 20), 50'000 + 100 * s));
    rows.push_back({s, positions(24 + 16 * (s % 20))});
  }
  ASSERT_TRUE(t.step(rows));
  ASSERT_EQ(t.found().groups().size(), static_cast<size_t>(kMaxPrefixGroups));
  EXPECT_EQ(t.found().groups().back().positions, 5 * 256);
}

TEST(PrefixGroups, WholeSpans) {
  EXPECT_EQ(whole_spans(255), 0);
  EXPECT_EQ(whole_spans(256), 256);
  EXPECT_EQ(whole_spans(16'383), 16'128);
  EXPECT_EQ(whole_spans(16'384 + 511), 16'384);
  EXPECT_EQ(whole_spans(16'384 + 512), 16'896);
  EXPECT_EQ(whole_spans(40'000), 39'936);
  int num = 0;
  for (int32_t at = 0; at < 100'000; ++at) {
    if (whole_spans(at) == at) ++num;
    ASSERT_EQ(num_spans(at + 1), num) << at;
  }
}

}  // namespace
}  // namespace sluice
