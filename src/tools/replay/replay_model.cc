// The plans of a recording through a fresh executor: the same tokens must come out, byte for byte.
#include <algorithm>
#include <cstdio>
#include <memory>
#include <optional>

#include "backend/cpu/cpu_backend.h"
#include "backend/cuda_plugin.h"
#include "base/clock.h"
#include "base/str.h"
#include "core/replay.h"
#include "exec/device_executor.h"
#include "exec/model_executor.h"
#include "exec/plan_replay.h"
#include "load/open.h"
#include "runtime/ledger.h"
#include "runtime/placement.h"
#include "tools/commands.h"
#include "tools/locate_model.h"
#include "tools/replay/replay.h"
#include "tools/terminal.h"

namespace sluice {

namespace {

// A model on a device, and the sizes of the recorded executor. What a recording does not say
// (--quantize, --kv, threads) is the command line's.
struct Rig {
  std::unique_ptr<Checkpoint> file;
  std::unique_ptr<Backend> backend;
  Device* device = nullptr;  // the backend, where that is a GPU
  std::unique_ptr<Model> model;
  RealClock clock;
  ExecutorConfig executor;
  bool capture = true;
};

Result<void> open_backend(const EngineOptions& o, Rig& rig) {
  rig.capture = o.capture;
  if (!o.device.is_gpu()) {
    Result<LoadQuant> quant = weight_quant(o, *rig.file);
    if (!quant) return quant.error();
    rig.backend = make_cpu_backend(
        {.threads = o.threads.value_or(0), .pin = false, .quant = std::move(*quant)});
    return {};
  }
  const Result<CudaOptions> cuda = cuda_options(o, *rig.file);
  if (!cuda) return cuda.error();
  Result<std::unique_ptr<Device>> device = open_cuda(*cuda);
  if (!device) return device.error();
  rig.device = device->get();
  rig.device->attach();
  rig.backend = std::move(*device);
  return {};
}

Result<void> open_rig(const RecordingHeader& h, const EngineOptions& given, Rig& rig) {
  EngineOptions o = given;
  Result<std::string> path = locate_model(o.model, o.quiet);
  if (!path) return path.error();
  o.model = *path;
  Result<std::unique_ptr<Checkpoint>> file = open_model(o.model, random_format(o), o.random_seed);
  if (!file) return file.error();
  rig.file = std::move(*file);
  if (auto ok = open_backend(o, rig); !ok) return ok.error();
  LoadOptions load;
  load.fuse = o.fuse;
  load.max_len = h.config.max_len;
  Result<std::unique_ptr<Model>> model = load_model(*rig.file, *rig.backend, load);
  if (!model) return model.error();
  rig.model = std::move(*model);
  const ModelShape& shape = rig.model->shape();
  if (shape.vocab != h.vocab)
    return Error{400, strf("the recording is of a model with %d tokens and this one has %d",
                           h.vocab, shape.vocab)};
  const DeviceMemory memory{0, rig.backend->activation_type()};
  Result<KvType> kv = kv_type_of(o, shape.head_dim, rig.device ? &memory : nullptr);
  if (!kv) return kv.error();
  ExecutorConfig e = executor_config(Scheduler(h.config, nullptr), shape, *kv);
  if (e.groups.windows != h.config.group_windows)
    return Error{400, "the recording is of a model with other sliding windows"};
  if (rig.device) {
    const int rows = DeviceExecutor::bucket_of(e.max_seqs);
    rig.device->tune(std::max(e.max_step_tokens, rows), rows);
  }
  rig.executor = std::move(e);
  return {};
}

MakeExecutor maker_of(Rig& rig) {
  return [&rig](const ExecutorConfig& c) -> std::unique_ptr<Executor> {
    if (rig.device)
      return std::make_unique<DeviceExecutor>(*rig.device, *rig.model, c, rig.clock, rig.capture);
    return std::make_unique<ModelExecutor>(*rig.backend, *rig.model, c, rig.clock);
  };
}

// Why no segment of a run can be computed again; null: they can.
const char* obstacle(const RecordingHeader& h) {
  if (!h.text) return "it has pseudonyms for tokens: record with --record-text";
  if (h.config.tiers.disk > 0) return "blocks on disk (--prefix-disk) are not in a recording";
  return nullptr;
}

// A run's segments, some of which may be missing.
class RunReplay {
 public:
  RunReplay(const RecordedRun& run, Rig& rig, bool quiet) : run_(run), rig_(rig), status_(!quiet) {}

