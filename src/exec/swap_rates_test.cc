#include "exec/swap_rates.h"

#include <gtest/gtest.h>

#include "backend/ref/ref_backend.h"

namespace sluice {
namespace {

TEST(SwapRates, CopiesAreMeasuredBothWays) {
  auto backend = make_ref_backend();
  RealClock clock;
  CopyRates rates = measure_copies(*backend, clock);
  EXPECT_GT(rates.out, 0);
  EXPECT_GT(rates.in, 0);
}

// A clock that says that each copy took a second.
struct SlowClock final : Clock {
  Time now() const override { return Time(std::chrono::seconds(++calls)); }
  mutable int calls = 0;
};

TEST(SwapRates, ARateIsBytesByTime) {
  auto backend = make_ref_backend();
  CopyRates rates = measure_copies(*backend, SlowClock());
  EXPECT_EQ(rates.out, static_cast<double>(8 << 20));
  EXPECT_EQ(rates.in, rates.out);
}

TEST(SwapRates, ASlowWayBackCountsAsMuchAsASlowWayOut) {
  ModelShape shape;
  shape.num_layers = 1, shape.hidden = 8, shape.num_heads = 1, shape.num_kv_heads = 1;
  shape.head_dim = 8, shape.ffn = 8;
  SwapCost out = swap_cost(shape, 1000, 1, {{10, 1000}, 1e9, 1e9});
  SwapCost in = swap_cost(shape, 1000, 1, {{1000, 10}, 1e9, 1e9});
  EXPECT_EQ(out, in);
  EXPECT_NEAR(2 * out.move_block, 101, 1e-9);  // there and back
  SwapCost fast = swap_cost(shape, 1000, 1, {{1e12, 1e12}, 1e9, 1e9});
  EXPECT_FALSE(swap_pays(4, 1000, out));
  EXPECT_TRUE(swap_pays(4, 1000, fast));
}

}  // namespace
}  // namespace sluice
