#include "runtime/session.h"

#include <algorithm>
#include <future>
#include <new>

#include "backend/cpu/cpu_backend.h"
#include "backend/cuda_plugin.h"
#include "backend/ref/ref_backend.h"
#include "base/check.h"
#include "base/log.h"
#include "base/str.h"
#include "core/policy.h"
#include "exec/device_executor.h"
#include "exec/layer_stream.h"
#include "exec/row_spec.h"
#include "exec/simulated_model.h"
#include "exec/split_executor.h"
#include "runtime/disk_content.h"
#include "runtime/placement.h"
#include "runtime/stream_plan.h"

namespace sluice {

// The first layers of a model on the CPU, and what runs executor_ after them.
struct Session::Split {
  std::unique_ptr<Backend> backend;
  std::unique_ptr<Model> model;
  Buffer states;                        // pinned: ExecutorConfig::states
  std::unique_ptr<LayerStream> stream;  // null: prompts do not run through the GPU
  int num_layers = 0;
  size_t slot_bytes = 0;

  Result<void> load_stream(Device& device,
                           Checkpoint& checkpoint,
                           const EngineOptions& options,
                           LoadOptions load);
  LayerStream::Sizes stream_sizes(const ExecutorConfig& e, const ModelShape& shape) const {
    return LayerStream::sizes_for(e, part_of(cache_groups(shape), {0, num_layers}), num_layers,
                                  slot_bytes);
  }
  std::unique_ptr<SplitExecutor> executor;
};

Result<std::unique_ptr<Session>> Session::open(const EngineOptions& options,
                                               std::function<void(size_t, size_t)> progress) {
  return open_as(options, std::move(progress), nullptr);
}

Result<std::unique_ptr<Session>> Session::simulate(const EngineOptions& options,
                                                   const StepCost& cost) {
  EngineOptions o = options;
  if (o.device.is_gpu() || o.device.kind == DeviceChoice::Kind::ref)
    return Error{400, "--simulate computes nothing, so --device has no meaning: leave it out"};
  o.device.kind = DeviceChoice::Kind::cpu;
  return open_as(o, {}, &cost);
}

bool Session::is_simulated() const {
  return dynamic_cast<const SimulatedModel*>(model_.get()) != nullptr;
}

Result<std::unique_ptr<Session>> Session::open_as(const EngineOptions& options,
                                                  std::function<void(size_t, size_t)> progress,
                                                  const StepCost* simulated) {
  if (auto ok = check_allocator(options.scheduler); !ok) return ok.error();
  std::unique_ptr<Session> s(new Session());
  s->options_ = options;
  Time begin = s->clock_.now();
  Result<std::unique_ptr<Checkpoint>> checkpoint =
      open_model(options.model, random_format(options), options.random_seed);
  if (!checkpoint) return checkpoint.error();
  s->checkpoint_ = std::move(*checkpoint);

  Result<ModelShape> shape = read_shape(*s->checkpoint_);
  if (!shape) return shape.error();
  Result<SamplingDefaults> sampling =
      sluice::sampling_defaults(s->checkpoint_->meta(), options.generation_config);
  if (!sampling) return sampling.error();
  s->sampling_ = std::move(*sampling);
  try {
    if (auto ok = s->open_backend(*shape); !ok) return ok.error();
    DeviceMemory memory = s->device_memory();
    Result<Ledger> ledger =
        plan_memory(*s->checkpoint_, *shape, s->options_, s->device_ ? &memory : nullptr);
    if (!ledger) return ledger.error();
    s->ledger_ = *ledger;
    if (auto ok = s->start(std::move(progress), simulated); !ok) return ok.error();
  } catch (const std::bad_alloc&) {
    return Error{500, "out of memory while loading: lower --ctx, --kv-memory or --budget"};
  } catch (const std::exception& e) {  // a device's: it lacks something, or is lost
    return Error{500, e.what()};
  }
  s->load_seconds_ = seconds(s->clock_.now() - begin);
  return s;
}

Session::~Session() {
  engine_.reset();
  if (split_) split_->executor.reset();
  executor_.reset();
  static_cast<void>(write_trace());
}

Result<void> Session::open_backend(const ModelShape& shape) {
  const bool chooses = options_.device.kind == DeviceChoice::Kind::any;
  if (auto ok = choose_device(options_, shape); !ok) return ok.error();
  if (chooses && options_.device.is_cpu()) why_no_gpu_ = sluice::why_no_gpu(find_gpu());
  if (options_.device.is_cpu()) {
    if (auto ok = open_cpu(backend_); !ok) return ok.error();
  } else if (!options_.device.is_gpu()) {
    backend_ = make_ref_backend();
  } else {
    resolve_deterministic(options_, shape, *checkpoint_);
    const Result<CudaOptions> cuda = cuda_options(options_, *checkpoint_);
    if (!cuda) return cuda.error();
    Result<std::unique_ptr<Device>> device = open_cuda(*cuda);
    if (!device) return device.error();
    device_ = device->get();
    backend_ = std::move(*device);
    options_.scheduler.sampling = kDeviceSampling;
  }
  return {};
}

Result<void> Session::open_cpu(std::unique_ptr<Backend>& backend) {
  Result<LoadQuant> quant = weight_quant(options_, *checkpoint_);
  if (!quant) return quant.error();
  backend = make_cpu_backend({.threads = options_.threads.value_or(0),
                              .pin = options_.pin,
                              .quant = std::move(*quant),
                              .attention = options_.attention});
  return {};
}

// With a limit, the context is in it, as in the ledger.
DeviceMemory Session::device_memory() const {
  if (!device_) return {};
  const size_t free = device_->free_memory();
  return {std::min<size_t>(free, options_.gpu_memory.value_or(free)), backend_->activation_type()};
}

// With the weights in place the pool gets what is left, less what the executor will allocate.
Result<void> Session::size_pool() {
  const SchedulerConfig& c = options_.scheduler;
  Scheduler scheduler(c, nullptr);
  int rows = DeviceExecutor::bucket_of(c.max_seqs);
  device_->tune(std::max(scheduler.max_step_tokens(), rows), rows);
  DeviceMemory memory{device_->free_memory(), backend_->activation_type()};
  memory.weights = model_->weight_bytes();
  memory.available += memory.weights + device_->scratch_bytes();  // tune() made the scratch
  if (split_ && split_->stream) memory.available += split_->stream->loaded_bytes();
  memory.available = std::min<size_t>(memory.available, options_.gpu_memory.value_or(SIZE_MAX));
  memory.host_available = ledger_.host.available;
  memory.workspace =
      DeviceExecutor::workspace_bytes(*device_, *model_, executor_config(scheduler)) +
      device_->scratch_bytes();
  if (split_ && split_->stream)
    memory.workspace += LayerStream::device_bytes(
        split_->stream->model(), split_->stream_sizes(executor_config(scheduler), model_->shape()),
        DeviceExecutor::activation_bytes(*model_, executor_config(scheduler)));
  int ctx = c.max_len;  // what the model was loaded for
  Result<Ledger> ledger = plan_memory(*checkpoint_, model_->shape(), options_, &memory);
  if (!ledger) return ledger.error();
  ledger_ = *ledger;
  options_.scheduler.max_len = ledger_.ctx = std::min(ctx, ledger_.ctx);
  return {};
}

ExecutorConfig Session::executor_config(const Scheduler& scheduler) const {
  DeviceMemory memory{0, backend_->activation_type()};
  const ModelShape& shape = model_->shape();
  ExecutorConfig e = sluice::executor_config(
      scheduler, shape, kv_type_of(options_, shape.head_dim, device_ ? &memory : nullptr).value());
  e.groups = part_of(e.groups, {host_layers(), shape.num_layers});
  return e;
}

// The executor of all layers; on two devices that of the GPU's, and split_ with the CPU's before
// it.
Executor& Session::open_executor(ExecutorConfig e) {
  if (!device_) {
    Backend& backend = traced_ ? *traced_ : *backend_;
    executor_ = std::make_unique<ModelExecutor>(backend, *model_, e, clock_, disk_.get());
    ledger_.workspace = ModelExecutor::workspace_bytes(*model_, e);
    return *executor_;
  }
  if (host_layers() > 0) {
    split_->states = device_->pinned(states_bytes(model_->shape(), e.max_step_tokens));
    e.states = static_cast<const float*>(split_->states.data());
  }
  executor_ =
      std::make_unique<DeviceExecutor>(*device_, *model_, e, clock_, options_.capture, disk_.get());
  if (host_layers() == 0) return *executor_;
  ExecutorConfig host = e;
  host.kv_type = host_kv_type(e.kv_type);
  host.groups = part_of(cache_groups(model_->shape()), {0, host_layers()});
  if (split_->stream)
    split_->stream->reserve(split_->stream_sizes(e, model_->shape()), model_->scratch());
  if (trace_) host.trace = trace_->track("layers on the CPU");
  split_->executor = std::make_unique<SplitExecutor>(*split_->backend, *split_->model, host, clock_,
                                                     static_cast<float*>(split_->states.data()),
                                                     *executor_, split_->stream.get());
  return *split_->executor;
}

const Backend* Session::host_backend() const { return split_ ? split_->backend.get() : nullptr; }

size_t Session::weight_bytes() const {
  return model_->weight_bytes() + (split_ ? split_->model->weight_bytes() : 0);
}

size_t Session::step_bytes() const {
  return model_->step_bytes() + (split_ ? split_->model->step_bytes() : 0);
}

// Whether a preempted sequence is moved or computed again depends on how fast blocks move here.
void Session::measure_swap() {
  SwapRates rates = device_ ? kGpuSwapRates : cpu_swap_rates(num_threads(options_));
  rates.copy = device_ ? measure_copies(*device_) : measure_copies(*backend_, clock_);
  SchedulerConfig& c = options_.scheduler;
  c.swap_cost = swap_cost(model_->shape(), c.tiers.block_bytes, model_->step_bytes(), rates);
  copy_rates_ = rates.copy;
}

// What an earlier run left on disk. A disk that cannot be used is done without.
std::vector<StoredBlock> Session::open_disk() {
  SchedulerConfig& c = options_.scheduler;
  if (c.tiers.disk == 0) return {};
  const DeviceMemory memory{0, backend_->activation_type()};
  const KvType kv =
      kv_type_of(options_, model_->shape().head_dim, device_ ? &memory : nullptr).value();
  const std::string gpu = device_ ? device_->describe() : "";
  Result<BlockFile> file = BlockFile::open({.dir = disk_dir(options_),
                                            .content = disk_content(options_, kv, gpu),
                                            .num_places = c.tiers.disk,
                                            .block_size = c.block_size,
                                            .block_bytes = c.tiers.block_bytes});
  if (!file) {
    LOG(warn, "the disk tier is off, serving goes on without it: %s", file.error().message.c_str());
    c.tiers.disk = 0;
    return {};
  }
  std::vector<StoredBlock> stored = file->list();
  tenant_key_ = file->tenant_key();
  Buffer staging;
  if (device_) staging = device_->pinned(DiskTier::staging_bytes(c.tiers.block_bytes));
  disk_ = std::make_unique<DiskTier>(std::move(*file), std::move(staging));
  return stored;
}

Result<void> Session::open_recorder() {
  if (options_.record_dir.empty()) return {};
  if (options_.exporter)
    return Error{400, "--record does not go with --role: blocks from elsewhere are not recorded"};
  if (!options_.record_text && options_.scheduler.tiers.disk > 0)
    return Error{400,
                 "--record with --prefix-disk needs --record-text: blocks on disk are filed by "
                 "hashes of the text"};
  FlightOptions flight;
  flight.dir = options_.record_dir;
  flight.bytes = options_.record_bytes;
  flight.text = options_.record_text;
  flight.header.vocab = model_->shape().vocab;
  flight.header.model = options_.model;
  const DeviceMemory memory{0, backend_->activation_type()};
  flight.header.model_hash = disk_content(
      options_, kv_type_of(options_, model_->shape().head_dim, device_ ? &memory : nullptr).value(),
      device_ ? device_->describe() : "");
  flight.header.build = options_.record_build;
  flight.header.began = std::chrono::duration_cast<std::chrono::nanoseconds>(
                            std::chrono::system_clock::now().time_since_epoch() - clock_.now())
                            .count();
  Result<std::unique_ptr<FlightRecorder>> recorder = FlightRecorder::open(std::move(flight));
  if (!recorder) return recorder.error();
  recorder_ = std::move(*recorder);
  return {};
}

// The CPU's layers once more, as the GPU reads them.
Result<void> Session::Split::load_stream(Device& device,
                                         Checkpoint& checkpoint,
                                         const EngineOptions& options,
                                         LoadOptions load) {
  Result<size_t> slot =
      stream_slot_bytes(checkpoint, options, device.activation_type(), num_layers);
  if (!slot) return slot.error();
  slot_bytes = *slot;
  load.progress = {};
  LayerStream::Sizes sizes;
  sizes.num_layers = num_layers;
  sizes.slot_bytes = slot_bytes;
  Result<std::unique_ptr<LayerStream>> loaded = LayerStream::load(device, checkpoint, load, sizes);
  if (!loaded) return loaded.error();
  stream = std::move(*loaded);
  return {};
}

// Without memory for it prompts are the CPU's, in steps of its size.
Result<void> Session::load_stream(const LoadOptions& load, const ModelShape& shape) {
  try {
    return split_->load_stream(*device_, *checkpoint_, options_, load);
  } catch (const std::exception& e) {
    LOG(warn, "prompts do not run through the GPU, the CPU computes its layers for them too: %s",
        e.what());
  }
  split_->stream.reset();
  options_.stream_prompts = false;
  resolve_step_sizes(options_, &shape);
  return {};
}

Result<std::unique_ptr<Model>> Session::load_weights(std::function<void(size_t, size_t)> progress) {
  LoadOptions load;
  load.fuse = options_.fuse;
  load.max_len = options_.scheduler.max_len;
  load.progress = progress;
  load.layers.first = host_layers();
  // A GPU's part first: what it has read is given back, and the CPU may keep what it reads.
  size_t last = 0;
  if (progress && host_layers() > 0) {
    load.progress = [&](size_t done, size_t total) {
      last = done;
      progress(done, total);
    };
  }
  Result<std::unique_ptr<Model>> model = load_model(*checkpoint_, *backend_, load);
  if (!model || host_layers() == 0) return model;
  split_ = std::make_unique<Split>();
  split_->num_layers = host_layers();
  if (ledger_.host.streamed > 0) {
    if (auto ok = load_stream(load, (*model)->shape()); !ok) return ok.error();
  }
  if (auto ok = open_cpu(split_->backend); !ok) return ok.error();
  load.layers = {0, host_layers()};
  if (progress) {
    load.progress = [&](size_t done, size_t total) {
      progress(std::min(last + done, total), total);
    };
  }
  Result<std::unique_ptr<Model>> first = load_model(*checkpoint_, *split_->backend, load);
  if (!first) return first.error();
  split_->model = std::move(*first);
  return model;
}

// Of the vocabulary, which is loaded, outputs get plain words.
Result<std::unique_ptr<Model>> Session::load_simulated(const StepCost& cost) {
  const std::unique_ptr<WeightStore> sizes = cpu_weight_sizes({});
  Result<std::unique_ptr<Model>> model =
      load_model(ModelSource::headers_of(*checkpoint_), *sizes, {});
  if (!model) return model.error();
  constexpr size_t kMostWords = 97;  // of no use as a divisor: outputs do not repeat soon
  std::vector<int32_t> words;
  for (Token t = 0; tokenizer_ && t < tokenizer_->size() && words.size() < kMostWords; ++t) {
    const std::string_view text = tokenizer_->bytes(t);
    if (!tokenizer_->is_control(t) && text.size() >= 3 && text[0] == ' ' &&
        std::ranges::all_of(text.substr(1), [](char c) { return c >= 'a' && c <= 'z'; }))
      words.push_back(t);
  }
  if (words.empty()) words.push_back((*model)->shape().vocab / 2);
  return std::unique_ptr<Model>(
      std::make_unique<SimulatedModel>(std::move(*model), cost, std::move(words)));
}

Result<void> Session::start(std::function<void(size_t, size_t)> progress,
                            const StepCost* simulated) {
  // Text needs only the metadata, which loading weights leaves alone: both at once.
  auto text_ready = std::async(std::launch::async, [this] { return load_text(); });
  Result<std::unique_ptr<Model>> model = std::unique_ptr<Model>();
  if (!simulated) model = load_weights(std::move(progress));
  Result<std::shared_ptr<const TokenText>> text = text_ready.get();
  if (!text) return text.error();
  if (simulated) model = load_simulated(*simulated);
  if (!model) return model.error();
  model_ = std::move(*model);
  if (tokenizer_ && tokenizer_->size() > model_->shape().vocab) {
    return Error{400, strf("the vocabulary has %d tokens and the model knows %d",
                           tokenizer_->size(), model_->shape().vocab)};
  }

  if (!options_.trace.empty()) {
    trace_ = std::make_unique<Trace>();
    if (auto ok = trace_->write(options_.trace); !ok) return ok.error();
    engine_track_ = trace_->track("engine");
    device_track_ = trace_->track("device");
  }
  if (device_) {
    if (auto ok = size_pool(); !ok) return ok.error();
  }
  if (options_.scheduler.preempt == Preempt::swap) measure_swap();
  const std::vector<StoredBlock> stored = open_disk();
  if (auto ok = open_recorder(); !ok) return ok.error();
  Scheduler scheduler(options_.scheduler, *text);
  scheduler.recall(stored);
  if (options_.cost) scheduler.expect(*options_.cost);
  ExecutorConfig e = executor_config(scheduler);
  e.timed = options_.record_metrics;
  e.full_sort = options_.full_sort;
  const bool by_layers = e.groups.windows == std::vector<int>{0} && host_layers() == 0;
  if (by_layers && options_.sends.value_or(!device_)) e.sender = options_.exporter;
  if (!by_layers && options_.exporter && options_.sends.value_or(false))
    LOG(warn, "--kv-leave layers: K and V of %s leave by steps",
        host_layers() > 0 ? "layers on two devices" : "sliding-window layers");
  if (trace_) e.trace = trace_->track("parts of a step");
  if (trace_ && !device_)
    traced_ = std::make_unique<TracedBackend>(*backend_, clock_, *trace_->track("ops"));
  if (options_.profile_steps > 0)
    step_log_.emplace(options_.profile_steps, options_.scheduler.max_seqs);
  CHECK(e.groups.windows == options_.scheduler.group_windows);  // headers and model agree
  Executor* executor = &open_executor(e);
  Engine::Options engine;
  engine.pipeline = options_.scheduler.pipeline;
  engine.kv_listener = options_.kv_listener;
  engine.exporter = options_.exporter;
  engine.sends = e.sender != nullptr;
  if (options_.cost) engine.early.emplace(*options_.cost, options_.ttft_limit);
  engine.loop.forced = options_.forced_tokens;
  engine.loop.timed = options_.record_metrics;
  engine.observer = [this](const StepReport& r, const StepPlan& p, const Events& ev,
                           const Scheduler& s) {
    observe(r, p, s);
    if (options_.observer) options_.observer(r, p, ev, s);
  };
  if (recorder_) engine.listener = recorder_->start(scheduler);
  if (recorder_ && options_.record_text) {
    mask_recorder_ = std::make_unique<MaskRecorder>(*executor, *recorder_);
    executor = mask_recorder_.get();
  }
  engine_ = std::make_unique<Engine>(std::move(scheduler), *executor, clock_, std::move(engine));
  return {};
}

// Tokeniser and chat template; what the scheduler knows of text is returned, null without a
// vocabulary.
Result<std::shared_ptr<const TokenText>> Session::load_text() {
  if (!has_vocabulary(*checkpoint_)) return std::shared_ptr<const TokenText>();
  Result<std::unique_ptr<Tokenizer>> tokenizer = load_tokenizer(*checkpoint_);
  if (!tokenizer) return tokenizer.error();
  tokenizer_ = std::move(*tokenizer);
  Result<std::optional<ChatTemplate>> chat = load_chat_template(*checkpoint_);
  if (!chat) return chat.error();
  template_ = std::move(*chat);
  auto text = std::make_shared<TokenText>();
  for (Token t = 0; t < tokenizer_->size(); ++t) {
    text->add(tokenizer_->is_control(t) ? std::string_view() : tokenizer_->bytes(t));
  }
  return std::shared_ptr<const TokenText>(std::move(text));
}

void Session::observe(const StepReport& r, const StepPlan& plan, const Scheduler& scheduler) {
  if (r.launched) {
    record_span(engine_track_, "plan", r.plan_begin, r.plan_end,
                {{"step", static_cast<double>(r.launched_step)},
                 {"tokens", static_cast<double>(r.num_tokens)},
                 {"slices", static_cast<double>(r.num_slices)},
                 {"decodes", static_cast<double>(r.num_decode)}});
  }
  if (r.completed) {
    record_span(device_track_, "step", r.begin, r.end,
                {{"step", static_cast<double>(r.completed_step)}});
    record_span(engine_track_, "complete", r.complete_begin, r.complete_end,
                {{"step", static_cast<double>(r.completed_step)}});
    if (engine_track_) {
      engine_track_->counter("running", r.complete_end, r.stats.num_running);
      engine_track_->counter("waiting", r.complete_end, r.stats.num_waiting);
      engine_track_->counter("free blocks", r.complete_end, r.stats.available_blocks);
    }
  }
  if (step_log_) {
    if (auto line = step_log_->add(r)) LOG(info, "%s", line->c_str());
  }
  if (keep_reports_ && (r.launched || r.completed)) {
    std::lock_guard lock(reports_mutex_);
    reports_.push_back(r);
    reports_.back().kv = scheduler.kv_use();
    if (r.launched) reports_.back().work = step_load(plan);
  }
}

const HostTier& Session::host_tier() const {
  return device_ ? static_cast<const DeviceExecutor&>(*executor_).host_tier()
                 : static_cast<const ModelExecutor&>(*executor_).host_tier();
}

std::string Session::shared_content() const {
  const DeviceMemory memory{0, backend_->activation_type()};
  return sluice::shared_content(
      options_, kv_type_of(options_, model_->shape().head_dim, device_ ? &memory : nullptr).value(),
      device_ ? device_->describe() : "");
}

std::vector<StepReport> Session::take_reports() {
  std::lock_guard lock(reports_mutex_);
  return std::exchange(reports_, {});
}

Result<void> Session::write_trace() {
  if (!trace_ || trace_written_) return {};
  trace_written_ = true;
  return trace_->write(options_.trace);
}

}  // namespace sluice
