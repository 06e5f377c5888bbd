// A run of plans and their masks, recorded as bytes, gives the same results on a fresh executor,
// byte for byte: what an executor does depends on these alone, not on when they come or how many
// steps are in flight. And what no executor does yet is refused.
#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include <gtest/gtest.h>

#include "backend/cpu/cpu_backend.h"
#include "core/plan_codec.h"
#include "core/replay.h"
#include "core/segment_encoder.h"
#include "engine/loop.h"
#include "exec/device_executor.h"
#include "exec/device_fake.h"
#include "exec/model_executor.h"
#include "exec/plan_replay.h"
#include "model/model.h"
#include "tensor/gguf.h"
#include "tiny_constraints.h"

namespace sluice {
namespace {

struct Recording {
  std::vector<Bytes> plans, results;
  std::map<uint64_t, Bytes> masks;  // by step
};

class RecordingExecutor final : public Executor {
 public:
  RecordingExecutor(Executor& inner, Recording& to) : inner_(inner), to_(to) {}
  void launch(const StepPlan& plan) override {
    encode(plan, to_.plans.emplace_back());
    inner_.launch(plan);
  }
  void masks(StepMasks masks) override {
    {
      std::lock_guard lock(mutex_);
      encode(masks, to_.masks[masks.step]);
    }
    inner_.masks(std::move(masks));
  }
  const StepResult& wait() override {
    const StepResult& r = inner_.wait();
    encode(r, to_.results.emplace_back());
    return r;
  }

 private:
  Executor& inner_;
  Recording& to_;
  std::mutex mutex_;
};

// A model behind an executor; its clock stands still, so that results have no times.
class Rig {
 public:
  explicit Rig(const std::string& name, int threads) {
    file_ = open_gguf(SLUICE_SOURCE_DIR "/tests/golden/models/" + name + ".gguf").value();
    backend_ = make_cpu_backend({.threads = threads, .pin = false});
    model_ = load_model(*file_, *backend_, {}).value();
    config.budget = 24;
    config.max_seqs = 6;
    config.max_len = 96;
    config.block_size = 8;
    config.group_windows = cache_groups(model_->shape()).windows;
    config.num_blocks = 16 * static_cast<int>(config.group_windows.size());
  }
  std::unique_ptr<ModelExecutor> executor() {
    return std::make_unique<ModelExecutor>(*backend_, *model_, sizes(), clock_);
  }
  // What a fresh executor makes of the segments of a recording.
  PlanReplay replay() { return {*backend_, *model_, sizes(), clock_}; }
  int vocab() const { return model_->shape().vocab; }

  SchedulerConfig config;

 private:
  ExecutorConfig sizes() const {
    ExecutorConfig e;
    e.num_blocks = config.num_blocks;
    e.block_size = config.block_size;
    e.max_seqs = config.max_seqs;
    e.max_len = config.max_len;
    e.max_step_tokens = Scheduler(config, nullptr).max_step_tokens();
    e.logits_rows = 5;
    e.kv_type = DType::f16;
    e.pipeline = config.pipeline;
    e.num_places = config.tiers.memory();
    e.groups = cache_groups(model_->shape());
    return e;
  }

