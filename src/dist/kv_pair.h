// Two engines that compute nothing, with host memory of their own and a connection between them,
// for tests of what moves between them.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <future>
#include <memory>
#include <set>
#include <string>
#include <thread>

#include <gtest/gtest.h>

#include "core/fake_executor.h"
#include "dist/kv_end.h"

namespace sluice {

inline constexpr int kSize = 4, kNumPlaces = 32;
inline constexpr size_t kBytes = 4096;

class Ended final : public Sink {
 public:
  void on_event(const Event& e, std::span<const TopLogprob>) override {
    if (e.last) ended.set_value(e.timing.num_cached);
  }
  void on_refused(const Error&) override { ended.set_value(-1); }
  std::promise<int> ended;
};

inline HostTier tier_memory() {
  const size_t bytes = kNumPlaces * kBytes;
  return {Buffer(std::calloc(1, bytes), bytes, [](void* p, size_t) { std::free(p); }), kNumPlaces,
          kBytes};
}

inline SchedulerConfig dist_config() {
  SchedulerConfig c;
  c.block_size = kSize;
  c.num_blocks = 64;
  c.max_len = 128;
  c.budget = 16;
  c.tiers.host = kNumPlaces;
  return c;
}

// An engine whose blocks go to host memory with their number in every byte. `sends`: those of a
// prompt go as on_send() says, which is called with the plan of their step.
struct Side : KvEnd {
  explicit Side(const std::string& key = "", const std::string& model = "m", bool sends = false)
      : KvEnd({key, sha256(model), kBytes, kSize, 128 / kSize, 1}) {
    executor.on_launch = [this](const StepPlan& plan, StepResult&) {
      for (const Transfer& t : plan.transfers) {
        if (t.kind == Transfer::out) std::memset(tier.at(t.to), t.from, kBytes);
        if (t.kind == Transfer::in) take_in(tier.at(t.from));
      }
      if (std::ranges::any_of(plan.transfers, is_send)) on_send(plan);
    };
    Engine::Options options;
    options.sends = sends;
    start(Scheduler(dist_config(), nullptr), executor, tier, std::move(options));
  }
  ~Side() { engine.reset(); }
  int run(const PromptBlocks& prompt, LeaseId lease = 0) {
    Request r;
    r.prompt = prompt.prompt;
    r.block_hashes = prompt.hashes;
    r.tenant = prompt.tenant;
    r.sampling = std::make_shared<const SamplingSpec>();
    r.max_new = 1;
    r.lease = lease;
    auto sink = std::make_shared<Ended>();
    std::future<int> cached = sink->ended.get_future();
    engine->submit(std::move(r), sink);
    return cached.get();
  }
  static bool is_send(const Transfer& t) { return t.kind == Transfer::send; }
  void take_in(const std::byte* place) {
    taken_in.insert(static_cast<int>(place[kBytes - 1]));
    for (size_t k = 0; k < kBytes; ++k) is_whole = is_whole && place[k] == place[kBytes - 1];
  }
  // Bytes [at, end) of the blocks that a step sends, and word of it.
  void write(const StepPlan& plan, size_t at, size_t end) {
    for (const Transfer& t : plan.transfers)
      if (is_send(t)) std::memset(tier.at(t.to) + at, t.from, end - at);
    if (end < kBytes) leases.written(plan.step, end);
  }

  HostTier tier = tier_memory();
  FakeExecutor executor;
  std::function<void(const StepPlan&)> on_send = [this](const StepPlan& p) { write(p, 0, kBytes); };
  std::set<int> taken_in;  // engine thread; read when it is idle
  bool is_whole = true;    // each of those in all its bytes
};

// Prompts of another tenant have other hashes; what is fetched is compared by its tokens.
inline PromptBlocks some_prompt(int len, TenantId tenant, Token first = 1) {
  PromptBlocks p;
  auto tokens = std::make_shared<std::vector<Token>>();
  for (int k = 0; k < len; ++k) tokens->push_back(first + k);
  p.prompt = tokens;
  p.hashes = hash_blocks(*tokens, kSize, tenant);
  p.tenant = tenant;
  return p;
}

inline LeaseStore::Opened prefill(Side& side, const PromptBlocks& prompt) {
  LeaseStore::Opened lease = side.leases.open(prompt_keys(*prompt.prompt, kSize), 1);
  EXPECT_EQ(side.run(prompt, lease.id), 0);
  side.leases.seal(lease.id);
  return lease;
}

inline KvFetcher::Outcome fetch(KvFetcher& fetcher,
                                uint16_t port,
                                std::optional<LeaseName> lease,
                                PromptBlocks prompt) {
  std::promise<KvFetcher::Outcome> outcome;
  KvFetcher::Job job;
  job.peer = {"127.0.0.1", port};
  job.lease = lease;
  job.prompt = std::move(prompt);
  job.done = [&](const KvFetcher::Outcome& o) { outcome.set_value(o); };
  EXPECT_TRUE(fetcher.push(std::move(job)));
  return outcome.get_future().get();
}

// By which the servers of a test are connected.
inline Transport transport_of_test = Transport::tcp;

struct Pair {
  Pair(const std::string& key,
       const std::string& other_key,
       const std::string& other_model = "m",
       bool sends = false)
      : from(key, "m", sends), to(other_key, other_model) {
    port = open_port(from, transport_of_test, 3);
    fetcher = open_fetcher(to, transport_of_test, std::chrono::minutes(10));
  }
  std::unique_ptr<ByteStream> connect(WaitUntil until) const {
    return connect_bytes(transport_of_test, "127.0.0.1", port->port(), until).value();
  }
  KvFetcher::Outcome move(const PromptBlocks& prompt, std::optional<LeaseName> lease) {
    return fetch(*fetcher, port->port(), lease, prompt);
  }
  // Engines end before what they hold places for.
  ~Pair() {
    fetcher.reset();
    port->stop();
    from.engine.reset(), to.engine.reset();
  }
  Side from, to;
  std::unique_ptr<KvPort> port;
  std::unique_ptr<KvFetcher> fetcher;
};

// By each transport that this build has.
class KvTransferBy : public testing::TestWithParam<Transport> {
 protected:
  void SetUp() override {
    if (!resolve_transport(GetParam())) GTEST_SKIP() << "no UCX";
    transport_of_test = GetParam();
  }
  void TearDown() override { transport_of_test = Transport::tcp; }
};

inline std::future<KvFetcher::Outcome> await(Pair& pair,
                                             const LeaseName& lease,
                                             PromptBlocks prompt) {
  auto outcome = std::make_shared<std::promise<KvFetcher::Outcome>>();
  KvFetcher::Job job;
  job.peer = {"127.0.0.1", pair.port->port()};
  job.lease = lease;
  job.pending = true;
  job.prompt = std::move(prompt);
  job.done = [outcome](const KvFetcher::Outcome& o) { outcome->set_value(o); };
  std::future<KvFetcher::Outcome> future = outcome->get_future();
  EXPECT_TRUE(pair.fetcher->push(std::move(job)));
  return future;
}

}  // namespace sluice
