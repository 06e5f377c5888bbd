#include "exec/pooler.h"

#include <gtest/gtest.h>

namespace sluice {
namespace {

Slice slice(int32_t pos, int32_t count, Want want) {
  Slice s;
  s.pos = pos, s.count = count, s.want = want;
  return s;
}

PoolRow at(Pooling pooling, int32_t num_prompt) {
  PoolRow p;
  p.row = 5, p.slot = 1, p.pooling = pooling, p.num_prompt = num_prompt;
  return p;
}

TEST(Pooler, RowsThatASliceAsksFor) {
  std::vector<PoolRow> rows;
  add_pool_rows(slice(0, 3, Want::none), at(Pooling::mean, 3), rows);
  EXPECT_TRUE(rows.empty());
  add_pool_rows(slice(0, 3, Want::add), at(Pooling::mean, 5), rows);
  ASSERT_EQ(rows.size(), 3u);
  EXPECT_EQ(rows[2].row, 7);
  EXPECT_TRUE(rows[0].first && !rows[1].first && !rows[2].last);
  rows.clear();
  add_pool_rows(slice(3, 2, Want::pool), at(Pooling::mean, 5), rows);
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_TRUE(!rows[0].first && !rows[0].last && rows[1].last);
  rows.clear();
  add_pool_rows(slice(3, 2, Want::pool), at(Pooling::last, 5), rows);
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_EQ(rows[0].row, 6);
  EXPECT_TRUE(rows[0].last);
}

// States of a prompt of five in these chunks; of each position p: (p, 10 p).
std::vector<float> pooled(Pooler& pooler, Pooling pooling, const std::vector<int>& chunks) {
  StepResult result;
  result.rows.resize(1);
  int pos = 0;
  for (int count : chunks) {
    std::vector<PoolRow> rows;
    PoolRow first = at(pooling, 5);
    first.row = pos;
    add_pool_rows(slice(pos, count, pos + count == 5 ? Want::pool : Want::add), first, rows);
    for (const PoolRow& r : rows) {
      const float hidden[2] = {static_cast<float>(r.row), 10.0f * static_cast<float>(r.row)};
      pooler.add(r, hidden, result);
    }
    pos += count;
    if (pos < 5) {
      EXPECT_TRUE(result.pooled.empty());
    }
  }
  EXPECT_EQ(result.rows[0].pooled, 0);
  return *result.pooled.at(0);
}

TEST(Pooler, MeanAndLastWhateverTheChunks) {
  Pooler pooler(2);
  for (const std::vector<int>& chunks :
       {std::vector<int>{5}, std::vector<int>{1, 3, 1}, std::vector<int>{2, 3}}) {
    EXPECT_EQ(pooled(pooler, Pooling::mean, chunks), (std::vector<float>{2, 20}));
    EXPECT_EQ(pooled(pooler, Pooling::last, chunks), (std::vector<float>{4, 40}));
  }
}

// A prompt that was preempted starts again at its first position.
TEST(Pooler, AStartForgetsWhatWasThere) {
  Pooler pooler(2);
  StepResult none;
  std::vector<PoolRow> rows;
  add_pool_rows(slice(0, 2, Want::add), at(Pooling::mean, 5), rows);
  const float hidden[2] = {1000, 1000};
  for (const PoolRow& r : rows) pooler.add(r, hidden, none);
  EXPECT_EQ(pooled(pooler, Pooling::mean, {2, 3}), (std::vector<float>{2, 20}));
}

}  // namespace
}  // namespace sluice
