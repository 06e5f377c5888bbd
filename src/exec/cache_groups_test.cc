// Which layers share blocks, for the shapes of models that people bring.
#include "exec/cache_groups.h"

#include <algorithm>
#include <set>

#include <gtest/gtest.h>

#include "backend/ref/ref_backend.h"
#include "core/step_plan.h"
#include "exec/kv_cache.h"

namespace sluice {
namespace {

ModelShape shape_of(std::vector<int> windows, int max_len) {
  ModelShape s;
  s.num_layers = static_cast<int>(windows.size());
  s.num_kv_heads = 2;
  s.head_dim = 8;
  s.max_len = max_len;
  s.windows = std::move(windows);
  return s;
}

// Every `period`-th layer sees everything.
std::vector<int> alternating(int num_layers, int window, int period) {
  std::vector<int> w(static_cast<size_t>(num_layers), window);
  for (size_t l = static_cast<size_t>(period) - 1; l < w.size(); l += static_cast<size_t>(period))
    w[l] = 0;
  return w;
}

void check(const CacheGroups& g, const ModelShape& shape) {
  ASSERT_LE(g.num_groups(), kMaxCacheGroups);
  ASSERT_EQ(g.layers.size(), static_cast<size_t>(shape.num_layers));
  std::set<std::pair<int, int>> places;
  for (size_t l = 0; l < g.layers.size(); ++l) {
    CacheGroups::Place p = g.layers[l];
    ASSERT_LT(p.plane, g.num_planes);
    EXPECT_TRUE(places.insert({p.group, p.plane}).second) << "two layers in one place";
    int window = g.windows[static_cast<size_t>(p.group)];
    EXPECT_TRUE(window == 0 || window == shape.windows[l]);
  }
}

TEST(CacheGroups, LayersThatAreAlikeAreOneGroup) {
  for (int window : {0, 4096}) {
    ModelShape s = shape_of(std::vector<int>(32, window), 32768);
    CacheGroups g = cache_groups(s);
    check(g, s);
    EXPECT_EQ(g.num_planes, 32);
    EXPECT_EQ(g.windows, std::vector<int>{window});
  }
  // Shapes made without windows have none.
  ModelShape plain = shape_of({}, 100);
  plain.num_layers = 5;
  EXPECT_EQ(cache_groups(plain).windows, std::vector<int>{0});
  EXPECT_EQ(cache_groups(plain).layers.size(), 5u);
  // A window as wide as the context hides nothing.
  EXPECT_EQ(cache_groups(shape_of({512, 0, 512, 0}, 512)).windows, std::vector<int>{0});
}

TEST(CacheGroups, OfRealShapes) {
  struct Case {
    const char* name;
    int num_layers, window, period, max_len;
    int planes, num_full, num_windowed;
  };
  const Case cases[] = {
      {"gemma2 2b", 26, 4096, 2, 8192, 13, 1, 1},   {"gemma2 9b", 42, 4096, 2, 8192, 21, 1, 1},
      {"gemma3 1b", 26, 512, 6, 32768, 4, 1, 6},    {"gemma3 4b", 34, 1024, 6, 131072, 5, 1, 6},
      {"gemma3 12b", 48, 1024, 6, 131072, 8, 1, 5}, {"gemma3 27b", 62, 1024, 6, 131072, 10, 1, 6},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    ModelShape s = shape_of(alternating(c.num_layers, c.window, c.period), c.max_len);
    CacheGroups g = cache_groups(s);
    check(g, s);
    EXPECT_EQ(g.num_planes, c.planes);
    EXPECT_EQ(std::ranges::count(g.windows, 0), c.num_full);
    EXPECT_EQ(std::ranges::count(g.windows, c.window), c.num_windowed);
    EXPECT_EQ(g.windows[0], 0);
  }
}

TEST(CacheGroups, FewWindowedLayersDoNotPadTheOthers) {
  std::vector<int> windows(26, 0);
  for (size_t l : {0u, 7u, 14u, 21u}) windows[l] = 1024;
  ModelShape s = shape_of(windows, 8192);
  CacheGroups g = cache_groups(s);
  check(g, s);
  EXPECT_EQ(g.num_planes, 11);
  EXPECT_EQ(g.windows, (std::vector<int>{0, 0, 1024}));
}

TEST(CacheGroups, MoreKindsThanGroupsKeepEverything) {
  std::vector<int> windows;
  for (int l = 0; l < kMaxCacheGroups + 1; ++l) windows.push_back(l + 1);
  ModelShape s = shape_of(windows, 1000);
  CacheGroups g = cache_groups(s);
  check(g, s);
  EXPECT_EQ(g.windows, std::vector<int>{0});
}

TEST(KvCache, GroupsSharePlanesAndDifferInTheirTables) {
  ModelShape s = shape_of({8, 0, 8}, 512);
  CacheGroups g = split_layers(s.windows, 2);
  ASSERT_EQ(g.windows, (std::vector<int>{0, 8}));
  std::unique_ptr<Backend> backend = make_ref_backend();
  KvCache cache(*backend, s, g, {DType::f16, 10, 16, 7});
  ASSERT_EQ(cache.planes().size(), 2u);
  EXPECT_EQ(cache.layers()[0].k, cache.planes()[0].k);
  EXPECT_EQ(cache.layers()[1].k, cache.planes()[0].k);
  EXPECT_EQ(cache.layers()[2].k, cache.planes()[1].k);
  EXPECT_EQ(cache.layers()[0].table_at, 7);
  EXPECT_EQ(cache.layers()[1].table_at, 0);
  EXPECT_EQ(cache.layers()[2].table_at, 7);
  size_t block = KvCache::bytes_per_block(s, g, DType::f16, 16);
  EXPECT_EQ(block, 2u * 2 * 2 * 8 * 16 * 2);  // planes, sides, heads, dimension, positions, f16
  EXPECT_EQ(cache.bytes(), block * 11);
}

}  // namespace
}  // namespace sluice
