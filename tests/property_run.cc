#include "property_run.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include <gtest/gtest.h>

#include "core/policy.h"
#include "engine/loop.h"
#include "exec/device_executor.h"
#include "exec/disk_tier.h"
#include "exec/model_executor.h"
#include "exec/split_executor.h"
#include "property_executor.h"
#include "tiny_constraints.h"

namespace sluice {

namespace {

bool same_bits(const std::vector<TopLogprob>& a, const std::vector<TopLogprob>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof a[0]) == 0);
}

// The executor of a setup, with all that it works with.
struct Parts {
  Parts(Subject& s, const Setup& setup, Scheduler& scheduler)
      : subject(s),
        t(static_cast<size_t>(setup.threads - 1)),
        config(executor_config(s, setup, scheduler)) {
    if (config.num_disk > 0) open_disk(*setup.disk_dir, scheduler);
    if (subject.host_layers > 0) divide();
    open();
    if (subject.host_layers > 0) open_first();
  }
  void open_disk(const std::filesystem::path& dir, Scheduler& scheduler);
  void divide();
  void open();
  void open_first();

  Subject& subject;
  size_t t;  // threads - 1
  RealClock clock;
  ExecutorConfig config, host;  // host: of the first layers
  std::unique_ptr<DiskTier> disk;
  Buffer states;
  std::unique_ptr<Executor> executor, rest;
  std::vector<const KvCache*> caches;  // in this process's memory
  SplitExecutor* split = nullptr;
};

void Parts::open_disk(const std::filesystem::path& dir, Scheduler& scheduler) {
  const ModelShape& shape = subject.models[t]->shape();
  const size_t bytes =
      KvCache::bytes_per_block(shape, config.groups, config.kv_type, config.block_size);
  Result<BlockFile> file =
      BlockFile::open({dir, std::string(64, 'a'), config.num_disk, config.block_size, bytes});
  EXPECT_TRUE(file) << file.error().message;
  scheduler.recall(file->list());
  Buffer staging;
  if (subject.cuda)
    staging = static_cast<Device&>(*subject.backends[t]).pinned(DiskTier::staging_bytes(bytes));
  disk = std::make_unique<DiskTier>(std::move(*file), std::move(staging));
}

// `host` becomes that of the first layers, `config` that of the others.
void Parts::divide() {
  const ModelShape& shape = subject.models[t]->shape();
  host = config;
  const CacheGroups all =
      config.groups.layers.empty() ? one_cache_group(shape.num_layers) : config.groups;
  host.groups = part_of(all, {0, subject.host_layers});
  config.groups = part_of(all, {subject.host_layers, shape.num_layers});
  const size_t bytes = states_bytes(shape, config.max_step_tokens);
  states = subject.cuda ? static_cast<Device&>(*subject.backends[t]).pinned(bytes)
                        : subject.host_backends[t]->allocate(bytes);
  config.states = static_cast<const float*>(states.data());
}

// For all layers, or the last ones.
void Parts::open() {
  Model& model = *subject.models[t];
  if (subject.cuda) {
    auto& device = static_cast<Device&>(*subject.backends[t]);
    executor = std::make_unique<DeviceExecutor>(device, model, config, clock, t > 0, disk.get());
    return;
  }
  auto own =
      std::make_unique<ModelExecutor>(*subject.backends[t], model, config, clock, disk.get());
  caches.push_back(&own->kv_cache());
  executor = std::move(own);
}

void Parts::open_first() {
  rest = std::move(executor);
  LayerStream* stream = subject.streams.empty() ? nullptr : subject.streams[t].get();
  if (stream)
    stream->reserve(LayerStream::sizes_for(host, host.groups, subject.host_layers, kSlotBytes),
                    subject.models[t]->scratch());
  auto own =
      std::make_unique<SplitExecutor>(*subject.host_backends[t], *subject.host_models[t], host,
                                      clock, static_cast<float*>(states.data()), *rest, stream);
  own->set_streams_from(24);
  caches.push_back(&own->kv_cache());
  split = own.get();
  executor = std::move(own);
}

void note_totals(const Scheduler& scheduler, Tally* tally) {
  const SchedulerStats stats = scheduler.stats();
  tally->preemptions += stats.num_preemptions;
  tally->restored += stats.tiers.num_restored;
  tally->tier_hits += stats.tiers.prefix_hits;
  tally->disk_hits += stats.tiers.disk_hits;
}

