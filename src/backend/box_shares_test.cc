#include "backend/box_shares.h"

#include <algorithm>
#include <vector>

#include <gtest/gtest.h>

namespace sluice {
namespace {

// Every box is in one run, and a tile that is cut is begun by the first run of one block and ended
// by the last run of the next.
void check_shares(int tiles, int boxes, int blocks) {
  SCOPED_TRACE(testing::Message() << tiles << " tiles of " << boxes << " boxes for " << blocks
                                  << " blocks");
  std::vector<int> times(static_cast<size_t>(tiles * boxes));
  int least = tiles * boxes, most = 0;
  BoxShare::Run given{};
  bool gave = false;
  for (int block = 0; block < blocks; ++block) {
    const BoxShare share(tiles, boxes, block, blocks);
    least = std::min(least, share.last - share.first);
    most = std::max(most, share.last - share.first);
    bool gives = false, takes = false;
    BoxShare::Run to_give{};
    for (int i = 0; i < share.runs(); ++i) {
      const BoxShare::Run r = share.run(i);
      ASSERT_TRUE(r.tile >= 0 && r.tile < tiles && r.box < r.end);
      EXPECT_EQ(r.takes, r.box > 0);
      EXPECT_EQ(r.gives, r.end < boxes);
      for (int box = r.box; box < r.end; ++box) ++times[static_cast<size_t>(r.tile * boxes + box)];
      if (r.gives) {
        EXPECT_EQ(i, 0);
        gives = true, to_give = r;
      }
      if (!r.takes) continue;
      EXPECT_EQ(i, share.runs() - 1);
      takes = true;
      EXPECT_TRUE(gave && given.tile == r.tile && given.end == r.box);
    }
    EXPECT_EQ(takes, gave);
    gave = gives, given = to_give;
  }
  EXPECT_FALSE(gave);
  EXPECT_TRUE(std::all_of(times.begin(), times.end(), [](int n) { return n == 1; }));
  EXPECT_LE(most - least, 1);
}

TEST(BoxShares, EveryBoxOnceAndTilesInOrder) {
  for (int boxes : {1, 8, 9, 27, 56, 80, 296}) {
    for (int tiles : {1, 7, 56, 133, 160, 272, 296, 1188}) {
      for (int blocks : {1, 2, 5, 78, 131, 132}) {
        if (blocks <= tiles) check_shares(tiles, boxes, blocks);
      }
    }
  }
}

}  // namespace
}  // namespace sluice
