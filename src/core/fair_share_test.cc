#include "core/fair_share.h"

#include <gtest/gtest.h>

namespace sluice {
namespace {

FairShare::Account join(FairShare& f, TenantId id) {
  f.reserve();
  return f.join(id);
}

TEST(FairShare, WhoWasChargedLeastIsNext) {
  FairShare f;
  auto a = join(f, 10), b = join(f, 20), c = join(f, 30);
  f.add_waiting(a, 3);
  f.add_waiting(b, 2);
  f.charge(a, 5);
  f.charge(b, 3);
  EXPECT_EQ(f.next().account, b);  // c has been charged less, but has nothing waiting
  EXPECT_EQ(f.next().num_before, 3u);
  f.charge(b, 2);
  EXPECT_EQ(f.next().account, a);  // a tie goes to the older entry
  f.add_waiting(c, 1);
  EXPECT_EQ(f.next().account, c);
  EXPECT_EQ(f.next().num_before, 5u);
}

TEST(FairShare, ANewcomerStartsAtTheSmallestCounterOfTheActive) {
  FairShare f;
  auto a = join(f, 1), b = join(f, 2);
  f.charge(a, 100);
  f.charge(b, 70);
  EXPECT_EQ(f.charged(join(f, 3)), 70);
}

TEST(FairShare, ComingBackIsNoWayToLoseACharge) {
  FairShare f;
  auto a = join(f, 1), b = join(f, 2);
  f.charge(a, 100);
  f.charge(b, 10);
  f.leave(a);
  EXPECT_EQ(f.charged(join(f, 1)), 100);
  // Nor to save one up.
  f.leave(b);
  f.charge(a, 400);
  EXPECT_EQ(f.charged(join(f, 2)), 500);
}

TEST(FairShare, WithNobodyThereANewcomerStartsWhereTheLastOneLeft) {
  FairShare f;
  auto a = join(f, 1);
  f.charge(a, 100);
  f.leave(a);
  EXPECT_EQ(f.charged(join(f, 2)), 100);
}

TEST(FairShare, RemembersABoundedNumberOfIdleAccounts) {
  FairShare f;
  join(f, 1);  // stays, never charged: the level is 0, so that idle accounts keep their charges
  for (TenantId id = 2; id < 10'000; ++id) {
    auto a = join(f, id);
    EXPECT_LT(a, FairShare::kMaxIdle);
    f.charge(a, static_cast<int>(id));
    f.leave(a);
  }
  EXPECT_EQ(f.charged(join(f, 9'999)), 9'999);
}

}  // namespace
}  // namespace sluice