  Result<void> all() {
    for (size_t k = 0; k < run_.segments.size() && same(); ++k) {
      const SegmentFile& file = run_.segments[k];
      if (!follows(k)) print_part();
      Result<Bytes> bytes = read_bytes(file.path);
      if (!bytes) return bytes.error();
      // Plans that no scheduler makes are not for an executor.
      Result<ScheduleReport> plans = replay_schedule(*bytes);
      if (!plans && k + 1 == run_.segments.size()) break;  // cut off at its beginning
      if (!plans) {
        print_part();
        std::printf("  segment %u: left out: %s\n", file.header.segment,
                    plans.error().message.c_str());
        continue;
      }
      if (!plans->difference.empty())
        return Error{400, file.path + ": its plans are not those of this program: see --schedule"};
      if (auto ok = one(k, *bytes); !ok)
        return Error{ok.error().code, file.path + ": " + ok.error().message};
    }
    print_part();
    return {};
  }
  bool same() const { return difference_.empty(); }
  uint64_t num_results() const { return num_results_; }

 private:
  // Segment k begins where the one before it ends.
  bool follows(size_t k) const {
    const RecordingHeader& h = run_.segments[k].header;
    return k > 0 && h.follows && h.segment == run_.segments[k - 1].header.segment + 1;
  }

  Result<void> one(size_t k, const Bytes& bytes) {
    const SegmentFile& file = run_.segments[k];
    if (!replay_) {
      if (auto ok = open(k); !ok) return ok;
    }
    auto ok = replay_->run(bytes);
    status_.clear();
    difference_ = replay_->difference;
    if (ok && !begun_) begun_ = file.header.segment;
    if (ok || ok.error().code != 422) return ok;
    print_part();
    std::printf("  segment %u: left out as a beginning: %s\n", file.header.segment,
                ok.error().message.c_str());
    replay_.reset();
    return {};
  }

  // For segment k and those behind it.
  Result<void> open(size_t k) {
    replay_.emplace(maker_of(rig_), rig_.model->shape(), rig_.executor);
    printed_ = {};
    replay_->progress = [this](size_t done, size_t all) {
      status_.show(strf("computing K and V of %zu positions again: %.0f %%", all,
                        100.0 * static_cast<double>(done) / static_cast<double>(all)));
    };
    for (size_t later = k + 1; later < run_.segments.size(); ++later) {
      Result<Bytes> next = read_bytes(run_.segments[later].path);
      if (!next) return next.error();
      replay_->expect(*next);
    }
    return {};
  }

  // The segments since the last gap.
  void print_part() {
    if (!replay_ || !begun_) return;
    const PlanReplay& r = *replay_;
    const Counts all{r.num_results, r.num_tokens, r.num_restored};
    const uint64_t results = all.results - printed_.results;
    num_results_ += results;
    std::printf("  from segment %u on", *begun_);
    if (all.restored > printed_.restored)
      std::printf(", after K and V of %llu positions",
                  static_cast<unsigned long long>(all.restored - printed_.restored));
    std::printf(": %llu results, %llu tokens: %s\n", static_cast<unsigned long long>(results),
                static_cast<unsigned long long>(all.tokens - printed_.tokens),
                same() ? "equal, byte for byte" : ("DIFFERENT: " + r.difference).c_str());
    if (!same() && r.num_unknown > 0)
      std::printf(
          "  %d cached blocks could not be computed again: their beginnings were no longer "
          "cached, and that may be why\n",
          r.num_unknown);
    printed_ = all;
    begun_.reset();
  }

  struct Counts {
    uint64_t results = 0, tokens = 0, restored = 0;
  };
  const RecordedRun& run_;
  Rig& rig_;
  StatusLine status_;
  std::optional<PlanReplay> replay_;
  std::optional<uint32_t> begun_;  // the first segment that print_part() has not told of
  Counts printed_;                 // by print_part(), of this replay
  uint64_t num_results_ = 0;
  std::string difference_;
};

}  // namespace

int replay_model(const RecordingFiles& files, const ReplayOptions& o) {
  if (o.engine.device.is_gpu() && !o.engine.deterministic)
    return report({400,
                   "on a GPU bits depend on what shares the batch, unless it is served with "
                   "--deterministic: record such a server, and give --deterministic here too"});
  bool same = true, some = false;
  for (const RecordedRun& run : files.runs) {
    const RecordingHeader& h = run.header();
    std::printf("run %016llx of %s\n", static_cast<unsigned long long>(h.run), h.model.c_str());
    if (const char* why = obstacle(h)) {
      std::printf("  left out: %s\n", why);
      continue;
    }
    Rig rig;
    if (auto ok = open_rig(h, o.engine, rig); !ok) return report(ok.error());
    RunReplay replay(run, rig, o.engine.quiet);
    if (auto ok = replay.all(); !ok) return report(ok.error());
    some = some || replay.num_results() > 0;
    same = same && replay.same();
  }
  if (!some) return report({400, "nothing was computed"});
  return same ? kExitOk : kExitFailure;
}

}  // namespace sluice