// With another number of threads.
void replay_on_another(const Parts& parts, const Recorded& recorded) {
  Subject& subject = parts.subject;
  const size_t other = (parts.t + 1) % subject.models.size();
  ModelExecutor fresh(*subject.backends[other], *subject.models[other], parts.config, parts.clock);
  replay(recorded, fresh);
}

// A choice of a request that is held to a constraint or a budget of thinking.
void expect_obedient(const Request& r, const Output& a, size_t c, int vocab, Tally* tally) {
  if (r.thinking) {
    ASSERT_TRUE(keeps_budget(r.constraint, r.thinking, a.tokens[c]))
        << "request " << r.id << " choice " << c;
    std::string text;
    for (Token t : a.tokens[c]) text += r.thinking->marks->bytes(t);
    ++tally->thinking;
    tally->closed += text.find(kTinyThinkEnd) != text.npos;
  } else if (r.constraint) {
    ASSERT_TRUE(obeys(r.constraint, a.tokens[c])) << "request " << r.id << " choice " << c;
    bool dead_end = r.constraint == tiny_constraint(kDeadEnd, vocab);
    ASSERT_TRUE(dead_end ? a.tokens[c].size() <= 2 : a.finish[c] != Finish::constraint)
        << "request " << r.id << " choice " << c;
    ++tally->constrained;
    tally->complete += a.finish[c] == Finish::stop;
  }
}

}  // namespace

Output::Output(const Request& r)
    : tokens(static_cast<size_t>(r.n)),
      top(static_cast<size_t>(r.n)),
      finish(static_cast<size_t>(r.n)) {}

void Output::take(const Event& ev, std::span<const TopLogprob> all) {
  EXPECT_EQ(num_terminal, 0) << "an event after the terminal one";
  EXPECT_EQ(finish[ev.choice], Finish::none);
  if (ev.token != kNoToken) tokens[ev.choice].push_back(ev.token);
  const auto append = [&](std::vector<TopLogprob>& to, uint32_t at, uint32_t num) {
    const auto part = all.subspan(at, num);
    to.insert(to.end(), part.begin(), part.end());
  };
  append(top[ev.choice], ev.top_at, ev.num_top);
  append(prompt, ev.prompt_at, ev.num_prompt);
  finish[ev.choice] = ev.finish;
  if (ev.pooled) pooled = ev.pooled;
  if (ev.last) ++num_terminal;
}

Setup alone(const Setup& other) {
  Setup s;
  apply_preset("sarathi", s.scheduler).value();
  s.scheduler.block_size = other.scheduler.block_size == 16 ? 32 : 16;  // must not matter either
  s.scheduler.max_len = other.scheduler.max_len;
  s.scheduler.budget = 256;
  s.scheduler.num_blocks = 64;
  s.scheduler.prefix_cache = false;
  s.scheduler.pipeline = Pipeline::sync;
  s.scheduler.sampling = other.scheduler.sampling;
  return s;
}

ExecutorConfig executor_config(const Subject& subject,
                               const Setup& setup,
                               const Scheduler& scheduler) {
  const SchedulerConfig& c = scheduler.config();
  ExecutorConfig e;
  e.num_blocks = setup.scheduler.num_blocks;
  e.block_size = setup.scheduler.block_size;
  e.max_seqs = c.max_seqs;
  e.max_len = setup.scheduler.max_len;
  e.max_step_tokens = scheduler.max_step_tokens();
  e.logits_rows = 5;  // several turns of logits per step
  e.kv_type = subject.kv;
  e.groups = setup.groups;
  e.num_places = setup.scheduler.tiers.memory();
  e.num_disk = setup.scheduler.tiers.disk;
  e.pipeline = setup.scheduler.pipeline;
  if (c.mapped()) e.num_pages = c.num_pages(), e.slot_blocks = c.pages.slot_blocks;
  return e;
}

