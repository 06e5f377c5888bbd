#include "core/conductor.h"

#include <gtest/gtest.h>

namespace sluice {

namespace {

using std::chrono::milliseconds;

std::vector<ConductorWorker> conducted(size_t num) {
  ConductorWorker w;
  w.cost.rows = {{0, 1e-3}, {100'000, 1.001}};  // 1 ms a step, 10 us a token
  w.budget = 100'000;
  return std::vector<ConductorWorker>(num, w);
}

const std::vector<uint64_t> kBlocks = {11, 22, 33};
Conductor::Ask with_prefix() { return {.tokens = 2'000, .blocks = kBlocks, .block_tokens = 512}; }

}  // namespace

TEST(Conductor, WhatWasSentCountsUntilItEnds) {
  Conductor c({}, conducted(1));
  const Conductor::Ask ask{.tokens = 100, .blocks = {}};
  const auto a = c.sent(0, ask, Time{0});
  const auto b = c.sent(0, ask, Time{0});
  EXPECT_EQ(c.view(0, ask, Time{0}).queued.tokens, 200);
  EXPECT_EQ(c.view(0, ask, Time{0}).queued.sampled, 2);
  c.tokens(a, 1, milliseconds(2));
  c.tokens(a, 4, milliseconds(3));
  WorkerView v = c.view(0, ask, milliseconds(2));
  EXPECT_EQ(v.queued.tokens, 100);
  EXPECT_EQ(v.decode, (StepLoad{1, 1, 105, 105}));
  c.ended(a, true, milliseconds(9));
  c.ended(b, false, milliseconds(9));
  v = c.view(0, ask, milliseconds(9));
  EXPECT_EQ(v.queued, StepLoad{});
  EXPECT_EQ(v.decode, StepLoad{});
  EXPECT_EQ(c.num_requests(0), 0);
}

TEST(Conductor, FullPoolsMakeRequestsWait) {
  Conductor c({}, conducted(2));
  const Conductor::Ask ask{.tokens = 1'000, .blocks = {}};
  c.tokens(c.sent(0, ask, Time{0}), 1, milliseconds(11));
  const auto b = c.sent(1, ask, milliseconds(11));
  c.tokens(b, 1, milliseconds(22));
  c.tokens(b, 99, milliseconds(200));
  EXPECT_EQ(c.view(0, ask, milliseconds(200)).free_tokens, WorkerView::kUnknown);
  EXPECT_EQ(c.choose(ask, milliseconds(200)).worker, 0);  // in turn
  c.set_kv_tokens(0, 1'500);
  c.set_kv_tokens(1, 9'000);
  EXPECT_EQ(c.view(0, ask, milliseconds(200)).free_tokens, 499);
  EXPECT_EQ(c.choose(ask, milliseconds(200)).worker, 1);
}

// Requests that share a prefix hold it once.
TEST(Conductor, SharedPrefixesFillAPoolOnce) {
  Conductor c({}, conducted(2));
  c.set_kv_tokens(0, 4'000);
  std::vector<Conductor::Ticket> sent;
  for (int i = 0; i < 4; ++i) {
    sent.push_back(c.sent(0, with_prefix(), Time{0}));
    c.tokens(sent.back(), 1, Time{0});
  }
  const int64_t own = 2'000 - 3 * 512;
  EXPECT_EQ(c.view(0, with_prefix(), Time{0}).free_tokens, 4'000 - 2'000 - 3 * own - 4);
  for (auto t : sent) c.ended(t, true, Time{0});
  EXPECT_EQ(c.view(0, with_prefix(), Time{0}).free_tokens, 4'000);
}

TEST(Conductor, PrefixesAreKnownWhereTheyWereSent) {
  Conductor c({}, conducted(3));
  c.ended(c.sent(1, with_prefix(), Time{0}), true, Time{0});
  EXPECT_EQ(c.view(1, with_prefix(), Time{0}).cached, 3 * 512);
  EXPECT_EQ(c.view(0, with_prefix(), Time{0}).cached, 0);
  EXPECT_EQ(c.choose(with_prefix(), Time{0}).worker, 1);
  // Another prompt with the same first block.
  const std::vector<uint64_t> other = {11, 23};
  EXPECT_EQ(c.view(1, {.tokens = 1'500, .blocks = other}, Time{0}).cached, 512);
  // Death takes the cache.
  c.set_alive(1, false);
  EXPECT_NE(c.choose(with_prefix(), Time{0}).worker, 1);
  c.set_alive(1, true);
  EXPECT_EQ(c.view(1, with_prefix(), Time{0}).cached, 0);
}

// Whoever has the prefix: an answer that does not come is later than any other.
TEST(Conductor, ASuspectIsAskedWhereNobodyElseIs) {
  Conductor c({}, conducted(3));
  c.ended(c.sent(1, with_prefix(), Time{0}), true, Time{0});
  Conductor::Ask ask = with_prefix();
  EXPECT_EQ(c.choose(ask, Time{0}).worker, 1);
  c.set_suspect(1, true);
  const int other = c.choose(ask, Time{0}).worker;
  EXPECT_TRUE(other == 0 || other == 2) << other;
  // One that failed this request, and one that takes no more, are none.
  ask.avoid = 1;
  EXPECT_EQ(c.choose(ask, Time{0}).worker, 2);
  c.set_draining(2, true);
  EXPECT_EQ(c.choose(ask, Time{0}).worker, 1);
  // Its cache is as it was.
  c.set_draining(2, false);
  c.set_suspect(1, false);
  EXPECT_EQ(c.choose(ask, Time{0}).worker, 1);
  EXPECT_EQ(c.view(1, ask, Time{0}).cached, 3 * 512);
}

// A suspect decode worker is passed by, and where it is the only one a prefill worker does all.
TEST(Conductor, ASuspectDoesNotDecode) {
  auto workers = conducted(3);
  workers[0].role = WorkerRole::prefill;
  workers[1].role = workers[2].role = WorkerRole::decode;
  Conductor c({.policy = Routing::round_robin}, workers);
  const Conductor::Ask ask{.tokens = 100, .blocks = {}, .handed_over = true};
  c.set_suspect(1, true);
  for (int k = 0; k < 4; ++k) EXPECT_EQ(c.choose_decoder(ask, Time{0}), 2);
  c.set_suspect(2, true);
  EXPECT_EQ(c.choose_decoder(ask, Time{0}), -1);
  EXPECT_EQ(c.choose({.tokens = 100, .blocks = {}, .whole = true}, Time{0}).worker, 0);
  c.set_suspect(0, true);
  EXPECT_GE(c.choose_decoder(ask, Time{0}), 1);
}

TEST(Conductor, WorkersSayWhatTheyHave) {
  Conductor c({}, conducted(2));
  const KvUpdate stored{KvUpdate::stored, 1, {901, 902, 903, 904}, 0, {1, 2, 3, 4}};
  c.kv().set_known(0, true);
  const auto ticket = c.sent(0, with_prefix(), Time{0});
  EXPECT_EQ(c.view(0, with_prefix(), Time{0}).cached, 3 * 512);  // assumed: it computes them
  c.kv().apply(0, stored);
  c.prompt_ends(0, with_prefix(), 904);
  c.tokens(ticket, 1, milliseconds(20));
  EXPECT_EQ(c.view(0, with_prefix(), milliseconds(20)).cached, 3 * 512);
  // Evicted blocks do not count, although the worker was sent them.
  c.kv().apply(0, {KvUpdate::removed, 1, {903, 904}, 0, {}});
  EXPECT_EQ(c.view(0, with_prefix(), milliseconds(20)).cached, 2 * 512);
  // A request that will compute them makes them count again, until it ends.
  const auto again = c.sent(0, with_prefix(), milliseconds(30));
  EXPECT_EQ(c.view(0, with_prefix(), milliseconds(30)).cached, 3 * 512);
  c.ended(again, false, milliseconds(40));
  EXPECT_EQ(c.view(0, with_prefix(), milliseconds(40)).cached, 2 * 512);
  // The other worker says nothing of itself: assumed.
  c.ended(c.sent(1, with_prefix(), milliseconds(50)), true, milliseconds(60));
  EXPECT_EQ(c.view(1, with_prefix(), milliseconds(60)).cached, 3 * 512);
  c.ended(ticket, true, milliseconds(70));
}

TEST(Conductor, TheTailOfAPrefixIsForgottenFirst) {
  auto workers = conducted(1);
  workers[0].prefix_blocks = 3;
  Conductor c({}, workers);
  c.sent(0, with_prefix(), Time{0});
  const std::vector<uint64_t> other = {99};
  c.sent(0, {.tokens = 600, .blocks = other}, Time{0});
  EXPECT_EQ(c.view(0, with_prefix(), Time{0}).cached, 2 * 512);
}

TEST(Conductor, SessionsStayAndMoveOn) {
  Conductor c({}, conducted(4));
  const Conductor::Ask ask{.tokens = 10, .blocks = {}, .session = 5};
  c.ended(c.sent(2, ask, Time{0}), true, Time{0});
  for (int i = 0; i < 3; ++i) EXPECT_EQ(c.choose(ask, Time{0}).worker, 2);
  c.set_draining(2, true);
  const int next = c.choose(ask, Time{0}).worker;
  EXPECT_NE(next, 2);
  c.ended(c.sent(next, ask, Time{0}), true, Time{0});
  c.set_draining(2, false);
  EXPECT_EQ(c.choose(ask, Time{0}).worker, next);
}

TEST(Conductor, AWorkerThatFailedTheRequestIsAvoided) {
  Conductor c({}, conducted(2));
  Conductor::Ask ask = with_prefix();
  c.ended(c.sent(0, ask, Time{0}), true, Time{0});
  EXPECT_EQ(c.choose(ask, Time{0}).worker, 0);
  ask.avoid = 1;
  EXPECT_EQ(c.choose(ask, Time{0}).worker, 1);
  ask.avoid = 3;
  EXPECT_EQ(c.choose(ask, Time{0}).worker, -1);
}

TEST(Conductor, LearnsHowSlowAWorkerIs) {
  Conductor c({}, conducted(2));
  const Conductor::Ask ask{.tokens = 1'000, .blocks = {}};  // 11 ms
  Time now{0};
  for (int i = 0; i < 60; ++i) {
    const auto slow = c.sent(0, ask, now), fast = c.sent(1, ask, now);
    c.tokens(fast, 1, now + milliseconds(11));
    c.tokens(slow, 1, now + milliseconds(44));
    c.ended(fast, true, now + milliseconds(50));
    c.ended(slow, true, now + milliseconds(50));
    now += milliseconds(100);
  }
  EXPECT_NEAR(c.pace(0), 4, 0.3);
  EXPECT_NEAR(c.pace(1), 1, 0.3);
  EXPECT_EQ(c.choose(ask, now).worker, 1);
  // It gets another chance: without news it drifts to the pace of all.
  for (int i = 0; i < 200; ++i) {
    const auto fast = c.sent(1, ask, now);
    c.tokens(fast, 1, now + milliseconds(11));
    c.ended(fast, true, now + milliseconds(11));
    now += milliseconds(100);
  }
  EXPECT_NEAR(c.pace(0), 1, 0.2);
  EXPECT_LT(c.expected_output(), 128);  // each had one token
}

TEST(Conductor, AnOverloadedWorkersPrefixMovesToAnother) {
  Conductor c({}, conducted(2));
  c.ended(c.sent(0, with_prefix(), Time{0}), true, Time{0});
  // Nothing ends: the prefix's worker fills up until computing it again is cheaper.
  std::vector<int> used(2);
  for (int i = 0; i < 40; ++i) {
    const int w = c.choose(with_prefix(), Time{0}).worker;
    ASSERT_GE(w, 0);
    EXPECT_TRUE(i > 0 || w == 0) << w;
    c.sent(w, with_prefix(), Time{0});
    ++used[static_cast<size_t>(w)];
  }
  EXPECT_GE(used[1], 10);
  EXPECT_EQ(c.view(1, with_prefix(), Time{0}).cached, 3 * 512);
}

TEST(Conductor, LearnsHowLongHandingOverTakes) {
  RoutingConfig config;
  config.transfer = 1e-6;
  auto workers = conducted(2);
  workers[0].role = WorkerRole::prefill;
  workers[1].role = WorkerRole::decode;
  Conductor c(config, workers);
  Conductor::Ask ask{.tokens = 10'000, .blocks = {}, .session = 5};
  c.ended(c.sent(0, ask, Time{0}), false, Time{0});
  ask.handed_over = true;
  EXPECT_EQ(c.choose_decoder(ask, Time{0}), 1);
  Time now{0};
  for (int i = 0; i < 60; ++i, now += milliseconds(500)) {
    const auto t = c.sent(1, ask, now);
    EXPECT_EQ(c.view(1, ask, now).queued.tokens, 1);  // the rest is there
    c.tokens(t, 1, now + milliseconds(201));          // 1 ms of its own
    c.ended(t, true, now + milliseconds(400));
  }
  EXPECT_NEAR(c.transfer(), 20e-6, 1e-6);
  EXPECT_EQ(c.pace(1), 1);
  c.set_role(1, WorkerRole::both, false, false);
  EXPECT_EQ(c.choose_decoder(ask, now), -1);
  EXPECT_EQ(c.role(1), WorkerRole::both);
}

TEST(Conductor, AFetchThatFailedIsNoTransfer) {
  RoutingConfig config;
  config.transfer = 10e-6;
  auto workers = conducted(2);
  workers[0].role = WorkerRole::prefill;
  workers[1].role = WorkerRole::decode;
  Conductor c(config, workers);
  Conductor::Ask ask{.tokens = 10'000, .blocks = {}, .handed_over = true, .again = true};
  const auto answer = [&](Time took) {
    const auto t = c.sent(1, ask, Time{0});
    c.tokens(t, 1, took);
    c.ended(t, true, took);
  };
  answer(milliseconds(60'000));  // the second worker that was to go on with it
  EXPECT_EQ(c.transfer(), 10e-6);
  ask.again = false;
  answer(milliseconds(60'000));  // 6 ms a token
  EXPECT_GT(c.transfer(), 10e-6);
  EXPECT_LT(c.transfer(), 40e-6);
  for (int i = 0; i < 20; ++i) answer(milliseconds(60'000));
  EXPECT_GT(c.transfer(), 100e-6);
  // Nothing is handed over any more: it comes back to what was assumed.
  ask.handed_over = false;
  for (int i = 0; i < 10'000; ++i) answer(milliseconds(101));
  EXPECT_NEAR(c.transfer(), 10e-6, 1e-6);
  EXPECT_NEAR(c.pace(1), 1, 1e-6);
}

// A hot prefix goes to the worker that has more time; who lends is busy until it is there.
TEST(Conductor, PrefixesAreFetched) {
  RoutingConfig config;
  config.transfer = 2e-6;
  config.fetch = true;
  auto workers = conducted(2);
  for (ConductorWorker& w : workers) w.fetches = w.lends = true, w.budget = 1'000;
  Conductor c(config, workers);
  std::vector<uint64_t> blocks;
  for (uint64_t k = 1; k <= 19; ++k) blocks.push_back(k);
  Conductor::Ask ask{.tokens = 10'000, .blocks = blocks, .block_tokens = 512, .fetches = true};
  c.ended(c.sent(0, ask, Time{0}), true, Time{0});
  for (int i = 0; i < 20; ++i) c.sent(0, {.tokens = 1'000, .blocks = {}}, milliseconds(1));
  const RoutingChoice choice = c.choose(ask, Time{0});
  EXPECT_EQ(choice.worker, 1);
  EXPECT_EQ(choice.estimate.fetch_from, 0);
  EXPECT_EQ(choice.estimate.fetch_end, 19 * 512);
  ask.fetch_from = choice.estimate.fetch_from;
  ask.fetch_tokens = choice.estimate.fetch_tokens;
  const auto one = c.sent(1, ask, Time{0});
  EXPECT_EQ(c.view(0, ask, Time{0}).lending, 1);
  EXPECT_EQ(c.view(1, ask, Time{0}).queued.tokens, 10'000 - 19 * 512);
  const auto two = c.sent(1, ask, Time{0});
  EXPECT_EQ(c.view(0, ask, Time{0}).lending, 2);
  // What is on its way is not there: who comes next fetches it too, until it should have come.
  EXPECT_EQ(c.view(1, ask, Time{0}).cached, 0);
  EXPECT_EQ(c.choose(ask, Time{0}).estimate.fetch_from, 0);
  c.fetched(one, 0.9728, 0.0973);  // 10 us a token, far more than expected
  EXPECT_EQ(c.view(0, ask, Time{0}).lending, 1);
  EXPECT_GT(c.transfer(), 2e-6);
  const double learned = c.transfer();
  c.fetched(one, 0.9728, 0.0973);  // once
  EXPECT_EQ(c.transfer(), learned);
  c.tokens(one, 1, milliseconds(500));
  EXPECT_EQ(c.transfer(), learned);  // it is known already
  EXPECT_EQ(c.pace(1), 1);
  c.ended(two, false, milliseconds(10));  // it failed before it said anything
  EXPECT_EQ(c.view(0, ask, Time{0}).lending, 0);
  c.ended(one, true, milliseconds(600));
  EXPECT_EQ(c.view(1, ask, Time{0}).cached, 19 * 512);
}

// A plain answer says nothing until its end: what it fetches counts as there soon when it should
// have come, and as there with the first token.
TEST(Conductor, AFetchThatNobodyTellsOfEnds) {
  RoutingConfig config;
  config.transfer = 2e-6;
  config.fetch = true;
  auto workers = conducted(2);
  for (ConductorWorker& w : workers) w.fetches = w.lends = true;
  Conductor c(config, workers);
  Conductor::Ask ask = with_prefix();
  c.ended(c.sent(0, ask, Time{0}), true, milliseconds(1));
  ask.fetch_from = 0;
  ask.fetch_tokens = 3 * 512;
  const auto t = c.sent(1, ask, milliseconds(600));
  c.choose(ask, milliseconds(650));
  EXPECT_EQ(c.view(0, ask, milliseconds(650)).lending, 1);
  EXPECT_EQ(c.view(1, ask, milliseconds(650)).cached, 0);
  c.choose(ask, milliseconds(6'000));
  EXPECT_EQ(c.view(0, ask, milliseconds(6'000)).lending, 0);
  EXPECT_EQ(c.view(1, ask, milliseconds(6'000)).cached, 3 * 512);
  EXPECT_EQ(c.view(1, ask, milliseconds(6'000)).lendable, 0);
  c.ended(t, true, milliseconds(6'000));
  EXPECT_EQ(c.view(1, ask, milliseconds(6'000)).lendable, 3 * 512);
}

// What a fetch takes however little it is does not count as the time of its tokens.
TEST(Conductor, TheFixedPartOfAFetchIsNoTransfer) {
  RoutingConfig config;
  config.transfer = 10e-6;
  auto workers = conducted(2);
  for (ConductorWorker& w : workers) w.fetches = w.lends = true;
  Conductor c(config, workers);
  Conductor::Ask ask{.tokens = 10'000, .blocks = {}, .fetches = true};
  ask.fetch_from = 0;
  ask.fetch_tokens = 9'000;
  ask.fetch_wait = 0.05;
  for (int i = 0; i < 40; ++i) {
    const auto t = c.sent(1, ask, milliseconds(1'000 * i));
    if (i % 2 == 0) c.fetched(t, 0.9, 0.14);  // or its first token tells
    c.tokens(t, 1, milliseconds(1'000 * i + 151));
    c.ended(t, true, milliseconds(1'000 * i + 151));
  }
  EXPECT_NEAR(c.transfer(), 10e-6, 1e-6);
}

// Who uses a prefix does not take it away: a hot one is there while requests for it wait.
TEST(Conductor, AHolderStaysOneWhileOthersUseIt) {
  Conductor c({}, conducted(1));
  const auto lendable = [&] { return c.view(0, with_prefix(), milliseconds(50)).lendable; };
  const auto one = c.sent(0, with_prefix(), Time{0});
  const auto two = c.sent(0, with_prefix(), milliseconds(1));
  EXPECT_EQ(lendable(), 0);  // it is being computed
  EXPECT_EQ(c.view(0, with_prefix(), milliseconds(1)).cached, 3 * 512);
  c.tokens(one, 1, milliseconds(20));
  EXPECT_EQ(lendable(), 3 * 512);  // although the second waits
  const std::vector<uint64_t> more = {11, 22, 33, 44};
  const Conductor::Ask longer{.tokens = 2'500, .blocks = more, .block_tokens = 512};
  const auto three = c.sent(0, longer, milliseconds(30));
  EXPECT_EQ(lendable(), 3 * 512);
  EXPECT_EQ(c.view(0, longer, milliseconds(50)).lendable, 3 * 512);  // the fourth is on its way
  EXPECT_EQ(c.view(0, longer, milliseconds(50)).cached, 4 * 512);
  c.ended(one, true, milliseconds(40));
  EXPECT_EQ(lendable(), 3 * 512);
  c.tokens(three, 1, milliseconds(45));
  EXPECT_EQ(c.view(0, longer, milliseconds(50)).lendable, 4 * 512);
  c.ended(two, true, milliseconds(50));
  c.ended(three, true, milliseconds(50));
}

TEST(Conductor, WorkersThatAreNotThereDoNotSlowLearning) {
  const auto learned = [](size_t num, size_t alive) {
    Conductor c({}, conducted(num));
    for (size_t i = alive; i < num; ++i) c.set_alive(static_cast<int>(i), false);
    const Conductor::Ask ask{.tokens = 1'000, .blocks = {}};
    for (int i = 0; i < 100; ++i) {  // 11 ms, then twice that
      const auto t = c.sent(0, ask, Time{0});
      c.tokens(t, 1, milliseconds(i < 50 ? 11 : 22));
      c.ended(t, true, milliseconds(30));
    }
    return c.pace(0);
  };
  EXPECT_DOUBLE_EQ(learned(64, 1), learned(1, 1));
  EXPECT_LT(learned(64, 64), learned(64, 1));
}

TEST(Conductor, AWorkerThatDiesLosesItsPace) {
  Conductor c({}, conducted(2));
  const Conductor::Ask ask{.tokens = 1'000, .blocks = {}};
  for (int i = 0; i < 60; ++i) {
    for (int w = 0; w < 2; ++w) {
      const auto t = c.sent(w, ask, Time{0});
      c.tokens(t, 1, milliseconds(w == 0 ? 44 : 11));
      c.ended(t, true, milliseconds(50));
    }
  }
  EXPECT_GT(c.pace(0), 3);
  c.set_alive(0, false);
  EXPECT_NEAR(c.pace(0), c.pace(1), 0.01);
}

}  // namespace sluice
