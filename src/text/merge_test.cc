#include "text/merge.h"

#include <random>

#include <gtest/gtest.h>

namespace sluice {
namespace {

// The definition, word for word: quadratic.
std::vector<Token> merge_slowly(const PairTable& table, std::vector<Token> s) {
  for (;;) {
    const PairTable::Entry* best = nullptr;
    size_t at = 0;
    for (size_t i = 0; i + 1 < s.size(); ++i) {
      const PairTable::Entry* e = table.find(s[i], s[i + 1]);
      if (e != nullptr && (best == nullptr || e->rank < best->rank)) {
        best = e;
        at = i;
      }
    }
    if (best == nullptr) return s;
    s[at] = best->merged;
    s.erase(s.begin() + static_cast<ptrdiff_t>(at) + 1);
  }
}

TEST(MergePairs, AgreesWithTheDefinition) {
  std::mt19937 rng(5);
  auto below = [&](uint32_t n) { return static_cast<Token>(rng() % n); };
  for (int round = 0; round < 300; ++round) {
    // Ranks repeat, as equal SentencePiece scores do; so do the ways to make a token.
    const uint32_t num_tokens = 2 + rng() % 20;
    PairTable table(60);
    for (int i = 0; i < 60; ++i) {
      table.insert({below(num_tokens), below(num_tokens), static_cast<uint32_t>(rng() % 25),
                    below(num_tokens)});
    }
    const size_t sizes[] = {0, 1, 2, 7, kSmallMerge, kSmallMerge + 1, 200};
    std::vector<Token> symbols;
    for (size_t i = 0; i < sizes[round % 7]; ++i) {
      symbols.push_back(rng() % 10 == 0 ? kNoToken : below(num_tokens));
    }
    std::vector<Token> expected = merge_slowly(table, symbols);
    std::vector<uint32_t> sources(symbols.size());
    for (size_t i = 0; i < sources.size(); ++i) sources[i] = static_cast<uint32_t>(i);
    const std::vector<Token> before = symbols;
    MergeScratch scratch;
    merge_pairs(table, symbols, &sources, scratch);
    ASSERT_EQ(symbols, expected) << "round " << round;
    ASSERT_EQ(sources.size(), symbols.size());
    for (size_t i = 0; i < symbols.size(); ++i) {
      if (i > 0) {
        ASSERT_LT(sources[i - 1], sources[i]);
      }
      if (symbols[i] == kNoToken) {
        ASSERT_EQ(before[sources[i]], kNoToken);
      }
    }
  }
}

// Every merge leaves at most two new pairs: the work is linear, but for the heap's logarithm.
TEST(MergePairs, WorkIsLinearInTheLength) {
  PairTable table(8);
  for (Token t = 0; t < 8; ++t) table.insert({t, t, static_cast<uint32_t>(t), t + 1});
  for (size_t n : {size_t{1} << 10, size_t{1} << 20}) {
    std::vector<Token> symbols(n, 0);
    MergeScratch scratch;
    merge_pairs(table, symbols, nullptr, scratch);
    EXPECT_EQ(symbols.size(), n / 256);
    EXPECT_LE(scratch.num_lookups, 3 * n);
    EXPECT_LE(scratch.num_pops, 3 * n);
  }
}

TEST(PairTable, KeepsTheFirstOfAPair) {
  PairTable table(2);
  table.insert({1, 2, 0, 3});
  table.insert({1, 2, 1, 4});
  ASSERT_NE(table.find(1, 2), nullptr);
  EXPECT_EQ(table.find(1, 2)->merged, 3);
  EXPECT_EQ(table.find(2, 1), nullptr);
  EXPECT_EQ(table.find(kNoToken, 2), nullptr);
}

}  // namespace
}  // namespace sluice
