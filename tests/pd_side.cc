#include "pd_side.h"

#include <algorithm>
#include <map>
#include <thread>
#include <utility>

#include <gtest/gtest.h>

namespace sluice {

namespace {

KvIdentity identity_of(const Subject& subject, const Setup& setup, const std::string& key) {
  const SchedulerConfig& c = setup.scheduler;
  KvIdentity id;
  id.key = key;
  id.content = sha256(subject.name);
  id.block_bytes =
      KvCache::bytes_per_block(subject.models[0]->shape(), setup.groups, subject.kv, c.block_size);
  id.block_size = c.block_size;
  id.max_blocks = static_cast<uint32_t>(c.max_len / c.block_size);
  id.num_groups = setup.groups.num_groups();
  id.windowed = std::ranges::any_of(setup.groups.windows, [](int w) { return w > 0; });
  return id;
}

ExecutorConfig with_sender(ExecutorConfig e, KvExporter* sender) {
  e.sender = sender;
  return e;
}

}  // namespace

void PausingSender::written(uint64_t step, size_t num_bytes) noexcept {
  to_.written(step, num_bytes);
  std::this_thread::sleep_for(std::chrono::microseconds(300));
}

ModelSide::ModelSide(Subject& subject,
                     const Setup& setup,
                     const std::string& key,
                     bool sends,
                     std::chrono::milliseconds lease_time)
    : KvEnd(identity_of(subject, setup, key), lease_time),
      scheduler_(setup.scheduler, nullptr),
      executor_(
          *subject.backends[static_cast<size_t>(setup.threads - 1)],
          *subject.models[static_cast<size_t>(setup.threads - 1)],
          with_sender(executor_config(subject, setup, scheduler_), sends ? &sender_ : nullptr),
          clock),
      encoding_(executor_) {
  Engine::Options options;
  options.pipeline = setup.scheduler.pipeline;
  options.loop.forced = setup.forced;
  options.sends = sends;
  options.observer = [this](const StepReport& r, const StepPlan& p, const Events&,
                            const Scheduler& s) { after_step(r, p, s); };
  start(scheduler_, encoding_, executor_.host_tier(), std::move(options));
}

ModelSide::~ModelSide() { engine.reset(); }

// Blocks are offered when a step completes, and the next plan moves them out before anything else.
// By then a block may be free, if the prefix cache has its content in another one already.
std::map<TransferId, Transfer> ModelSide::transfers(const Scheduler& scheduler) const {
  std::map<TransferId, Transfer> all = encoding_.moving();
  Scheduler copy = scheduler;
  StepPlan next;
  Events events;
  copy.plan(clock.now(), next, events);
  for (const Transfer& t : next.transfers) all.emplace(t.id, t);
  return all;
}

void ModelSide::after_step(const StepReport& report,
                           const StepPlan& plan,
                           const Scheduler& scheduler) {
  EXPECT_TRUE(scheduler.count_blocks().conserved());
  poison_free_blocks(scheduler, transfers(scheduler), executor_.kv_cache());
  if (!report.launched) return;
  const auto num = std::ranges::count(plan.transfers, Transfer::send, &Transfer::kind);
  num_sent_.fetch_add(static_cast<uint64_t>(num));
}

void ModelSide::expect_idle() {
  const auto is_idle = [](Scheduler& s) { return s.idle(); };
  for (int k = 0; !ask(is_idle) && k < 10'000; ++k)
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  EXPECT_TRUE(ask(is_idle));
  const BlockCounts blocks = ask([](Scheduler& s) { return s.count_blocks(); });
  EXPECT_EQ(blocks.free + blocks.cached, blocks.total) << "blocks left behind";
  EXPECT_EQ(num_held(), 0) << "places left behind";
}

}  // namespace sluice