  std::unique_ptr<Checkpoint> file_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Model> model_;
  SimClock clock_;
};

// Seeded, penalised, scored, pooled, forked and constrained requests, more than fit at once: some
// are preempted.
Request make_request(int i, int vocab) {
  Request r;
  r.id = static_cast<RequestId>(i + 1);
  auto prompt = std::make_shared<std::vector<Token>>();
  for (int p = 0; p < 5 + 9 * (i % 5); ++p) prompt->push_back((p * 31 + i % 3 * 7 + 1) % vocab);
  r.prompt = prompt;
  auto spec = std::make_shared<SamplingSpec>();
  spec->temperature = i % 2 ? 0.9f : 0.0f;
  spec->seed = static_cast<uint64_t>(i) << 40;
  if (i % 3 == 0) spec->repetition_penalty = 1.3f, spec->logit_bias = {{3, 1.5f}};
  if (i % 4 == 0) spec->num_logprobs = 2;
  if (i % 5 == 0) spec->prompt_logprobs = 1;
  r.sampling = spec;
  r.max_new = 8 + i % 7;
  r.n = i % 4 == 1 ? 3 : 1;
  if (i % 6 == 5) {
    r.pooling = i % 4 == 1 ? Pooling::mean : Pooling::last;
    r.max_new = 0, r.n = 1;
    r.sampling = std::make_shared<const SamplingSpec>();
  } else if (i % 3 == 1) {
    r.constraint = tiny_constraint(i % kNumTinyConstraints, vocab);
    add_end_tokens(r);
  }
  return r;
}

// Runs requests to their end; returns the number of preemptions.
uint64_t record(Rig& rig, Recording& to) {
  std::unique_ptr<ModelExecutor> executor = rig.executor();
  RecordingExecutor recorder(*executor, to);
  Scheduler scheduler(rig.config, nullptr);
  RealClock clock;
  Loop loop(scheduler, recorder, clock, rig.config.pipeline);
  Events events;
  for (int i = 0; i < 18; ++i) scheduler.add(make_request(i, rig.vocab()), clock.now()).value();
  for (int k = 0; k < 5000 && loop.busy(); ++k) loop.iterate(events);
  EXPECT_TRUE(scheduler.idle());
  return scheduler.stats().num_preemptions;
}

// Segments in memory; masks come from another thread.
class LockedSink final : public SegmentSink {
 public:
  bool ready(size_t) override { return true; }
  bool begin(uint32_t, std::span<const std::byte> first) override {
    std::lock_guard lock(mutex_);
    segments.emplace_back(first.begin(), first.end());
    return true;
  }
  bool write(std::span<const std::byte> records) override {
    std::lock_guard lock(mutex_);
    segments.back().insert(segments.back().end(), records.begin(), records.end());
    return true;
  }
  std::vector<Bytes> segments;

 private:
  std::mutex mutex_;
};

class MaskRecorder final : public Executor {
 public:
  MaskRecorder(Executor& inner, SegmentSink& to) : inner_(inner), to_(to) {}
  void launch(const StepPlan& plan) override { inner_.launch(plan); }
  void masks(StepMasks masks) override {
    Bytes bytes;
    record_masks(masks, bytes);
    to_.write(bytes);
    inner_.masks(std::move(masks));
  }
  const StepResult& wait() override { return inner_.wait(); }

