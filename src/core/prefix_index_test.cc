// The index against a map by content, with hashes that collide on purpose.
#include "core/prefix_index.h"

#include <map>
#include <random>
#include <set>
#include <tuple>

#include <gtest/gtest.h>

namespace sluice {
namespace {

constexpr int kSize = 4;

TEST(PrefixIndex, EqualsAMapByContentWhateverTheHashes) {
  using Key = std::tuple<uint64_t, int, TenantId, std::vector<Token>>;
  for (uint32_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 rng(seed);
    int blocks = 1 + static_cast<int>(rng() % 40);
    PrefixIndex index(blocks, kSize);
    std::map<Key, BlockId> naive;
    std::map<BlockId, Key> content;
    // Few hashes (some far apart, some neighbours), groups, tenants and tokens: long probe chains.
    uint64_t spread = rng() % 2 ? 1 : 0x123456789u;
    for (int i = 0; i < 400; ++i) {
      uint64_t h = rng() % 6 * spread;
      PrefixKey name{{h, h}, static_cast<int>(rng() % 2), rng() % 2};
      std::vector<Token> tokens(kSize);
      for (Token& t : tokens) t = static_cast<Token>(rng() % 2);
      Key key{h, name.group, name.tenant, tokens};
      auto known = naive.find(key);
      ASSERT_EQ(index.find(name, tokens), known == naive.end() ? kNullBlock : known->second);
      auto block = static_cast<BlockId>(1 + rng() % static_cast<uint32_t>(blocks));
      if (content.contains(block)) {
        if (rng() % 2) continue;
        index.erase(block);
        naive.erase(content[block]);
        content.erase(block);
      } else {
        bool added = index.insert(name, tokens, block);
        ASSERT_EQ(added, !naive.contains(key));
        if (added) naive[key] = block, content[block] = key;
      }
      ASSERT_EQ(index.size(), static_cast<int>(naive.size()));
    }
    for (const auto& [key, block] : naive) {
      auto [h, group, tenant, tokens] = key;
      ASSERT_EQ(index.find({{h, h}, group, tenant}, tokens), block);
    }
  }
}

TEST(PrefixIndex, HashesChainDependOnTheTenantAndCoverFullBlocksOnly) {
  std::vector<Token> prompt = {1, 2, 3, 4, 5, 6, 7, 8, 9};
  std::vector<BlockHash> hashes = hash_blocks(prompt, kSize, 0);
  ASSERT_EQ(hashes.size(), 2u);
  EXPECT_EQ(hashes[0], chain_hash(root_hash(0), std::span(prompt).first(4)));
  EXPECT_EQ(hashes[1], chain_hash(hashes[0], std::span(prompt).subspan(4, 4)));
  EXPECT_FALSE(hash_blocks(prompt, kSize, 1)[0] == hashes[0]);
  prompt[0] = 9;  // the second block is the same, what came before is not
  EXPECT_FALSE(hash_blocks(prompt, kSize, 0)[1] == hashes[1]);
  EXPECT_TRUE(hash_blocks(std::span(prompt).first(3), kSize, 0).empty());
}

TEST(PrefixIndex, HashesOfSmallChangesAreAllDifferent) {
  std::set<std::pair<uint64_t, uint64_t>> seen;
  size_t num = 0;
  auto add = [&](std::vector<Token> tokens) {
    BlockHash h = chain_hash(root_hash(0), tokens);
    seen.insert({h.a, h.b});
    ++num;
  };
  for (Token a = 0; a < 12; ++a)
    for (Token b = 0; b < 12; ++b)
      for (Token c = 0; c < 12; ++c) add({a, b, c}), add({a, b, c, 0});
  EXPECT_EQ(seen.size(), num);
}

}  // namespace
}  // namespace sluice
