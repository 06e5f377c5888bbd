// The plans of a recording through a fresh executor: the same tokens must come out, byte for byte.
#include <algorithm>
#include <cstdio>
#include <memory>
#include <vector>

#include "backend/cpu/cpu_backend.h"
#include "base/clock.h"
#include "base/str.h"
#include "core/plan_codec.h"
#include "core/replay.h"
#include "exec/model_executor.h"
#include "load/open.h"
#include "runtime/ledger.h"
#include "tools/commands.h"
#include "tools/locate_model.h"
#include "tools/replay/replay.h"

namespace sluice {

namespace {

// A model on the CPU behind an executor of the recorded sizes. What a recording does not say
// (--quantize, --kv, threads) is the command line's.
struct Rig {
  std::unique_ptr<Checkpoint> file;
  std::unique_ptr<Backend> backend;
  std::unique_ptr<Model> model;
  RealClock clock;
  std::unique_ptr<ModelExecutor> executor;
};

Result<void> open_rig(const RecordingHeader& h, const EngineOptions& given, Rig& rig) {
  EngineOptions o = given;
  Result<std::string> path = locate_model(o.model, o.quiet);
  if (!path) return path.error();
  o.model = *path;
  Result<std::unique_ptr<Checkpoint>> file = open_model(o.model, random_format(o), o.random_seed);
  if (!file) return file.error();
  rig.file = std::move(*file);
  Result<LoadQuant> quant = cpu_weight_quant(o, *rig.file);
  if (!quant) return quant.error();
  rig.backend = make_cpu_backend(
      {.threads = o.threads.value_or(0), .pin = false, .quant = std::move(*quant)});
  LoadOptions load;
  load.max_len = h.config.max_len;
  Result<std::unique_ptr<Model>> model = load_model(*rig.file, *rig.backend, load);
  if (!model) return model.error();
  rig.model = std::move(*model);
  const ModelShape& shape = rig.model->shape();
  if (shape.vocab != h.vocab)
    return Error{400, strf("the recording is of a model with %d tokens and this one has %d",
                           h.vocab, shape.vocab)};
  Result<KvType> kv = kv_type_of(o, shape.head_dim, nullptr);
  if (!kv) return kv.error();
  ExecutorConfig e = executor_config(Scheduler(h.config, nullptr), shape, *kv);
  if (e.groups.windows != h.config.group_windows)
    return Error{400, "the recording is of a model with other sliding windows"};
  rig.executor = std::make_unique<ModelExecutor>(*rig.backend, *rig.model, e, rig.clock);
  return {};
}

// One executor, told the plans of one segment after the other.
class ModelReplay {
 public:
  // `most`: steps in flight, as the executor was made for.
  ModelReplay(Executor& executor, size_t most) : executor_(executor), most_(most) {}
  ~ModelReplay() {
    for (const Launched& s : steps_) give_masks(s);  // that a cut recording lacks
    for (size_t k = steps_.size(); k > 0; --k) executor_.wait();
  }

  // An empty difference: all results were equal.
  Result<void> run(std::span<const std::byte> file) {
    RecordReader reader(file);
    if (Result<RecordingHeader> h = reader.header(); !h) return h.error();
    while (std::optional<Record> r = reader.next()) {
      if (auto ok = take(*r); !ok) return ok;
      if (!difference.empty()) break;
    }
    return {};
  }

  uint64_t num_results = 0, num_tokens = 0;
  std::string difference;

 private:
  struct Launched {
    uint64_t step = 0;
    bool masked = false;
  };
  // Where a recording has none for it: those that came first count.
  void give_masks(const Launched& s) {
    if (s.masked) executor_.masks({s.step, {}});
  }

  Result<void> take(const Record& r) {
    if (r.kind == RecordKind::plan) {
      Result<RecordedPlan> p = read_plan(r.payload);
      if (!p) return p.error();
      if (steps_.size() >= most_) return Error{400, "too many steps are in flight"};
      if (p->plan.empty()) return {};
      executor_.launch(p->plan);
      const bool masked =
          std::ranges::any_of(p->plan.slices, [](const Slice& s) { return s.mask != kNoMask; });
      steps_.push_back({p->plan.step, masked});
    } else if (r.kind == RecordKind::masks) {
      Result<StepMasks> m = decode_masks(r.payload);
      if (!m) return m.error();
      executor_.masks(std::move(*m));
    } else if (r.kind == RecordKind::result) {
      Result<RecordedResult> recorded = read_result(r.payload);
      if (!recorded) return recorded.error();
      if (steps_.empty()) return Error{400, "a result belongs to no step in flight"};
      give_masks(steps_.front());
      steps_.erase(steps_.begin());
      compare(recorded->result, executor_.wait());
    }
    return {};
  }