 private:
  Executor& inner_;
  SegmentSink& to_;
};

std::vector<Bytes> record_segments(const SchedulerConfig& config, int vocab, Executor& executor) {
  LockedSink sink;
  MaskRecorder recorder(executor, sink);
  Scheduler scheduler(config, nullptr);
  RecordingHeader header;
  header.vocab = vocab;
  header.text = true;
  SegmentEncoder encoder(header, 700, nullptr, sink);
  encoder.start(scheduler);
  scheduler.listen(&encoder);
  {
    RealClock clock;
    Loop loop(scheduler, recorder, clock, config.pipeline);
    Events events;
    int added = 0;
    for (int k = 0; k < 5000 && (added < 36 || loop.busy()); ++k) {
      if (k % 3 == 0 && added < 36) {
        scheduler.add(make_request(added, vocab), clock.now()).value();
        ++added;
      }
      loop.iterate(events);
    }
    EXPECT_TRUE(scheduler.idle());
  }  // with the threads that record masks, some of them late
  scheduler.listen(nullptr);
  return sink.segments;
}

std::vector<Bytes> record_segments(Rig& rig) {
  return record_segments(rig.config, rig.vocab(), *rig.executor());
}

struct Replayed {
  size_t segments = 0, restored = 0;  // that were replayed; of those, that began with K and V
};

// Each segment alone, as a beginning, and the one that follows it.
Replayed replay_each(const std::vector<Bytes>& segments, Rig& rig) {
  Replayed out;
  for (size_t k = 0; k < segments.size() && !testing::Test::HasFailure(); ++k) {
    SCOPED_TRACE("segment " + std::to_string(k));
    Result<ScheduleReport> plans = replay_schedule(segments[k]);
    if (!plans) return ADD_FAILURE() << plans.error().message, out;
    EXPECT_EQ(plans->difference, "");
    PlanReplay replay = rig.replay();
    if (k + 1 < segments.size()) replay.expect(segments[k + 1]);
    auto ok = replay.run(segments[k]);
    if (!ok) {
      EXPECT_EQ(ok.error().code, 422) << ok.error().message;  // a prompt that is pooled
      continue;
    }
    if (k + 1 < segments.size()) replay.run(segments[k + 1]).value();
    EXPECT_EQ(replay.difference, "") << replay.num_unknown << " unknown";
    ++out.segments;
    out.restored += replay.num_restored > 0;
  }
  return out;
}

// K and V are not in a recording: those that a segment begins with are computed again.
TEST(Replay, ASegmentFromTheMiddleGivesTheSameBytes) {
  for (const char* name : {"llama", "gemma2"}) {
    for (Pipeline pipeline : {Pipeline::sync, Pipeline::overlap}) {
      SCOPED_TRACE(name + std::string(pipeline.chained ? ", overlap" : ", sync"));
      Rig rig(name, 2), other(name, 1);
      rig.config.pipeline = other.config.pipeline = pipeline;
      rig.config.num_blocks *= 2, other.config.num_blocks *= 2;
      const std::vector<Bytes> segments = record_segments(rig);
      ASSERT_GT(segments.size(), 6u);
      const Replayed replayed = replay_each(segments, other);
      EXPECT_GT(replayed.segments, segments.size() / 2);
      EXPECT_GT(replayed.restored, segments.size() / 3);
    }
  }
}

size_t num_transfers(const std::vector<Bytes>& segments, Transfer::Kind kind) {
  size_t num = 0;
  for (const Bytes& segment : segments) {
    RecordReader reader(segment);
    reader.header().value();
    while (std::optional<Record> r = reader.next()) {
      if (r->kind != RecordKind::plan) continue;
      const StepPlan plan = read_plan(r->payload).value().plan;
      num += static_cast<size_t>(std::ranges::count(plan.transfers, kind, &Transfer::kind));
    }
  }
  return num;
}

// So are those in host memory: of sequences that were preempted, and of evicted prefixes.
TEST(Replay, ASegmentWithBlocksInHostMemoryToo) {
  for (const char* name : {"llama", "gemma2"}) {
    for (Pipeline pipeline : {Pipeline::sync, Pipeline::overlap}) {
      SCOPED_TRACE(name + std::string(pipeline.chained ? ", overlap" : ", sync"));
      Rig rig(name, 2), other(name, 1);
      for (SchedulerConfig* c : {&rig.config, &other.config}) {
        c->pipeline = pipeline;
        c->preempt = Preempt::swap;
        c->tiers.swap = 40, c->tiers.host = 30;
      }
      const std::vector<Bytes> segments = record_segments(rig);
      ASSERT_GT(segments.size(), 6u);
      EXPECT_GT(num_transfers(segments, Transfer::out), 50u);
      EXPECT_GT(num_transfers(segments, Transfer::in), 10u);
      const Replayed replayed = replay_each(segments, other);
      EXPECT_GT(replayed.segments, segments.size() / 2);
      EXPECT_GT(replayed.restored, segments.size() / 3);
    }
  }
}

// A device with a queue of its own, here one that computes nothing; there is never more than one
// executor.
class DeviceRig {
 public:
  DeviceRig() {
    config.budget = 24, config.max_seqs = 6, config.max_len = 64, config.block_size = 8;
    config.num_blocks = 40, config.preempt = Preempt::swap;
    config.tiers.swap = 12, config.tiers.host = 8;
  }
  ExecutorConfig sizes() const {
    ExecutorConfig e;
    e.num_blocks = config.num_blocks, e.block_size = config.block_size;
    e.max_seqs = config.max_seqs, e.max_len = config.max_len, e.kv_type = DType::f32;
    e.num_places = config.tiers.memory();
    e.max_step_tokens = Scheduler(config, nullptr).max_step_tokens();
    e.pipeline = config.pipeline;
    return e;
  }
  std::unique_ptr<Executor> make(const ExecutorConfig& sizes) {
    struct Counted final : Executor {
      void launch(const StepPlan& plan) override { inner->launch(plan); }
      void masks(StepMasks masks) override { inner->masks(std::move(masks)); }
      const StepResult& wait() override { return inner->wait(); }
      std::unique_ptr<DeviceExecutor> inner;
      std::shared_ptr<int> alive = std::make_shared<int>();
    };
    for (const auto& other : made_) EXPECT_TRUE(other.expired()) << "two executors on a device";
    auto executor = std::make_unique<Counted>();
    executor->inner = std::make_unique<DeviceExecutor>(device_, model_, sizes, clock_, true);
    made_.push_back(executor->alive);
    most_places = std::max(most_places, sizes.num_places);
    return executor;
  }
  std::vector<Bytes> record() {
    return record_segments(config, model_.shape().vocab, *make(sizes()));
  }
  PlanReplay replay() {
    return {[this](const ExecutorConfig& c) { return make(c); }, model_.shape(), sizes()};
  }

  SchedulerConfig config;
  int most_places = 0;  // in host memory, of any executor

