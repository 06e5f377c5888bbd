// Blocks that leave while their step computes: what is sent of them when, that none counts before
// its step has ended well, and that nothing is held after a step that does not.
#include <future>
#include <thread>

#include <gtest/gtest.h>

#include "dist/kv_pair.h"

namespace sluice {
namespace {

constexpr std::chrono::milliseconds kNow{0};

// One step of a prompt of three blocks, which sends half of their bytes and then waits.
struct HeldStep {
  explicit HeldStep(const std::string& key = "") : pair(key, key, "m", true) {
    pair.from.executor.set_open(false);
    pair.from.on_send = [this](const StepPlan& p) {
      pair.from.write(p, 0, kBytes / 2);
      launched.set_value(p);
    };
  }
  void begin() {
    outcome = await(pair, name, there);
    lease = *pair.from.leases.open(prompt_keys(*here.prompt, kSize), 1, name);
    request = std::async(std::launch::async, [this] { return pair.from.run(here, lease.id); });
    plan = launched.get_future().get();
  }
  // So many bytes of each block have left, and none of them is whole.
  void expect_sent(size_t bytes) {
    for (int k = 0; pair.port->stats().bytes < 3 * bytes && k < 10'000; ++k)
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    EXPECT_EQ(pair.port->stats().bytes, 3 * bytes);
    EXPECT_EQ(pair.port->stats().blocks, 0u);
  }
  // The other side got nothing, holds nothing and computes.
  void expect_nothing(const char* why) {
    const KvFetcher::Outcome o = outcome.get();
    EXPECT_EQ(o.num_came, 0);
    EXPECT_EQ(o.error, why);
    EXPECT_EQ(pair.to.num_held(), 0);
    EXPECT_EQ(pair.to.run(there), 0);
  }

  Pair pair;
  const PromptBlocks here = some_prompt(16, 7), there = some_prompt(16, 0);
  const LeaseName name = room_lease(3);
  std::promise<StepPlan> launched;
  StepPlan plan;
  LeaseStore::Opened lease;
  std::future<KvFetcher::Outcome> outcome;
  std::future<int> request;
};

class KvLayersBy : public KvTransferBy {};
INSTANTIATE_TEST_SUITE_P(Transports,
                         KvLayersBy,
                         testing::Values(Transport::tcp, Transport::shm, Transport::ucx),
                         [](const auto& p) { return name_of(kTransports, p.param); });

TEST_P(KvLayersBy, LayersLeaveBeforeTheirStepEnds) {
  for (const char* key : {"", kSharedKey}) {
    HeldStep s(key);
    s.begin();
    s.expect_sent(kBytes / 2);
    s.pair.from.write(s.plan, kBytes / 2, kBytes - 100);
    s.expect_sent(kBytes - 100);
    s.pair.from.write(s.plan, kBytes - 100, kBytes);
    EXPECT_EQ(s.pair.to.num_held(), 3);  // places, for nobody else
    EXPECT_EQ(s.outcome.wait_for(std::chrono::milliseconds(50)), std::future_status::timeout);
    s.pair.from.executor.set_open(true);
    EXPECT_EQ(s.request.get(), 0);
    s.pair.from.leases.seal(s.lease.id);
    const KvFetcher::Outcome o = s.outcome.get();
    EXPECT_EQ(o.error, "");
    EXPECT_EQ(o.num_came, 3);
    EXPECT_EQ(s.pair.port->stats().blocks, 3u);
    EXPECT_EQ(s.pair.to.run(s.there), 12);
    EXPECT_EQ(s.pair.to.taken_in.size(), 3u);
    EXPECT_TRUE(s.pair.to.is_whole);
    expect_freed(s.pair.from);
  }
}

// All layers but the last were sent when the step failed: no block counts.
TEST_P(KvLayersBy, AStepThatFailsSendsNoBlock) {
  HeldStep s;
  s.pair.from.executor.fail_from = 1;
  s.begin();
  s.expect_sent(kBytes / 2);
  s.pair.from.write(s.plan, kBytes / 2, kBytes - 1);
  s.expect_sent(kBytes - 1);
  s.pair.from.executor.set_open(true);
  s.request.get();
  s.pair.from.leases.seal(s.lease.id);
  s.expect_nothing("the peer did not have all blocks");
  EXPECT_EQ(s.pair.port->stats().blocks, 0u);
  expect_freed(s.pair.from);
}

// A request is cancelled while its step computes.
TEST_P(KvLayersBy, ALeaseMayGoInTheMiddle) {
  HeldStep s;
  s.begin();
  s.expect_sent(kBytes / 2);
  s.pair.from.leases.drop(s.lease.id);
  s.expect_nothing("the lease is gone");
  s.pair.from.write(s.plan, kBytes / 2, kBytes - 1);  // the step goes on
  s.pair.from.executor.set_open(true);
  s.request.get();
  expect_freed(s.pair.from);
}

// The other side goes away in the middle; another one gets all of it.
TEST_P(KvLayersBy, AFetchMayEndInTheMiddle) {
  HeldStep s;
  s.begin();
  s.expect_sent(kBytes / 2);
  s.pair.fetcher->stop();
  EXPECT_EQ(s.outcome.get().num_came, 0);
  EXPECT_EQ(s.pair.to.num_held(), 0);
  KvFetcher other({.transport = transport_of_test}, *s.pair.to.engine, s.pair.to.places,
                  s.pair.to.identity);
  s.pair.from.write(s.plan, kBytes / 2, kBytes);
  s.pair.from.executor.set_open(true);
  s.request.get();
  s.pair.from.leases.seal(s.lease.id);
  EXPECT_EQ(fetch(other, s.pair.port->port(), s.name, s.there).num_came, 3);
  EXPECT_EQ(s.pair.to.run(s.there), 12);
  EXPECT_TRUE(s.pair.to.is_whole);
  expect_freed(s.pair.from);
  other.stop();
}

// Steps that say nothing of their layers, and prompts of several.
TEST_P(KvLayersBy, BlocksMoveWithTheirSteps) {
  Pair pair("", "", "m", true);
  const PromptBlocks here = some_prompt(41, 7), there = some_prompt(41, 0);
  const KvFetcher::Outcome o = pair.move(there, prefill(pair.from, here).name);
  EXPECT_EQ(o.error, "");
  EXPECT_EQ(o.num_came, 10);
  EXPECT_EQ(pair.to.run(there), 40);
  EXPECT_EQ(pair.to.taken_in.size(), 10u);
  EXPECT_TRUE(pair.to.is_whole);
  expect_freed(pair.from);
}

// A server that answers a fetch with these parts of its first block, {at, size}.
KvFetcher::Outcome fetch_parts(std::vector<std::pair<uint64_t, size_t>> parts) {
  Side to;
  KvFetcher fetcher({.rest = kNow}, *to.engine, to.places, to.identity);
  const PromptBlocks prompt = some_prompt(9, 0);
  const std::vector<Digest256> keys = prompt_keys(*prompt.prompt, kSize);
  auto listen = listen_bytes(Transport::tcp, "127.0.0.1", 0);
  std::thread server([&] {
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    KvLink link((*listen)->accept(std::chrono::seconds(60)), to.identity);
    EXPECT_TRUE(link.greet(false, until));
    EXPECT_TRUE(link.receive(until));
    const FrameBytes bytes(kBytes + 1, std::byte{1});
    for (auto [at, size] : parts)
      static_cast<void>(
          link.send(KvLayers{0, 0, at, keys[0], std::span(bytes).first(size)}, until));
    static_cast<void>(link.send(KvDone{1}, until));
    static_cast<void>(link.receive(until));  // until the other side ends it
  });
  const KvFetcher::Outcome o = fetch(fetcher, (*listen)->port(), LeaseName{}, prompt);
  server.join();
  EXPECT_EQ(to.num_held(), 0);
  fetcher.stop();
  to.engine.reset();
  return o;
}

TEST(KvLayers, PartsComeInOrder) {
  const KvFetcher::Outcome whole = fetch_parts({{0, 10}, {10, kBytes - 10}});
  EXPECT_EQ(whole.num_came, 1);
  EXPECT_EQ(whole.error, "the peer did not have all blocks");  // of two
  EXPECT_EQ(fetch_parts({{0, 10}}).num_came, 0);
  const auto refused = [](std::vector<std::pair<uint64_t, size_t>> parts) {
    return fetch_parts(std::move(parts)).error;
  };
  constexpr const char* kOrder = "the parts of a block came out of order";
  EXPECT_EQ(refused({{1, kBytes - 1}}), kOrder);
  EXPECT_EQ(refused({{0, 10}, {0, 10}}), kOrder);
  EXPECT_EQ(refused({{0, 10}, {11, 10}}), kOrder);
  EXPECT_EQ(refused({{0, 10}, {10, kBytes - 9}}), kOrder);
  EXPECT_EQ(refused({{UINT64_MAX, 10}}), kOrder);
  EXPECT_EQ(refused({{0, kBytes}, {kBytes, 1}}), "a block came twice");
  EXPECT_EQ(refused({{0, kBytes + 1}}), "not a frame of KV blocks: another size");
}

// Read as far as its own step has written it, and to the end when that is done.
TEST(KvLayers, ABlockIsReadAsFarAsItIsWritten) {
  Side side;
  LeaseStore& leases = side.leases;
  const LeaseStore::Opened lease = leases.open({sha256("a"), sha256("b")}, 1);
  const PlacedBlock first{0, 0, 3}, second{1, 0, 4};
  LeaseStore::Cursor cursor;
  LeaseStore::Taken taken;
  FrameBytes bytes;
  const auto read = [&] { return leases.read(lease.name, cursor, kNow, taken, bytes); };
  leases.leaving(lease.id, first, 5), leases.leaving(lease.id, second, 6);
  EXPECT_EQ(leases.begun(lease.name, kNow), LeaseStore::Begun::yes);
  EXPECT_EQ(read(), LeaseStore::Next::wait);
  leases.written(4, 100);  // another request's
  EXPECT_EQ(read(), LeaseStore::Next::wait);
  leases.written(5, 100);
  EXPECT_EQ(read(), LeaseStore::Next::bytes);
  EXPECT_EQ(taken.block, first);
  EXPECT_EQ(bytes.size(), 100u);
  EXPECT_FALSE(taken.last);
  EXPECT_EQ(read(), LeaseStore::Next::wait);
  leases.written(5, kBytes);  // the last byte waits for the step's end all the same
  EXPECT_EQ(read(), LeaseStore::Next::bytes);
  EXPECT_EQ(taken.at, 100u);
  EXPECT_EQ(bytes.size(), kBytes - 101);
  EXPECT_TRUE(leases.exported(lease.id, first));
  EXPECT_EQ(read(), LeaseStore::Next::bytes);
  EXPECT_TRUE(taken.last);
  EXPECT_EQ(bytes.size(), 1u);
  EXPECT_EQ(leases.stats().places, 1u);
  leases.written(6, 100);
  leases.lost(lease.id, second);
  EXPECT_EQ(read(), LeaseStore::Next::wait);
  leases.seal(lease.id);
  EXPECT_EQ(read(), LeaseStore::Next::done);
  side.engine.reset();
}

// The engine lost its state in the middle of a step.
TEST(KvLayers, ARestartVoidsWhatLeaves) {
  Side side;
  const LeaseStore::Opened lease = side.leases.open({sha256("a")}, 1);
  side.leases.leaving(lease.id, {0, 0, 3}, 5);
  side.leases.written(5, 100);
  side.leases.cleared();
  LeaseStore::Cursor cursor;
  LeaseStore::Taken taken;
  FrameBytes bytes;
  EXPECT_EQ(side.leases.read(lease.name, cursor, kNow, taken, bytes), LeaseStore::Next::gone);
  EXPECT_EQ(side.leases.stats().leases, 0u);
  EXPECT_EQ(side.leases.stats().places, 0u);
  side.engine.reset();
}

}  // namespace
}  // namespace sluice
