// Blocks of a prompt that one engine has computed are fetched by another, and what goes wrong on
// the way costs no more than a computation.
#include <condition_variable>
#include <future>
#include <mutex>
#include <thread>

#include <gtest/gtest.h>

#include "dist/kv_pair.h"
#include "net/stream_socket.h"

namespace sluice {
namespace {

void expect_moved(Pair& pair) {
  const PromptBlocks here = some_prompt(41, 7), there = some_prompt(41, 0);
  const LeaseStore::Opened lease = prefill(pair.from, here);
  const KvFetcher::Outcome o = pair.move(there, lease.name);
  EXPECT_EQ(o.error, "");
  EXPECT_EQ(o.num_came, 10);
  EXPECT_EQ(o.num_positions, 10);
  EXPECT_EQ(pair.to.run(there), 40);
  EXPECT_EQ(pair.to.num_held(), 0);
  EXPECT_EQ(pair.to.taken_in.size(), 10u);  // ten different blocks, each whole
  EXPECT_FALSE(pair.to.taken_in.contains(0));
  expect_freed(pair.from);  // the lease was given back
  EXPECT_EQ(pair.port->stats().blocks, 10u);
}

INSTANTIATE_TEST_SUITE_P(Transports,
                         KvTransferBy,
                         testing::Values(Transport::tcp, Transport::shm, Transport::ucx),
                         [](const auto& p) { return name_of(kTransports, p.param); });

TEST_P(KvTransferBy, BlocksMove) {
  Pair pair("", "");
  expect_moved(pair);
}

TEST_P(KvTransferBy, BlocksMoveUnderAKey) {
  Pair pair("a key of 16 bytes", "a key of 16 bytes");
  expect_moved(pair);
}

TEST_P(KvTransferBy, WhatIsHereIsNotFetched) {
  Pair pair("", "");
  const PromptBlocks whole = some_prompt(41, 0), half = some_prompt(21, 0);
  EXPECT_EQ(pair.to.run(half), 0);
  const KvFetcher::Outcome o = pair.move(whole, prefill(pair.from, whole).name);
  EXPECT_EQ(o.error, "");
  EXPECT_EQ(o.num_came, 5);
  EXPECT_EQ(pair.to.run(whole), 40);
}

// Both sides know the name before the prompt is computed, and blocks come before its end.
TEST_P(KvTransferBy, BlocksMoveWhileThePromptIsComputed) {
  Pair pair(kSharedKey, kSharedKey);
  const PromptBlocks here = some_prompt(41, 7), there = some_prompt(41, 0);
  const LeaseName name = room_lease(17);
  std::future<KvFetcher::Outcome> outcome = await(pair, name, there);
  EXPECT_EQ(outcome.wait_for(std::chrono::milliseconds(150)), std::future_status::timeout);
  EXPECT_EQ(pair.fetcher->stats().places, 0);  // none while there is nothing to come
  const auto lease = pair.from.leases.open(prompt_keys(*here.prompt, kSize), 1, name);
  ASSERT_TRUE(lease);
  EXPECT_FALSE(pair.from.leases.open({}, 1, name));  // there is one of this name
  EXPECT_EQ(pair.from.run(here, lease->id), 0);
  for (int k = 0; pair.port->stats().blocks < 10 && k < 10'000; ++k)
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  EXPECT_EQ(pair.port->stats().blocks, 10u);  // and it is not sealed yet
  EXPECT_EQ(outcome.wait_for(std::chrono::milliseconds(1500)), std::future_status::timeout);
  pair.from.leases.seal(lease->id);
  const KvFetcher::Outcome o = outcome.get();
  EXPECT_EQ(o.error, "");
  EXPECT_EQ(o.num_came, 10);
  EXPECT_EQ(pair.to.run(there), 40);
  EXPECT_EQ(pair.to.num_held(), 0);
  expect_freed(pair.from);
}

// Its request ends without a prompt; and none comes at all.
TEST_P(KvTransferBy, AnAwaitedLeaseMayNotCome) {
  Pair pair("", "");
  const PromptBlocks prompt = some_prompt(41, 0);
  const LeaseName name = room_lease(18);
  std::future<KvFetcher::Outcome> outcome = await(pair, name, prompt);
  const auto lease = pair.from.leases.open(prompt_keys(*prompt.prompt, kSize), 1, name);
  ASSERT_TRUE(lease);
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  pair.from.leases.drop(lease->id);
  EXPECT_EQ(outcome.get().error, "the lease is gone");
  EXPECT_EQ(await(pair, room_lease(19), prompt).get().error, "the lease is gone");
  EXPECT_EQ(pair.to.num_held(), 0);
  // Nor does anybody who stops wait for it.
  std::future<KvFetcher::Outcome> stopped = await(pair, room_lease(20), prompt);
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  pair.fetcher->stop();
  EXPECT_EQ(stopped.get().error, "the server stops");
}

// Nothing comes, nothing is held, and the request computes.
void expect_nothing(Pair& pair,
                    const PromptBlocks& prompt,
                    std::optional<LeaseName> lease,
                    const char* why) {
  const KvFetcher::Outcome o = pair.move(prompt, lease);
  EXPECT_EQ(o.num_came, 0);
  EXPECT_NE(o.error.find(why), std::string::npos) << o.error;
  EXPECT_EQ(pair.to.num_held(), 0);
  EXPECT_EQ(pair.fetcher->stats().places, 0);
  EXPECT_EQ(pair.to.run(prompt), 0);
}

TEST_P(KvTransferBy, OtherKeysModelsAndPromptsAreRefused) {
  const PromptBlocks prompt = some_prompt(41, 0);
  {
    Pair pair("a key of 16 bytes", "a key of 16 bytez");
    expect_nothing(pair, prompt, prefill(pair.from, prompt).name, "another one");
  }
  {
    Pair pair("a key of 16 bytes", "");
    expect_nothing(pair, prompt, prefill(pair.from, prompt).name, "a key");
  }
  {
    Pair pair("", "a key of 16 bytes");
    expect_nothing(pair, prompt, prefill(pair.from, prompt).name, "no key");
  }
  {
    Pair pair("", "", "n");
    expect_nothing(pair, prompt, prefill(pair.from, prompt).name, "another model");
  }
  {
    Pair pair("", "");
    const PromptBlocks other = some_prompt(41, 0, 500);
    expect_nothing(pair, prompt, prefill(pair.from, other).name, "another prompt");
  }
  {
    Pair pair("", "");
    expect_nothing(pair, prompt, LeaseName{}, "gone");
  }
}

// Without a lease: what the other side has cached, by tokens and tenant.
TEST_P(KvTransferBy, ACachedPrefixIsFetched) {
  Pair pair("a key of 16 bytes", "a key of 16 bytes");
  const PromptBlocks prompt = some_prompt(41, 7);
  EXPECT_EQ(pair.from.run(some_prompt(25, 7)), 0);  // six blocks of it
  KvFetcher::Outcome o = pair.move(prompt, {});
  EXPECT_EQ(o.num_came, 6);
  EXPECT_EQ(o.num_wanted, 10);
  EXPECT_EQ(pair.to.num_held(), 0);
  EXPECT_EQ(pair.to.run(prompt), 24);
  EXPECT_EQ(pair.to.taken_in.size(), 6u);
  expect_freed(pair.from);
  EXPECT_EQ(pair.port->stats().prefixes, 1u);
  // All is here now: nobody is asked.
  o = pair.move(prompt, {});
  EXPECT_EQ(o.error, "");
  EXPECT_EQ(pair.port->stats().prefixes, 1u);
  // And back: what was fetched and computed here is a prefix for others.
  EXPECT_EQ(pair.from.run(prompt), 24);
  const PromptBlocks longer = some_prompt(61, 7);
  EXPECT_EQ(pair.from.run(longer), 40);
  o = pair.move(longer, {});
  EXPECT_EQ(o.error, "");
  EXPECT_EQ(o.num_came, 5);  // from the first that is missing on
  EXPECT_EQ(pair.to.run(longer), 60);
  expect_freed(pair.from);
}

TEST_P(KvTransferBy, APrefixIsItsTenantsAlone) {
  Pair pair(kSharedKey, kSharedKey);
  EXPECT_EQ(pair.from.run(some_prompt(41, 7)), 0);
  expect_nothing(pair, some_prompt(41, 8), {}, "");
  expect_nothing(pair, some_prompt(41, 7, 500), {}, "");
  expect_freed(pair.from);
  // The peer has said all that it has: no failure, but not what was wanted.
  EXPECT_EQ(pair.fetcher->stats().part, 2u);
  EXPECT_EQ(pair.fetcher->stats().failed, 0u);
}

// Without a key nobody is asked, and nobody who asks is answered.
TEST_P(KvTransferBy, PrefixesNeedAKey) {
  Pair pair("", "");
  EXPECT_EQ(pair.from.run(some_prompt(41, 7)), 0);
  expect_nothing(pair, some_prompt(41, 7), {}, "need a key");
  EXPECT_EQ(pair.port->stats().refused, 0u);
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  KvLink link(pair.connect(until), pair.to.identity);
  ASSERT_TRUE(link.greet(true, until));
  ASSERT_TRUE(link.send(KvFind{7, 0, 10}, until));
  const FrameBytes prompt = pack_tokens(*some_prompt(40, 7).prompt);
  static_cast<void>(link.send(KvTokens{prompt}, until));
  EXPECT_FALSE(link.receive(until, std::chrono::seconds(30)));
  EXPECT_EQ(pair.port->stats().prefixes, 0u);
  EXPECT_EQ(pair.port->stats().blocks, 0u);
  expect_freed(pair.from);
}

TEST(KvTransfer, PrefixesOfModelsWithWindowsAreNotAskedFor) {
  Pair pair(kSharedKey, kSharedKey);
  EXPECT_EQ(pair.from.run(some_prompt(41, 7)), 0);
  pair.to.identity.windowed = true;
  expect_nothing(pair, some_prompt(41, 7), {}, "windows");
  EXPECT_EQ(pair.port->stats().prefixes, 0u);
}

// Says the hello that it was sent, and gives every byte after it back too.
size_t echo_all(ListenSocket& listen) {
  StreamSocket socket(listen.accept(std::chrono::seconds(30)));
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  std::byte one[1];
  size_t num = 0;
  for (; socket.receive(one, std::chrono::seconds(30), until); ++num)
    static_cast<void>(socket.send(one, std::chrono::seconds(1), until));
  return num;
}

TEST(KvTransfer, APeerWithoutTheKeyIsToldNothing) {
  Side to(kSharedKey);
  KvFetcher fetcher({}, *to.engine, to.places, to.identity);
  Result<ListenSocket> listen = ListenSocket::open("127.0.0.1", 0);
  ASSERT_TRUE(listen);
  std::future<size_t> told = std::async(std::launch::async, [&] { return echo_all(*listen); });
  const KvFetcher::Outcome o = fetch(fetcher, listen->port(), {}, some_prompt(41, 7));
  EXPECT_NE(o.error.find("another one"), std::string::npos) << o.error;
  EXPECT_EQ(told.get(), kHelloBytes + kFrameHeadBytes + kMacBytes);  // hello and own proof
  EXPECT_EQ(to.num_held(), 0);
  fetcher.stop();
  to.engine.reset();
}

// Only so much of a prompt as its hashes say.
TEST_P(KvTransferBy, NoMoreThanAskedForIsFetched) {
  Pair pair(kSharedKey, kSharedKey);
  PromptBlocks prompt = some_prompt(41, 7);
  EXPECT_EQ(pair.from.run(prompt), 0);
  prompt.hashes.resize(3);
  const KvFetcher::Outcome o = pair.move(prompt, {});
  EXPECT_EQ(o.error, "");
  EXPECT_EQ(o.num_came, 3);
  EXPECT_EQ(pair.to.num_held(), 0);
}

// What a client may not say of a prefix, with the right hello.
TEST_P(KvTransferBy, BadPrefixesEndAConnection) {
  Pair pair(kSharedKey, kSharedKey);
  const FrameBytes tokens = pack_tokens(std::vector<Token>{1});
  const std::vector<std::vector<KvFrame>> talks = {{KvFind{7, 0, 0}},
                                                   {KvFind{7, 3, 3}},
                                                   {KvFind{7, 0, 33}},
                                                   {KvFind{7, 0, 0xffffffff}},
                                                   {KvFind{7, 0, 2}, KvFind{7, 0, 2}},
                                                   {KvTokens{tokens}},
                                                   {KvFind{7, 0, 2}, KvDone{1}}};
  for (const auto& talk : talks) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    KvLink link(pair.connect(until), pair.to.identity);
    ASSERT_TRUE(link.greet(true, until));
    for (const KvFrame& frame : talk) static_cast<void>(link.send(frame, until));
    EXPECT_FALSE(link.receive(until, std::chrono::seconds(30)));
  }
  expect_freed(pair.from);
  // One that goes away while it is answered.
  EXPECT_EQ(pair.from.run(some_prompt(41, 7)), 0);
  for (int k = 0; k < 10; ++k) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    KvLink link(pair.connect(until), pair.to.identity);
    ASSERT_TRUE(link.greet(true, until));
    ASSERT_TRUE(link.send(KvFind{7, 0, 10}, until));
    const FrameBytes prompt = pack_tokens(*some_prompt(40, 7).prompt);
    ASSERT_TRUE(link.send(KvTokens{prompt}, until));
    if (k % 2 == 0) static_cast<void>(link.receive(until, std::chrono::seconds(30)));
    // It was heard before it goes: by UCX the end may come before the last bytes.
    for (int n = 0; pair.from.leases.stats().opened <= static_cast<uint64_t>(k) && n < 10'000; ++n)
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  // Each was answered, in part.
  for (int k = 0; pair.from.leases.stats().opened < 10 && k < 10'000; ++k)
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  EXPECT_EQ(pair.from.leases.stats().opened, 10u);
  expect_freed(pair.from);
}

// Somebody who accepts and says nothing, and nobody at all.
TEST(KvTransfer, ASilentPeerCostsASecond) {
  Side to;
  KvFetcher fetcher({}, *to.engine, to.places, to.identity);
  Result<ListenSocket> silent = ListenSocket::open("127.0.0.1", 0);
  ASSERT_TRUE(silent);
  const PromptBlocks prompt = some_prompt(41, 0);
  KvFetcher::Outcome o = fetch(fetcher, silent->port(), LeaseName{}, prompt);
  EXPECT_EQ(o.num_came, 0);
  EXPECT_NE(o.error.find("in time"), std::string::npos) << o.error;
  // The next one does not wait.
  EXPECT_NE(fetch(fetcher, silent->port(), LeaseName{}, prompt).error.find("a moment ago"),
            std::string::npos);
  uint16_t free_port = 0;
  {
    Result<ListenSocket> closed = ListenSocket::open("127.0.0.1", 0);
    free_port = closed->port();
  }
  EXPECT_NE(fetch(fetcher, free_port, {}, prompt).error, "");
  EXPECT_EQ(to.num_held(), 0);
  fetcher.stop();
  to.engine.reset();
}

// A peer that sends a byte now and then is not silent; it is not waited for again, though.
TEST(KvTransfer, APeerThatDripsRests) {
  Side to;
  // Of that time, a second must be the peer's; the engine may take the rest.
  KvFetcher fetcher({.time = std::chrono::milliseconds(3000), .rest = std::chrono::seconds(60)},
                    *to.engine, to.places, to.identity);
  Result<ListenSocket> listen = ListenSocket::open("127.0.0.1", 0);
  ASSERT_TRUE(listen);
  std::thread dripping([&] {
    StreamSocket socket(listen->accept(std::chrono::seconds(60)));
    KvHello hello{false, to.identity.content, {}};
    FrameBytes bytes;
    encode_hello(hello, bytes);
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    for (size_t k = 0; k + 1 < bytes.size(); ++k) {
      if (!socket.send(std::span(bytes).subspan(k, 1), std::chrono::seconds(1), until)) break;
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
  });
  const PromptBlocks prompt = some_prompt(41, 0);
  EXPECT_NE(fetch(fetcher, listen->port(), LeaseName{}, prompt).error, "");
  EXPECT_NE(fetch(fetcher, listen->port(), LeaseName{}, prompt).error.find("a moment ago"),
            std::string::npos);
  dripping.join();
  fetcher.stop();
  to.engine.reset();
}

TEST(KvTransfer, GarbageEndsAConnection) {
  Pair pair("", "");
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  for (size_t size : {1u, 72u, 500u}) {
    Result<StreamSocket> socket = StreamSocket::connect("127.0.0.1", pair.port->port(), until);
    ASSERT_TRUE(socket);
    const FrameBytes garbage(size, std::byte{0xA5});
    static_cast<void>(socket->send(garbage, std::chrono::seconds(1), until));
    FrameBytes answer(kHelloBytes + 1);
    EXPECT_FALSE(socket->receive(answer, std::chrono::seconds(30), until));
  }
  expect_moved(pair);
}

TEST(KvTransfer, LeasesExpire) {
  Side side;
  LeaseStore brief(side.places, std::chrono::milliseconds(0));
  std::vector<PlacedBlock> freed;
  brief.attach([&](std::vector<PlacedBlock> list, uint64_t) { freed = std::move(list); });
  const LeaseStore::Opened lease = brief.open({sha256("a"), sha256("b")}, 1);
  brief.offered(lease.id), brief.offered(lease.id);
  EXPECT_TRUE(brief.exported(lease.id, {0, 0, 3}));
  LeaseStore::Taken taken;
  FrameBytes bytes;
  LeaseStore::Cursor cursor;
  const std::chrono::milliseconds now{0};
  EXPECT_EQ(brief.read(lease.name, cursor, now, taken, bytes), LeaseStore::Next::bytes);
  EXPECT_EQ(bytes.size(), kBytes);
  EXPECT_EQ(taken.key, sha256("a"));
  EXPECT_EQ(brief.read(lease.name, cursor, now, taken, bytes), LeaseStore::Next::wait);
  brief.tend();  // its prompt is not done
  EXPECT_EQ(brief.stats().leases, 1u);
  brief.seal(lease.id);
  EXPECT_EQ(brief.read(lease.name, cursor, now, taken, bytes), LeaseStore::Next::wait);
  brief.lost(lease.id, {1, 0, 4});
  EXPECT_EQ(brief.read(lease.name, cursor, now, taken, bytes), LeaseStore::Next::done);
  brief.tend();
  EXPECT_EQ(brief.stats().leases, 0u);
  EXPECT_EQ(brief.stats().places, 0u);
  EXPECT_EQ(brief.stats().expired, 1u);
  EXPECT_EQ(freed.size(), 1u);
  EXPECT_EQ(brief.read(lease.name, cursor, now, taken, bytes), LeaseStore::Next::gone);
  EXPECT_FALSE(brief.exported(lease.id, {1, 0, 4}));
  side.engine.reset();
}

// The engine lost its state: places mean nothing any more.
TEST(KvTransfer, ARestartVoidsAllPlaces) {
  Side side;
  std::vector<PlacedBlock> freed;
  const LeaseStore::Opened lease = side.leases.open({sha256("a")}, 1);
  side.leases.offered(lease.id);
  EXPECT_TRUE(side.leases.exported(lease.id, {0, 0, 3}));
  const uint64_t generation = side.places.generation();
  side.leases.cleared();
  FrameBytes bytes(kBytes);
  EXPECT_FALSE(side.places.read(generation, 3, 0, bytes));
  EXPECT_FALSE(side.places.write(generation, 3, 0, bytes));
  EXPECT_TRUE(side.places.write(side.places.generation(), 3, 0, bytes));
  EXPECT_EQ(side.leases.stats().leases, 0u);
  EXPECT_EQ(side.leases.stats().places, 0u);
  side.engine.reset();
}

}  // namespace
}  // namespace sluice
