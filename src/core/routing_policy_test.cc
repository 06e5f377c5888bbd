#include "core/routing_policy.h"

#include <gtest/gtest.h>

#include <vector>

namespace sluice {

namespace {

// 1 ms a step and 10 us a token: a prompt of 1,000 takes 11 ms, a step of one decode 1.01 ms.
const StepCost& line_cost() {
  static const StepCost cost = [] {
    StepCost c;
    c.rows = {{0, 1e-3}, {100'000, 1.001}};
    return c;
  }();
  return cost;
}

std::vector<WorkerView> idle_workers(size_t num) {
  std::vector<WorkerView> out(num);
  for (WorkerView& w : out) w.cost = &line_cost(), w.budget = 100'000;
  return out;
}

// `num` prompts of so many tokens wait there.
void queue_prompts(WorkerView& w, int num, int tokens) {
  for (int i = 0; i < num; ++i) w.queued += chunk_load(0, tokens);
}

void run_decodes(WorkerView& w, int num, int64_t positions) {
  w.decode = {num, num, num * positions, num * positions};
}

// Two that compute prompts, two that decode.
std::vector<WorkerView> apart_workers() {
  auto out = idle_workers(4);
  out[0].role = out[1].role = WorkerRole::prefill;
  out[2].role = out[3].role = WorkerRole::decode;
  return out;
}

int chosen(const RoutingConfig& c, const RoutedRequest& r, const std::vector<WorkerView>& w) {
  RoutingState state;
  return choose_worker(c, r, w, state).worker;
}

RoutingConfig policy(Routing p) {
  RoutingConfig c;
  c.policy = p;
  return c;
}

RoutingConfig rejecting_config() {
  RoutingConfig c;
  c.ttft = 0.1;
  c.reject = true;
  return c;
}

}  // namespace

TEST(RoutingPolicy, RandomTakesTheDraw) {
  const auto w = idle_workers(4);
  const RoutingConfig c = policy(Routing::random);
  for (uint64_t d = 0; d < 12; ++d) EXPECT_EQ(chosen(c, {.draw = d}, w), static_cast<int>(d % 4));
}

TEST(RoutingPolicy, RoundRobinTakesTurns) {
  auto w = idle_workers(3);
  RoutingState state;
  const RoutingConfig c = policy(Routing::round_robin);
  std::vector<int> got;
  for (int i = 0; i < 4; ++i) got.push_back(choose_worker(c, {}, w, state).worker);
  w[1].draining = true;
  for (int i = 0; i < 3; ++i) got.push_back(choose_worker(c, {}, w, state).worker);
  EXPECT_EQ(got, (std::vector<int>{0, 1, 2, 0, 2, 0, 2}));
}

TEST(RoutingPolicy, LeastLoadedCountsQueuedAndRunningTokens) {
  auto w = idle_workers(3);
  queue_prompts(w[0], 1, 500);
  run_decodes(w[1], 3, 100);
  run_decodes(w[2], 1, 400);
  EXPECT_EQ(chosen(policy(Routing::least_loaded), {}, w), 1);
  queue_prompts(w[1], 1, 101);
  EXPECT_EQ(chosen(policy(Routing::least_loaded), {}, w), 2);
}

TEST(RoutingPolicy, NobodyGetsWhatOnlyTheDeadCouldTake) {
  auto w = idle_workers(2);
  w[0].alive = false;
  w[1].draining = true;
  for (const auto& row : kRoutings) {
    RoutingState state;
    const RoutingChoice none = choose_worker(policy(row.value), {}, w, state);
    EXPECT_EQ(none.worker, -1) << row.name;
    EXPECT_FALSE(none.rejected) << row.name;
  }
  w[1].draining = false;
  for (const auto& row : kRoutings)
    for (uint64_t d = 0; d < 3; ++d)
      EXPECT_EQ(chosen(policy(row.value), {.draw = d}, w), 1) << row.name;
}

TEST(RoutingPolicy, ACachedPrefixAttracts) {
  auto w = idle_workers(3);
  w[2].cached = 900;
  RoutingState state;
  const RoutingChoice c = choose_worker(policy(Routing::cache_aware), {.tokens = 1000}, w, state);
  EXPECT_EQ(c.worker, 2);
  EXPECT_NEAR(c.estimate.own, 2e-3, 1e-5);  // 100 tokens
  EXPECT_EQ(c.estimate.wait, 0);
}

TEST(RoutingPolicy, AHotPrefixIsReplicatedWhenItsWorkerIsOverloaded) {
  auto w = idle_workers(2);
  w[0].cached = 9'000;
  const RoutedRequest r{.tokens = 10'000, .output = 1};
  queue_prompts(w[0], 8, 1'000);  // 81 ms of queue; computing the prefix takes 90 ms
  EXPECT_EQ(chosen({}, r, w), 0);
  queue_prompts(w[0], 4, 1'000);
  EXPECT_EQ(chosen({}, r, w), 1);
}

TEST(RoutingPolicy, AFetchedPrefixIsCheaperThanComputing) {
  auto w = idle_workers(3);
  w[0].cached = w[0].lendable = 9'000;
  w[1].cached = w[1].lendable = 1'000;
  for (WorkerView& v : w) v.fetches = v.lends = true;
  w[0].budget = 1'000;  // steps of 11 ms
  queue_prompts(w[0], 12, 1'000);
  w[2].draining = true;
  RoutingConfig c;
  c.transfer = 1e-6;
  c.fetch = true;
  RoutedRequest r{.tokens = 10'000, .output = 1, .fetches = true};
  RoutingState state;
  RoutingChoice choice = choose_worker(c, r, w, state);
  EXPECT_EQ(choice.worker, 1);
  EXPECT_EQ(choice.estimate.fetch_from, 0);
  EXPECT_EQ(choice.estimate.fetch_tokens, 8'000);
  EXPECT_EQ(choice.estimate.fetch_end, 9'000);
  // To begin, two steps of the holder, the transfer, and what is left to compute.
  EXPECT_NEAR(choice.estimate.own, 2e-3 + 22e-3 + 8e-3 + 11e-3, 1e-4);
  w[0].lending = 3;  // four share its link
  EXPECT_NEAR(choose_worker(c, r, w, state).estimate.own, 2e-3 + 22e-3 + 32e-3 + 11e-3, 1e-4);
  const auto not_fetched = [&] {
    const RoutingChoice other = choose_worker(c, r, w, state);
    return other.worker == 1 && other.estimate.fetch_from == -1 && other.estimate.own > 0.09;
  };
  w[0].lending = 30;  // dearer than computing
  EXPECT_TRUE(not_fetched());
  w[0].lending = 0;
  c.transfer = 1e-3;
  EXPECT_TRUE(not_fetched());
  c.transfer = 1e-6;
  r.fetches = false;
  EXPECT_TRUE(not_fetched());
  r.fetches = true;
  w[0].lends = false;
  EXPECT_TRUE(not_fetched());
  w[0].lends = true;
  w[1].fetches = false;
  EXPECT_TRUE(not_fetched());
  w[1].fetches = true;
  w[0].alive = false;
  EXPECT_TRUE(not_fetched());
  w[0].alive = true;
  w[0].pace = 40;  // steps of 440 ms: it would be given up
  EXPECT_TRUE(not_fetched());
  w[0].pace = 1;
  w[0].lendable = 0;  // it computes the prefix just now
  EXPECT_TRUE(not_fetched());
  w[0].lendable = 9'000;
  EXPECT_FALSE(not_fetched());
}

// A worker that is about to stop still lends.
TEST(RoutingPolicy, ADrainingWorkersPrefixIsFetched) {
  auto w = idle_workers(2);
  for (WorkerView& v : w) v.fetches = v.lends = true;
  w[0].cached = w[0].lendable = 9'000;
  w[0].draining = true;
  RoutingConfig c;
  c.transfer = 1e-6;
  c.fetch = true;
  RoutingState state;
  const RoutingChoice choice = choose_worker(c, {.tokens = 10'000, .fetches = true}, w, state);
  EXPECT_EQ(choice.worker, 1);
  EXPECT_EQ(choice.estimate.fetch_from, 0);
}

// Of several holders the one that sends first; the longer prefix counts for more.
TEST(RoutingPolicy, TheLeastBusyHolderLends) {
  auto w = idle_workers(4);
  for (WorkerView& v : w) v.fetches = v.lends = true, v.budget = 1'000;
  for (size_t i = 0; i < 3; ++i) w[i].cached = w[i].lendable = 9'000;
  for (size_t i = 0; i < 3; ++i) queue_prompts(w[i], 40, 1'000);
  w[1].pace = 0.5;
  RoutingConfig c;
  c.transfer = 1e-6;
  c.fetch = true;
  const auto holder = [&] {
    RoutingState state;
    return choose_worker(c, {.tokens = 10'000, .fetches = true}, w, state).estimate.fetch_from;
  };
  EXPECT_EQ(holder(), 1);
  w[1].lending = 40;  // its link is shared
  EXPECT_EQ(holder(), 0);
  w[2].lendable = 9'500;
  EXPECT_EQ(holder(), 2);
  w[2].pace = 40;  // nobody waits for it that long
  EXPECT_EQ(holder(), 0);
}

// A decode worker's own outputs wait for what it computes of a prompt, not for what it fetches.
TEST(RoutingPolicy, AFetchedPrefixDelaysNoDecodes) {
  auto w = idle_workers(2);
  for (WorkerView& v : w) v.role = WorkerRole::decode, v.lends = true;
  run_decodes(w[0], 32, 1'000);
  w[1].cached = w[1].lendable = 9'990;
  w[1].budget = 1'000;
  queue_prompts(w[1], 25, 1'000);  // 275 ms
  RoutingConfig c;
  c.transfer = 1e-6;
  const RoutedRequest r{.tokens = 10'000, .output = 1, .fetches = true};
  EXPECT_EQ(chosen(c, r, w), 1);  // computing it would make 32 outputs wait 100 ms
  c.fetch = true;
  EXPECT_EQ(chosen(c, r, w), 0);
}

TEST(RoutingPolicy, OnlyCacheAwareFetches) {
  auto w = idle_workers(2);
  for (WorkerView& v : w) v.fetches = v.lends = true;
  w[0].cached = w[0].lendable = 9'000;
  for (const auto& [name, value] : kRoutings) {
    RoutingConfig c = policy(value);
    c.transfer = 1e-6;
    c.fetch = true;
    w[0].draining = true;  // so that the other one is chosen
    RoutingState state;
    const RoutingChoice choice = choose_worker(c, {.tokens = 10'000, .fetches = true}, w, state);
    EXPECT_EQ(choice.worker, 1) << name;
    EXPECT_EQ(choice.estimate.fetch_from, value == Routing::cache_aware ? 0 : -1) << name;
  }
}

// A holder copies a long prefix in several steps, while it sends.
TEST(RoutingPolicy, ALongPrefixLeavesInSeveralSteps) {
  auto w = idle_workers(2);
  for (WorkerView& v : w) v.fetches = v.lends = true;
  w[0].cached = w[0].lendable = 40'000;
  w[0].budget = 1'000;
  queue_prompts(w[0], 90, 1'000);  // steps of 11 ms
  RoutingConfig c;
  c.transfer = 1e-7;
  c.fetch = true;
  const RoutedRequest r{.tokens = 40'001, .fetches = true};
  RoutingEstimate e = estimate_request(c, r, w, 1, 0);
  EXPECT_EQ(e.fetch_from, 0);
  EXPECT_NEAR(e.own, 0.002 + 6 * 0.011 + 0.001, 1e-3);  // two steps, four more, and its own
  EXPECT_NEAR(e.fetch_wait, 0.002 + 2 * 0.011, 1e-3);
  c.transfer = 5e-6;  // 200 ms: the link is slower
  e = estimate_request(c, r, w, 1, 0);
  EXPECT_NEAR(e.own, 0.002 + 2 * 0.011 + 0.2 + 0.001, 1e-3);
}

TEST(RoutingPolicy, SessionsStayForSmallDifferences) {
  auto w = idle_workers(2);
  queue_prompts(w[1], 1, 100);  // 2 ms
  const RoutedRequest r{.tokens = 1000, .output = 1, .home = 1};
  EXPECT_EQ(chosen({}, r, w), 1);
  EXPECT_EQ(chosen({}, {.tokens = 1000, .output = 1}, w), 0);
  queue_prompts(w[1], 1, 2'000);
  EXPECT_EQ(chosen({}, r, w), 0);
  w[0].alive = false;
  EXPECT_EQ(chosen({}, r, w), 1);
  EXPECT_EQ(chosen({}, {.tokens = 10, .home = 7}, w), 1);  // no such worker
}

TEST(RoutingPolicy, ProgressAndPaceCount) {
  auto w = idle_workers(2);
  queue_prompts(w[0], 1, 10'000);
  queue_prompts(w[1], 1, 9'000);
  const RoutedRequest r{.tokens = 100, .output = 1};
  EXPECT_EQ(chosen({}, r, w), 1);
  w[0].progress = 0.05;
  EXPECT_EQ(chosen({}, r, w), 0);
  w[0].pace = 3;
  EXPECT_EQ(chosen({}, r, w), 1);
}

TEST(RoutingPolicy, AFullPoolMeansWaiting) {
  auto w = idle_workers(2);
  for (WorkerView& v : w) run_decodes(v, 10, 1'000);
  w[0].free_tokens = 100;
  w[1].free_tokens = 50'000;
  RoutingState state;
  EXPECT_EQ(choose_worker({}, {.tokens = 2'000, .home = 0}, w, state).worker, 1);
  w[1].alive = false;
  const RoutingChoice c = choose_worker({}, {.tokens = 2'000, .output = 100}, w, state);
  // 1,900 of the 10,000 positions that are held, of 100 steps of 1.1 ms.
  EXPECT_NEAR(c.estimate.wait, 0.19 * 100 * 1.1e-3, 1e-4);
  // Known to be 50 steps, whatever is free.
  w[0].room_steps = 50;
  EXPECT_NEAR(choose_worker({}, {.tokens = 2'000}, w, state).estimate.wait, 50 * 1.1e-3, 1e-4);
  w[0].room_steps = 0;
  EXPECT_EQ(choose_worker({}, {.tokens = 2'000}, w, state).estimate.wait, 0);
}

TEST(RoutingPolicy, PromptsGoToPrefillWorkersAndOutputsElsewhere) {
  auto w = apart_workers();
  queue_prompts(w[0], 1, 100);
  run_decodes(w[2], 40, 100);
  run_decodes(w[3], 20, 100);
  RoutingState state;
  const RoutingChoice c = choose_worker({}, {.tokens = 5'000}, w, state);
  EXPECT_EQ(c.worker, 1);
  EXPECT_EQ(c.decoder, 3);
  EXPECT_EQ(choose_decoder({}, {.tokens = 5'000}, w), 3);
}

TEST(RoutingPolicy, AShortPromptIsComputedWhereItIsDecoded) {
  auto w = apart_workers();
  RoutingConfig c;
  c.transfer = 1e-6;
  RoutingState state;
  for (const int64_t tokens : {1, 50}) {
    const RoutingChoice one = choose_worker(c, {.tokens = tokens}, w, state);
    EXPECT_EQ(w[static_cast<size_t>(one.worker)].role, WorkerRole::decode) << tokens;
    EXPECT_EQ(one.decoder, -1);
  }
  // A long prompt would hold up the decodes there.
  for (size_t i : {2, 3}) run_decodes(w[i], 20, 100);
  RoutingChoice one = choose_worker(c, {.tokens = 2'000}, w, state);
  EXPECT_EQ(w[static_cast<size_t>(one.worker)].role, WorkerRole::prefill);
  EXPECT_GE(one.decoder, 2);
  EXPECT_NEAR(one.estimate.own, 21e-3 + 2e-3 + 1.36e-3, 2e-4);  // prompt, transfer, its tail
  // Unless the prefill workers have so much to do that they wait less in the end.
  for (size_t i : {0, 1}) queue_prompts(w[i], 1, 90'000);
  one = choose_worker(c, {.tokens = 2'000}, w, state);
  EXPECT_EQ(w[static_cast<size_t>(one.worker)].role, WorkerRole::decode);
  // Or the link is slow.
  for (size_t i : {0, 1}) w[i].queued = {};
  c.transfer = 1e-2;
  one = choose_worker(c, {.tokens = 2'000}, w, state);
  EXPECT_EQ(w[static_cast<size_t>(one.worker)].role, WorkerRole::decode);
}

TEST(RoutingPolicy, WhoeverIsLeftDoesAll) {
  auto w = apart_workers();
  for (const auto& row : kRoutings) {
    RoutingState state;
    const auto role = [&](const RoutingChoice& c) {
      EXPECT_EQ(c.decoder, -1) << row.name;
      return c.worker < 0 ? WorkerRole::both : w[static_cast<size_t>(c.worker)].role;
    };
    const RoutingConfig c = policy(row.value);
    // A request that cannot be split.
    EXPECT_EQ(role(choose_worker(c, {.tokens = 9'000, .whole = true}, w, state)),
              WorkerRole::decode);
    w[0].alive = w[1].alive = false;
    EXPECT_EQ(role(choose_worker(c, {.tokens = 9'000}, w, state)), WorkerRole::decode);
    w[0].alive = w[1].alive = true;
    w[2].alive = w[3].alive = false;
    EXPECT_EQ(role(choose_worker(c, {.tokens = 9'000}, w, state)), WorkerRole::prefill);
    EXPECT_EQ(choose_decoder(c, {.tokens = 9'000}, w), -1);
    w[2].alive = w[3].alive = true;
  }
}

TEST(RoutingPolicy, OtherPoliciesSplitEveryPrompt) {
  auto w = apart_workers();
  for (const auto& row : kRoutings) {
    if (row.value == Routing::cache_aware) continue;
    RoutingState state;
    for (uint64_t d = 0; d < 4; ++d) {
      const RoutingChoice c = choose_worker(policy(row.value), {.tokens = 1, .draw = d}, w, state);
      EXPECT_LT(c.worker, 2) << row.name;
      EXPECT_GE(c.decoder, 2) << row.name;
    }
  }
}

TEST(RoutingPolicy, AWorkerOfBothRolesTakesOverIfItFetches) {
  auto w = apart_workers();
  w[2].role = w[3].role = WorkerRole::both;
  EXPECT_EQ(choose_decoder({}, {.tokens = 100}, w), -1);
  w[3].fetches = true;
  EXPECT_EQ(choose_decoder({}, {.tokens = 100}, w), 3);
}

TEST(RoutingPolicy, RejectsByPredictedPrefill) {
  auto w = idle_workers(1);
  const RoutingConfig c = rejecting_config();
  RoutingState state;
  const RoutedRequest r{.tokens = 1'000};  // 11 ms: 89 ms are left
  queue_prompts(w[0], 1, 8'000);           // 81 ms
  EXPECT_EQ(choose_worker(c, r, w, state).worker, 0);
  queue_prompts(w[0], 1, 2'000);
  const RoutingChoice no = choose_worker(c, r, w, state);
  EXPECT_TRUE(no.rejected);
  EXPECT_EQ(no.worker, -1);
  // It is taken as soon as the wait is below the share at which it takes requests again.
  w[0].progress = no.retry_after * 0.99;
  EXPECT_TRUE(choose_worker(c, r, w, state).rejected);
  w[0].progress = no.retry_after * 1.001;
  EXPECT_EQ(choose_worker(c, r, w, state).worker, 0);
}

TEST(RoutingPolicy, RejectsByPredictedDecode) {
  auto w = idle_workers(1);
  RoutingConfig c;
  c.tpot = 2e-3;  // 100 rows
  c.reject = true;
  RoutingState state;
  run_decodes(w[0], 90, 10);
  EXPECT_EQ(choose_worker(c, {.tokens = 10}, w, state).worker, 0);
  queue_prompts(w[0], 60, 10);  // they decode by then
  const RoutingChoice no = choose_worker(c, {.tokens = 10}, w, state);
  EXPECT_TRUE(no.rejected);
  EXPECT_GT(no.retry_after, 0);
  // What no worker can keep is not rejected for ever: alone it runs.
  c.tpot = 1e-4;
  auto idle = idle_workers(1);
  state = {};
  EXPECT_EQ(choose_worker(c, {.tokens = 10}, idle, state).worker, 0);
}

TEST(RoutingPolicy, RejectionDoesNotFlap) {
  auto w = idle_workers(1);
  const RoutingConfig c = rejecting_config();
  RoutingState state;
  const RoutedRequest r{.tokens = 1'000};
  // The queue swings by 5 % around the limit: one change, not one per swing.
  int changes = 0;
  bool last = false;
  for (int i = 0; i < 100; ++i) {
    w[0].queued = {};
    queue_prompts(w[0], 1, i % 2 == 0 ? 9'200 : 8'500);
    const bool now = choose_worker(c, r, w, state).rejected;
    changes += now != last;
    last = now;
  }
  EXPECT_EQ(changes, 1);
  EXPECT_TRUE(last);
}

TEST(RoutingPolicy, RejectionDoesNotStarve) {
  const RoutingConfig c = rejecting_config();
  // Short requests keep the queue just below their own limit; a long one has less time left.
  auto w = idle_workers(1);
  queue_prompts(w[0], 1, 9'000);
  RoutingState state;
  RoutedRequest r{.tokens = 9'500};
  int rejections = 0;
  while (choose_worker(c, r, w, state).rejected && rejections < 20) r.attempts = ++rejections;
  EXPECT_GT(rejections, 0);
  EXPECT_LE(rejections, 4);
  // One that misses its objective even alone is taken by an idle worker at once.
  auto idle = idle_workers(1);
  state.rejecting = true;
  EXPECT_EQ(choose_worker(c, {.tokens = 50'000}, idle, state).worker, 0);
}

}  // namespace sluice