std::map<RequestId, Output> run(Subject& subject,
                                const Setup& setup,
                                const std::vector<Request>& requests,
                                const std::map<RequestId, int>& cancel_at,
                                int join_every,
                                Tally* tally) {
  Scheduler scheduler(setup.scheduler, nullptr);
  Parts parts(subject, setup, scheduler);
  const RealClock& clock = parts.clock;
  EncodingExecutor encoding(*parts.executor);
  Loop loop(scheduler, encoding, clock, setup.scheduler.pipeline, {.forced = setup.forced});

  std::map<RequestId, Output> out;
  size_t added = 0;
  Events events;
  for (int iteration = 0; added < requests.size() || loop.busy(); ++iteration) {
    EXPECT_LT(iteration, 100000) << "no progress";
    while (added < requests.size() && static_cast<int>(added) * join_every <= iteration) {
      const Request& r = requests[added++];
      out.insert_or_assign(r.id, Output(r));
      auto ok = scheduler.add(r, clock.now());
      EXPECT_TRUE(ok) << ok.error().message;
    }
    for (const auto& [id, at] : cancel_at) {
      if (at == iteration) scheduler.cancel(id, clock.now(), events);
    }
    tally->forced += static_cast<uint64_t>(loop.iterate(events).num_forced);
    BlockCounts blocks = scheduler.count_blocks();
    EXPECT_TRUE(blocks.conserved());
    for (const KvCache* cache : parts.caches)
      if (!cache->mapped()) poison_free_blocks(scheduler, encoding.moving(), *cache);
    for (const Event& ev : events.list) out.at(ev.req).take(ev, events.top);
    events.clear();
    if (testing::Test::HasFailure()) break;
  }
  if (!testing::Test::HasFailure()) {
    BlockCounts blocks = scheduler.count_blocks();
    EXPECT_EQ(blocks.free + blocks.cached, blocks.total) << "blocks left behind";
  }
  note_totals(scheduler, tally);
  EXPECT_EQ(scheduler.num_held_places(), 0) << "places left behind";
  if (parts.split) tally->streamed += parts.split->num_streamed_rows();
  if (setup.replayed && !subject.cuda && !parts.disk && subject.host_layers == 0 &&
      !testing::Test::HasFailure()) {
    replay_on_another(parts, encoding.recorded());
    ++tally->replayed;
  }
  return out;
}

void expect_same(const Subject& subject,
                 const Request& r,
                 const Output& a,
                 const Output& b,
                 bool may_cancel,
                 Tally* tally) {
  ASSERT_EQ(a.num_terminal, 1);
  ASSERT_EQ(b.num_terminal, 1);
  for (size_t c = 0; c < a.tokens.size(); ++c) {
    expect_obedient(r, a, c, subject.models[0]->shape().vocab, tally);
    if (testing::Test::HasFailure()) return;
    if (a.finish[c] == Finish::cancelled) {
      ASSERT_TRUE(may_cancel) << "request " << r.id << " choice " << c;
      ASSERT_LE(a.tokens[c].size(), b.tokens[c].size());
      ASSERT_TRUE(std::equal(a.tokens[c].begin(), a.tokens[c].end(), b.tokens[c].begin()));
      continue;
    }
    ASSERT_EQ(a.finish[c], b.finish[c]) << "request " << r.id << " choice " << c;
    ASSERT_EQ(a.tokens[c], b.tokens[c]) << "request " << r.id << " choice " << c;
    ASSERT_TRUE(same_bits(a.top[c], b.top[c])) << "request " << r.id << " choice " << c;
  }
  if (r.pooling != Pooling::none && a.finish[0] != Finish::cancelled) {
    ASSERT_TRUE(a.pooled && b.pooled);
    ASSERT_EQ(a.pooled->size(), static_cast<size_t>(subject.models[0]->shape().hidden));
    ASSERT_EQ(std::memcmp(a.pooled->data(), b.pooled->data(), a.pooled->size() * sizeof(float)), 0)
        << "request " << r.id;
  } else {
    ASSERT_FALSE(a.pooled);
  }
  if (!may_cancel) {
    ASSERT_TRUE(same_bits(a.prompt, b.prompt)) << "request " << r.id;
    if (r.sampling->prompt_logprobs >= 0) {
      size_t per = 1 + static_cast<size_t>(r.sampling->prompt_logprobs);
      ASSERT_EQ(a.prompt.size(), (r.prompt->size() - 1) * per);
    }
  }
}

}  // namespace sluice