 private:
  NotingDevice device_;
  NotingModel model_;
  SimClock clock_;
  std::vector<std::weak_ptr<int>> made_;
};

TEST(Replay, ASegmentOnADevice) {
  DeviceRig rig;
  const std::vector<Bytes> segments = rig.record();
  ASSERT_GT(segments.size(), 6u);
  size_t replayed = 0, restored = 0;
  for (const Bytes& segment : segments) {
    PlanReplay replay = rig.replay();
    auto ok = replay.run(segment);
    if (!ok) {
      EXPECT_EQ(ok.error().code, 422) << ok.error().message;
      continue;
    }
    EXPECT_EQ(replay.difference, "");
    ++replayed, restored += replay.num_restored > 0;
  }
  EXPECT_GT(replayed, segments.size() / 2);
  EXPECT_GT(restored, segments.size() / 3);
  EXPECT_EQ(rig.most_places, rig.config.tiers.memory()) << "K and V went by way of the host";
}

// All segments in a row: each begins where the one before it ended, so nothing is computed again.
TEST(Replay, SegmentsInARow) {
  const auto check = [](const std::vector<Bytes>& segments, PlanReplay replay) {
    ASSERT_GT(segments.size(), 6u);
    for (const Bytes& s : segments) replay.expect(s);
    for (size_t k = 0; k < segments.size(); ++k) {
      replay.run(segments[k]).value();
      ASSERT_EQ(replay.difference, "") << "segment " << k;
      ASSERT_EQ(replay.num_restored, 0u) << "segment " << k;
    }
  };
  for (Pipeline pipeline : {Pipeline::sync, Pipeline::overlap}) {
    DeviceRig device;
    device.config.pipeline = pipeline;
    check(device.record(), device.replay());
    for (const char* name : {"llama", "gemma2"}) {
      Rig rig(name, 2), other(name, 1);
      for (SchedulerConfig* c : {&rig.config, &other.config}) {
        c->pipeline = pipeline;
        c->preempt = Preempt::swap;
        c->tiers.swap = 40, c->tiers.host = 30;
      }
      check(record_segments(rig), other.replay());
    }
  }
}

// Without some records of segment k, by cutting it or leaving it out: the next one's state differs
// from what is there, and only those blocks are computed again.
TEST(Replay, MissingRecordsAreMadeUpFor) {
  for (const char* name : {"llama", "gemma2"}) {
    Rig rig(name, 2), other(name, 1);
    rig.config.num_blocks *= 2, other.config.num_blocks *= 2;
    const std::vector<Bytes> segments = record_segments(rig);
    uint64_t again = 0, anew = 0;
    size_t replayed = 0;
    for (size_t k = 1; k + 1 < segments.size() && !testing::Test::HasFailure(); ++k) {
      SCOPED_TRACE(std::string(name) + " segment " + std::to_string(k));
      uint64_t alone = 0;
      {
        PlanReplay replay = other.replay();  // gone before the next: both would share the model
        for (const Bytes& s : segments) replay.expect(s);
        if (!replay.run(segments[k + 1])) continue;  // a prompt that is pooled
        alone = replay.num_restored;
      }
      for (size_t part : {size_t{0}, size_t{1}, size_t{2}}) {
        PlanReplay replay = other.replay();
        for (const Bytes& s : segments) replay.expect(s);
        for (size_t before = 0; before < k; ++before) replay.run(segments[before]).value();
        if (part > 0) {
          // A cut within its state leaves nothing to run.
          const std::span<const std::byte> cut(segments[k].data(), segments[k].size() - 9 * part);
          replay.run(cut).value();
        }
        EXPECT_EQ(replay.num_restored, 0u);
        replay.run(segments[k + 1]).value();
        EXPECT_EQ(replay.difference, "") << replay.num_unknown << " unknown, part " << part;
        again += replay.num_restored, anew += alone, ++replayed;
      }
    }
    EXPECT_GT(replayed, segments.size());
    EXPECT_GT(again, 0u);
    // (Beyond a window nothing is there to go on from.)
    if (std::string(name) == "llama") {
      EXPECT_LT(again, anew) << "more than what differs was computed";
    }
  }
}

// A record of masks is lost where a segment was cut: the masks allowed what was sampled.
TEST(Replay, MissingMasks) {
  for (const char* name : {"llama", "gemma2"}) {
    Rig rig(name, 2), other(name, 1);
    const std::vector<Bytes> segments = record_segments(rig);
    PlanReplay replay = other.replay();
    for (const Bytes& s : segments) replay.expect(s);
    size_t dropped = 0;
    for (size_t k = 0; k < segments.size(); ++k) {
      RecordReader reader(segments[k]);
      ASSERT_TRUE(reader.header());
      Bytes rest(segments[k].begin(), segments[k].begin() + static_cast<ptrdiff_t>(reader.at()));
      for (size_t from = reader.at(); std::optional<Record> r = reader.next(); from = reader.at()) {
        const auto at = segments[k].begin() + static_cast<ptrdiff_t>(from);
        if (r->kind == RecordKind::masks)
          ++dropped;
        else
          rest.insert(rest.end(), at, at + static_cast<ptrdiff_t>(reader.at() - from));
      }
      replay.run(rest).value();
      ASSERT_EQ(replay.difference, "") << name << " segment " << k;
    }
    EXPECT_GT(dropped, 10u);
    EXPECT_EQ(replay.num_restored, 0u);
  }
}

// Up to its last whole record.
TEST(Replay, ASegmentCutAtAnyByte) {
  Rig rig("llama", 1);
  const std::vector<Bytes> segments = record_segments(rig);
  ASSERT_GT(segments.size(), 3u);
  const Bytes& whole = segments[2];
  uint64_t last = 0, most = replay_schedule(whole).value().num_results;
  for (size_t size = 0; size <= whole.size(); ++size) {
    const std::span<const std::byte> cut(whole.data(), size);
    Result<ScheduleReport> plans = replay_schedule(cut);
    if (!plans) {
      EXPECT_EQ(last, 0u) << "a longer part was read before";
      EXPECT_NE(plans.error().message, "");
      continue;
    }
    ASSERT_EQ(plans->difference, "");
    ASSERT_GE(plans->num_results, last);
    const bool more = plans->num_results > last;
    last = plans->num_results;
    if (!more && size % 61 != 0) continue;
    PlanReplay replay = rig.replay();
    if (auto ok = replay.run(cut); !ok) {
      ASSERT_EQ(ok.error().code, 422) << ok.error().message;
      continue;
    }
    EXPECT_EQ(replay.difference, "");
    EXPECT_EQ(replay.num_results, last);
  }
  EXPECT_EQ(last, most);
}

TEST(Replay, ARecordedRunGivesTheSameBytes) {
  uint64_t preemptions = 0;
  for (const char* name : {"llama", "gemma2"}) {
    SCOPED_TRACE(name);
    Rig rig(name, 2), other(name, 1);
    Recording run;
    preemptions += record(rig, run);
    ASSERT_EQ(run.plans.size(), run.results.size());
    EXPECT_GT(run.masks.size(), 10u);
    EXPECT_GT(run.plans.size(), 40u);
    std::unique_ptr<ModelExecutor> executor = other.executor();
    for (size_t k = 0; k < run.plans.size(); ++k) {
      StepPlan plan = decode_plan(run.plans[k]).value();
      executor->launch(plan);
      if (auto m = run.masks.find(plan.step); m != run.masks.end())
        executor->masks(decode_masks(m->second).value());
      Bytes result;
      encode(executor->wait(), result);
      ASSERT_EQ(result, run.results[k]) << "step " << k;
    }
  }
  EXPECT_GT(preemptions, 0u) << "the runs prove too little";
}

// Deeper pipelines plan further ahead, and no output changes.
TEST(Replay, DepthAndChainingChangeNoToken) {
  std::vector<std::vector<Token>> first;
  for (Pipeline pipeline :
       {Pipeline::sync, Pipeline::simple_async, Pipeline::interleave, Pipeline::double_buffer,
        Pipeline::overlap, Pipeline{3, true, 1}, Pipeline{5, true, 1}, Pipeline{3, false, 3}}) {
    Rig rig("llama", 1);
    rig.config.pipeline = pipeline;
    std::unique_ptr<ModelExecutor> executor = rig.executor();
    Scheduler scheduler(rig.config, nullptr);
    RealClock clock;
    Loop loop(scheduler, *executor, clock, pipeline);
    std::vector<std::vector<Token>> tokens(18 * 3);
    for (int i = 0; i < 18; ++i) scheduler.add(make_request(i, rig.vocab()), clock.now()).value();
    int most = 0;
    for (int k = 0; k < 5000 && loop.busy(); ++k) {
      Events events;
      loop.iterate(events);
      most = std::max(most, scheduler.stats().num_in_flight);
      for (const Event& e : events.list) {
        if (e.token != kNoToken) tokens[(e.req - 1) * 3 + e.choice].push_back(e.token);
      }
    }
    EXPECT_TRUE(scheduler.idle());
    // Looked at after a wait.
    EXPECT_LE(most, pipeline.max_in_flight() - 1);
    if (pipeline.chained) {
      EXPECT_EQ(most, pipeline.max_in_flight() - 1);
    }
    if (first.empty()) first = tokens;
    EXPECT_EQ(tokens, first);
  }
}

// A slice with a mask samples what it allows, or nothing; masks of a step that is done are dropped.
TEST(Replay, MasksFollowTheirPlan) {
  Rig rig("llama", 2);
  std::unique_ptr<ModelExecutor> executor = rig.executor();
  StepPlan plan;
  plan.step = 1;
  plan.sampling.emplace_back().temperature = 0;
  for (Slot s = 0; s < 2; ++s) {
    plan.rows.push_back({.id = {s + 1, 0}, .slot = s, .num_prompt = 2});
    plan.edits.push_back({s, 0, static_cast<BlockId>(s + 1), 0});
    plan.slices.push_back({.slot = s, .count = 2, .want = Want::last, .token_at = 2 * s});
  }
  plan.tokens = {1, 2, 3, 4};
  plan.num_tokens = 4;
  auto run = [&](const StepMasks& masks) {
    executor->launch(plan);
    executor->masks({plan.step - 1, {}});  // that of another step
    executor->masks(masks);
    executor->masks({plan.step, {}});  // the first one counts
    const StepResult& r = executor->wait();
    EXPECT_EQ(r.failure, "");
    ++plan.step;
    plan.rows.clear(), plan.edits.clear(), plan.sampling.clear();
    return r.tokens;
  };
  std::vector<Token> free = run({});
  plan.slices[1].mask = 0;
  EXPECT_EQ(run({plan.step, {{0, 1u << 5}}}), (std::vector<Token>{free[0], 37}));
  plan.slices[0].mask = 1;
  EXPECT_EQ(run({plan.step, {{0, 1u << 5}, {1u << 9}}}), (std::vector<Token>{9, 37}));
  EXPECT_EQ(run({plan.step, {{0, 1u << 5}}}), (std::vector<Token>{kNoToken, 37}));
  plan.slices[0].mask = plan.slices[1].mask = kNoMask;
  EXPECT_EQ(run({}), free);
}

// Destroying an executor whose step waits for masks that nobody sends must not hang.
TEST(Replay, AnExecutorStopsWithoutItsMasks) {
  Rig rig("llama", 1);
  std::unique_ptr<ModelExecutor> executor = rig.executor();
  StepPlan plan;
  plan.sampling.emplace_back();
  plan.rows.push_back({.id = {1, 0}, .num_prompt = 2});
  plan.edits = {{0, 0, 1, 0}};
  plan.slices = {{.count = 2, .want = Want::last, .mask = 0}};
  plan.tokens = {1, 2};
  plan.num_tokens = 2;
  executor->launch(plan);
}

// The failure says what the executor cannot do; the step after it works.
TEST(Replay, WhatNoExecutorDoesIsRefused) {
  Rig rig("llama", 1);
  std::unique_ptr<ModelExecutor> executor = rig.executor();
  StepPlan plan;
  plan.sampling.emplace_back();
  plan.rows.push_back({.id = {1, 0}, .num_prompt = 2});
  plan.edits = {{0, 0, 1, 0}};
  plan.slices = {{.count = 2, .want = Want::last}};
  plan.tokens = {1, 2};
  plan.num_tokens = 2;
  auto failure = [&](auto&& change) {
    StepPlan p = plan;
    change(p);
    ++plan.step;
    executor->launch(p);
    return executor->wait().failure;
  };
  EXPECT_EQ(failure([](StepPlan& p) { p.slices[0].num_draft = 1; }),
            "this executor cannot check draft tokens");
  auto moves = [&](Transfer::Kind kind) {
    return failure([&](StepPlan& p) { p.transfers = {{kind, 1, 2, 1}}; });
  };
  EXPECT_EQ(moves(Transfer::send), "this executor cannot do transfers of kind \"send\"");
  EXPECT_EQ(moves(Transfer::receive), "this executor cannot do transfers of kind \"receive\"");
  EXPECT_EQ(moves(Transfer::out), "this executor has no place 2 in host memory, only 0");
  EXPECT_EQ(moves(Transfer::in), "this executor has no place 1 in host memory, only 0");
  EXPECT_EQ(failure([](StepPlan&) {}), "");
}

}  // namespace
}  // namespace sluice