  void compare(const StepResult& was, const StepResult& is) {
    auto step = static_cast<unsigned long long>(was.step);
    ++num_results;
    num_tokens += was.tokens.size();
    if (was == is) return;
    if (was.failure != is.failure) {
      difference = strf("step %llu: recorded failure \"%s\", now \"%s\"", step, was.failure.c_str(),
                        is.failure.c_str());
      return;
    }
    for (size_t k = 0; k < std::min(was.tokens.size(), is.tokens.size()); ++k) {
      if (was.tokens[k] == is.tokens[k]) continue;
      difference = strf("step %llu: token %zu is %d and was recorded as %d", step, k, is.tokens[k],
                        was.tokens[k]);
      return;
    }
    difference = strf(
        "step %llu: its tokens are equal, its rows, log-probabilities, vectors or "
        "transfers are not",
        step);
  }

  Executor& executor_;
  const size_t most_;
  std::vector<Launched> steps_;  // in flight
};

// Why a run's results cannot be computed again; null: they can.
const char* obstacle(const RecordingHeader& h, const ScheduleReport& first) {
  if (!h.text) return "it has pseudonyms for tokens: record with --record-text";
  if (h.config.tiers.disk > 0) return "blocks on disk (--prefix-disk) are not in a recording";
  if (first.num_live > 0 || first.num_in_flight > 0 || first.num_cached > 0)
    return "its first segments are gone, and K and V are not in a recording: raise --record-size";
  return nullptr;
}

}  // namespace

int replay_model(const RecordingFiles& files, const ReplayOptions& o) {
  bool same = true, some = false;
  for (const RecordedRun& run : files.runs) {
    const RecordingHeader& h = run.header();
    Result<Bytes> bytes = read_bytes(run.segments.front().path);
    if (!bytes) return report(bytes.error());
    Result<ScheduleReport> first = replay_schedule(*bytes);
    if (!first) return report(first.error());
    std::printf("run %016llx of %s\n", static_cast<unsigned long long>(h.run), h.model.c_str());
    if (const char* why = obstacle(h, *first)) {
      std::printf("  left out: %s\n", why);
      continue;
    }
    Rig rig;
    if (auto ok = open_rig(h, o.engine, rig); !ok) return report(ok.error());
    ModelReplay replay(*rig.executor, static_cast<size_t>(h.config.pipeline.max_in_flight()));
    uint32_t last = run.segments.front().header.segment;
    for (size_t k = 0; k < run.segments.size() && replay.difference.empty(); ++k) {
      const SegmentFile& file = run.segments[k];
      if (k > 0 && (!file.header.follows || file.header.segment != last + 1)) {
        std::printf("  segments from %u on are left out: records before them are missing\n",
                    file.header.segment);
        break;
      }
      last = file.header.segment;
      if (k > 0) bytes = read_bytes(file.path);
      if (!bytes) return report(bytes.error());
      // Plans that no scheduler makes are not for an executor.
      Result<ScheduleReport> plans = replay_schedule(*bytes);
      if (!plans) break;  // cut off at its beginning: it was the last
      if (!plans->difference.empty())
        return report(
            {400, file.path + ": its plans are not those of this program: see --schedule"});
      if (auto ok = replay.run(*bytes); !ok)
        return report({ok.error().code, file.path + ": " + ok.error().message});
    }
    some = some || replay.num_results > 0;
    same = same && replay.difference.empty();
    std::printf("  %llu results, %llu tokens: %s\n",
                static_cast<unsigned long long>(replay.num_results),
                static_cast<unsigned long long>(replay.num_tokens),
                replay.difference.empty() ? "equal, byte for byte"
                                          : ("DIFFERENT: " + replay.difference).c_str());
  }
  if (!some) return report({400, "nothing was computed"});
  return same ? kExitOk : kExitFailure;
}

}  // namespace sluice
