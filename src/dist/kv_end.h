// For tests: an engine with all that a server has for handing blocks out and fetching them,
// whatever its executor is, and what connects two of them.
#pragma once

#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "dist/kv_fetcher.h"
#include "dist/kv_port.h"
#include "dist/lease_store.h"
#include "engine/engine.h"

namespace sluice {

inline constexpr const char* kSharedKey = "a key of 16 bytes";

struct KvEnd {
  explicit KvEnd(KvIdentity id,
                 std::chrono::milliseconds lease_time = std::chrono::milliseconds(60'000))
      : identity(std::move(id)), leases(places, lease_time) {}
  // Executor and tier outlive the engine.
  void start(Scheduler scheduler,
             Executor& executor,
             const HostTier& tier,
             Engine::Options options) {
    places.attach(tier, identity.block_bytes);
    options.exporter = &leases;
    engine = std::make_unique<Engine>(std::move(scheduler), executor, clock, std::move(options));
    leases.attach([this](std::vector<PlacedBlock> list, uint64_t generation) {
      engine->call([this, list = std::move(list), generation](Scheduler& s) {
        if (places.generation() == generation) s.release_places(list);
      });
    });
  }
  // What `look` finds on the engine thread.
  template <class F>
  auto ask(F look) {
    std::promise<decltype(look(std::declval<Scheduler&>()))> found;
    engine->call([&](Scheduler& s) { found.set_value(look(s)); });
    return found.get_future().get();
  }
  int num_held() {
    return ask([](Scheduler& s) { return s.num_held_places(); });
  }

  KvIdentity identity;
  KvPlaces places;
  RealClock clock;
  LeaseStore leases;
  std::unique_ptr<Engine> engine;
};

// The port at which others fetch from `end`; of prefixes, so many blocks leave with each step.
inline std::unique_ptr<KvPort> open_port(KvEnd& end, Transport transport, int most_offered) {
  std::unique_ptr<KvPort> port = KvPort::open("127.0.0.1", 0, transport).value();
  port->start(end.leases, end.identity,
              [&end, most_offered](PromptBlocks prompt, int first, LeaseId lease) {
                offer_prefix(*end.engine, end.leases, std::move(prompt), first, lease,
                             most_offered);
              });
  return port;
}

// With time enough on a busy machine.
inline std::unique_ptr<KvFetcher> open_fetcher(KvEnd& end,
                                               Transport transport,
                                               std::chrono::milliseconds await_time) {
  KvFetcher::Options options;
  options.await_time = await_time;
  options.time = std::chrono::seconds(60);
  options.transport = transport;
  options.rest = std::chrono::milliseconds(0);
  return std::make_unique<KvFetcher>(options, *end.engine, end.places, end.identity);
}

// Until the other side has given everything back.
inline void expect_freed(KvEnd& end) {
  // The engine is told a moment after the lease has ended.
  for (int k = 0; (end.leases.stats().leases > 0 || end.num_held() > 0) && k < 10'000; ++k)
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  EXPECT_EQ(end.leases.stats().leases, 0u);
  EXPECT_EQ(end.leases.stats().places, 0u);
  EXPECT_EQ(end.num_held(), 0);
}

}  // namespace sluice
