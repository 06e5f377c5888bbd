#include "core/policy.h"

#include <gtest/gtest.h>

namespace sluice {
namespace {

TEST(Policy, NamesGoBothWays) {
  for (const std::string& name : names_in(kOrders))
    EXPECT_EQ(name_of(kOrders, *value_named(kOrders, name)), name);
  for (const std::string& name : names_in(kAdmissions))
    EXPECT_EQ(name_of(kAdmissions, *value_named(kAdmissions, name)), name);
  for (const std::string& name : names_in(kPipelines)) {
    Pipeline pipeline = *value_named(kPipelines, name);
    EXPECT_EQ(name_of(kPipelines, pipeline), name);
    EXPECT_TRUE(pipeline.valid()) << name;
  }
  for (const std::string& name : preset_names()) {
    SchedulerConfig c;
    EXPECT_TRUE(apply_preset(name, c)) << name;
  }
  SchedulerConfig c;
  auto unknown = apply_preset("best", c);
  ASSERT_FALSE(unknown);
  EXPECT_NE(unknown.error().message.find("decode-first"), std::string::npos);
}

TEST(Policy, PredictorsByName) {
  EXPECT_EQ(parse_predictor("oracle").value(), PredictorConfig{});
  EXPECT_EQ(parse_predictor("constant:40").value().tokens, 40);
  EXPECT_EQ(parse_predictor("histogram").value().kind, Predict::histogram);
  EXPECT_FLOAT_EQ(parse_predictor("quantile:0.9").value().quantile, 0.9f);
  for (const char* name : {"oracle", "constant:40", "histogram:0.5", "quantile:0.75"})
    EXPECT_EQ(predictor_name(parse_predictor(name).value()), name);
  for (const char* bad :
       {"", "stars", "oracle:1", "constant", "constant:", "constant:0", "constant:x", "constant:5x",
        "histogram:", "histogram:1", "quantile:0", "quantile:nan", "quantile:0.5x", "quantile:-1"})
    EXPECT_FALSE(parse_predictor(bad)) << bad;
}

TEST(Policy, WhatDoesNotGoTogetherIsRefusedByName) {
  auto refused = [](auto change, const char* flag) {
    SchedulerConfig c;
    change(c);
    auto ok = check_policies(c, false);
    ASSERT_FALSE(ok) << flag;
    EXPECT_EQ(ok.error().code, 400);
    EXPECT_NE(ok.error().message.find(flag), std::string::npos) << ok.error().message;
  };
  EXPECT_TRUE(check_policies(SchedulerConfig{}, false));
  SchedulerConfig swap;
  swap.preempt = Preempt::swap;
  EXPECT_TRUE(check_policies(swap, false));
  auto swapped_range = [](auto& c) {
    c.preempt = Preempt::swap;
    c.allocator = KvAllocator::range;
    c.prefix_cache = false;
  };
  refused(swapped_range, "--preempt swap");
  refused([](auto& c) { c.order = Order::fair; }, "--order fair");
  refused([](auto& c) { c.predictor.kind = Predict::constant; }, "--predict-output");
  refused([](auto& c) { c.prefill_delay = c.max_seqs + 1; }, "--prefill-delay");
  refused([](auto& c) { c.batching = Batching::static_, c.prefill_delay = 2; }, "--prefill-delay");
  SchedulerConfig fair;
  fair.order = Order::fair;
  EXPECT_TRUE(check_policies(fair, true));
  for (Order order : {Order::longest_output, Order::shortest_output}) {
    SchedulerConfig c;
    c.order = order;
    c.predictor.kind = Predict::histogram;
    EXPECT_TRUE(check_policies(c, false));
  }
}

}  // namespace
}  // namespace sluice
