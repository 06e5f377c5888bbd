#include "runtime/session.h"

#include <algorithm>
#include <fstream>
#include <new>

#include "backend/cpu/cpu_backend.h"
#include "backend/ref/ref_backend.h"
#include "base/str.h"

namespace sluice {

size_t available_memory() {
  size_t available = SIZE_MAX;
  std::ifstream meminfo("/proc/meminfo");
  for (std::string line; std::getline(meminfo, line);) {
    unsigned long long kb = 0;
    if (std::sscanf(line.c_str(), "MemAvailable: %llu kB", &kb) == 1) available = kb * 1024;
  }
  // Control group v2: what is left under the limit, the page cache not counted.
  std::ifstream max_file("/sys/fs/cgroup/memory.max"), now_file("/sys/fs/cgroup/memory.current");
  unsigned long long max = 0, now = 0;
  if (max_file >> max && now_file >> now && max > now) {
    available = std::min<size_t>(available, max - now);
  }
  return available;
}

Result<std::unique_ptr<Session>> Session::open(const EngineOptions& options,
                                               std::function<void(size_t, size_t)> progress) {
  std::unique_ptr<Session> s(new Session());
  s->options_ = options;
  Time begin = s->clock_.now();
  Result<std::unique_ptr<Checkpoint>> checkpoint =
      open_model(options.model, options.format, options.random_seed);
  if (!checkpoint) return checkpoint.error();
  s->checkpoint_ = std::move(*checkpoint);

  if (has_vocabulary(*s->checkpoint_)) {
    Result<std::unique_ptr<Tokenizer>> tokenizer = load_tokenizer(*s->checkpoint_);
    if (!tokenizer) return tokenizer.error();
    s->tokenizer_ = std::move(*tokenizer);
    Result<std::optional<ChatTemplate>> chat = load_chat_template(*s->checkpoint_);
    if (!chat) return chat.error();
    s->template_ = std::move(*chat);
  }
  Result<ModelShape> shape = read_shape(*s->checkpoint_);
  if (!shape) return shape.error();
  size_t weights = 0;
  for (const TensorInfo& t : s->checkpoint_->tensors()) weights += t.bytes;
  if (auto ok = s->plan_memory(*shape, weights); !ok) return ok.error();
  try {
    if (auto ok = s->start(std::move(progress)); !ok) return ok.error();
  } catch (const std::bad_alloc&) {
    return Error{507, "out of memory while loading: lower --ctx, --kv-memory or --budget"};
  }
  s->load_seconds_ = seconds(s->clock_.now() - begin);
  return s;
}

Session::~Session() {
  engine_.reset();
  executor_.reset();
  static_cast<void>(write_trace());
}

// Fixes context and pool from what is free, or says why it cannot.
Result<void> Session::plan_memory(const ModelShape& shape, size_t weights) {
  SchedulerConfig& c = options_.scheduler;
  DType kv = options_.kv_type == "f32" ? DType::f32 : DType::f16;
  if (options_.kv_type != "f16" && options_.kv_type != "f32") {
    return Error{400, strf("--kv %s: use f16 or f32", quote(options_.kv_type).c_str())};
  }
  int bs = c.block_size;
  if (bs < 8 || bs > 128 || (bs & (bs - 1)) != 0) {
    return Error{400, strf("--block-size %d: use a power of two from 8 to 128", bs)};
  }
  if (options_.ctx > shape.max_len) {
    return Error{
        400, strf("--ctx %d: the model was trained for %d positions", options_.ctx, shape.max_len)};
  }
  if (c.budget < 1 || c.max_seqs < 1)
    return Error{400, "--budget and --max-seqs must be at least 1"};
  c.max_seqs = std::min(c.max_seqs, c.budget);

  ledger_.weights = weights;
  ledger_.kv_per_token = shape.kv_bytes_per_token(kv);
  size_t block = KvCache::bytes_per_block(shape, kv, bs);
  int ctx = options_.ctx > 0 ? options_.ctx : shape.max_len;
  // Activations and logits: an upper bound before the model exists, exact after.
  size_t step =
      static_cast<size_t>(c.prefill == Prefill::whole ? std::max(c.budget, ctx) : c.budget);
  size_t row = (static_cast<size_t>(shape.hidden) * 5 +
                static_cast<size_t>(shape.num_heads) * static_cast<size_t>(shape.head_dim) * 4) *
               4;
  for (const TensorInfo& t : checkpoint_->tensors()) {
    if (t.name == "blk.0.ffn_gate.weight") row += static_cast<size_t>(t.rows) * 14;
  }
  ledger_.workspace = step * row + 64 * static_cast<size_t>(shape.vocab) * 4;
  ledger_.available = available_memory();
  size_t fixed = weights + ledger_.workspace;
  size_t room = ledger_.available > fixed ? ledger_.available - fixed : 0;

  size_t wanted = static_cast<size_t>(c.max_seqs) * static_cast<size_t>((ctx + bs - 1) / bs);
  size_t blocks =
      options_.kv_bytes > 0 ? options_.kv_bytes / block : std::min(wanted, room / 2 / block);
  blocks = std::min<size_t>(blocks, INT32_MAX / 2);
  size_t need = fixed + blocks * block;
  if (need > ledger_.available || blocks < 2) {
    return Error{
        507, strf("not enough memory: weights %s + workspace %s + KV cache %s, and %s is free; %s",
                  human_bytes(weights).c_str(), human_bytes(ledger_.workspace).c_str(),
                  human_bytes(std::max<size_t>(blocks, 2) * block).c_str(),
                  human_bytes(ledger_.available).c_str(),
                  options_.kv_bytes > 0 ? "change --kv-memory" : "use a smaller model or format")};
  }
  int fits = static_cast<int>(std::min<size_t>(blocks * static_cast<size_t>(bs), INT32_MAX));
  if (fits < ctx) {
    if (options_.ctx > 0) {
      return Error{
          507,
          strf("--ctx %d needs %s of KV cache and %s is set aside for it (%s free): lower --ctx%s",
               ctx, human_bytes(static_cast<size_t>(ctx) * ledger_.kv_per_token).c_str(),
               human_bytes(blocks * block).c_str(), human_bytes(ledger_.available).c_str(),
               options_.kv_bytes > 0 ? " or raise --kv-memory" : "")};
    }
    ctx = fits;
  }
  c.num_blocks = static_cast<int>(blocks);
  c.max_len = ctx;
  ledger_.kv = blocks * block;
  ledger_.ctx = ctx;
  ledger_.num_blocks = c.num_blocks;
  ledger_.full_sequences = static_cast<int>(blocks / static_cast<size_t>((ctx + bs - 1) / bs));
  return {};
}

Result<void> Session::start(std::function<void(size_t, size_t)> progress) {
  if (options_.backend == "cpu") {
    backend_ = make_cpu_backend({.threads = options_.threads, .pin = options_.pin});
  } else if (options_.backend == "ref") {
    backend_ = make_ref_backend();
  } else {
    return Error{400, strf("--device %s: use cpu or ref", quote(options_.backend).c_str())};
  }
  LoadOptions load;
  load.fuse = options_.fuse;
  load.progress = std::move(progress);
  Result<std::unique_ptr<Model>> model = load_model(*checkpoint_, *backend_, load);
  if (!model) return model.error();
  model_ = std::move(*model);

  if (!options_.trace.empty()) {
    trace_ = std::make_unique<Trace>();
    engine_track_ = trace_->track("engine");
    device_track_ = trace_->track("device");
  }
  std::shared_ptr<TokenText> text;
  if (tokenizer_) {
    text = std::make_shared<TokenText>();
    for (Token t = 0; t < tokenizer_->size(); ++t) {
      text->add(tokenizer_->is_control(t) ? std::string_view() : tokenizer_->bytes(t));
    }
  }
  Scheduler scheduler(options_.scheduler, text);
  ExecutorConfig e;
  e.num_blocks = options_.scheduler.num_blocks;
  e.block_size = options_.scheduler.block_size;
  e.max_seqs = scheduler.config().max_seqs;
  e.max_len = options_.scheduler.max_len;
  e.max_step_tokens = scheduler.max_step_tokens();
  e.kv_type = options_.kv_type == "f32" ? DType::f32 : DType::f16;
  executor_ = std::make_unique<ModelExecutor>(*backend_, *model_, e, clock_);
  ledger_.workspace = ModelExecutor::workspace_bytes(*model_, e);
  Engine::Options engine;
  engine.pipeline = options_.pipeline;
  engine.observer = [this](const StepReport& r, const StepPlan& p, const Events&) {
    observe(r, p);
  };
  engine_ = std::make_unique<Engine>(std::move(scheduler), *executor_, clock_, std::move(engine));
  return {};
}

void Session::observe(const StepReport& r, const StepPlan&) {
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
  if (keep_reports_ && (r.launched || r.completed)) {
    std::lock_guard lock(reports_mutex_);
    reports_.push_back(r);
  }
}

std::vector<StepReport> Session::take_reports() {
  std::lock_guard lock(reports_mutex_);
  return std::exchange(reports_, {});
}

Result<void> Session::write_trace() {
  if (!trace_) return {};
  std::unique_ptr<Trace> trace = std::move(trace_);
  return trace->write(options_.trace);
}

}  // namespace sluice
