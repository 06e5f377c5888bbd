#include "runtime/session.h"

#include <algorithm>
#include <future>
#include <new>

#include "backend/cpu/cpu_backend.h"
#include "backend/ref/ref_backend.h"
#include "base/check.h"
#include "base/str.h"

namespace sluice {

Result<std::unique_ptr<Session>> Session::open(const EngineOptions& options,
                                               std::function<void(size_t, size_t)> progress) {
  std::unique_ptr<Session> s(new Session());
  s->options_ = options;
  Time begin = s->clock_.now();
  Result<std::unique_ptr<Checkpoint>> checkpoint =
      open_model(options.model, options.format, options.random_seed);
  if (!checkpoint) return checkpoint.error();
  s->checkpoint_ = std::move(*checkpoint);

  Result<ModelShape> shape = read_shape(*s->checkpoint_);
  if (!shape) return shape.error();
  Result<Ledger> ledger = plan_memory(*s->checkpoint_, *shape, s->options_);
  if (!ledger) return ledger.error();
  s->ledger_ = *ledger;
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
  load.max_len = options_.scheduler.max_len;
  load.progress = std::move(progress);
  // Text needs only the metadata, which loading weights leaves alone: both at once.
  auto text_ready = std::async(std::launch::async, [this] { return load_text(); });
  Result<std::unique_ptr<Model>> model = load_model(*checkpoint_, *backend_, load);
  Result<std::shared_ptr<const TokenText>> text = text_ready.get();
  if (!text) return text.error();
  if (!model) return model.error();
  model_ = std::move(*model);
  if (tokenizer_ && tokenizer_->size() > model_->shape().vocab) {
    return Error{400, strf("the vocabulary has %d tokens and the model knows %d",
                           tokenizer_->size(), model_->shape().vocab)};
  }

  if (!options_.trace.empty()) {
    trace_ = std::make_unique<Trace>();
    if (auto ok = trace_->write(options_.trace); !ok) return Error{400, ok.error().message};
    engine_track_ = trace_->track("engine");
    device_track_ = trace_->track("device");
  }
  Scheduler scheduler(options_.scheduler, *text);
  ExecutorConfig e;
  e.num_blocks = options_.scheduler.num_blocks;
  e.block_size = options_.scheduler.block_size;
  e.max_seqs = scheduler.config().max_seqs;
  e.max_len = options_.scheduler.max_len;
  e.max_step_tokens = scheduler.max_step_tokens();
  e.max_outputs = output_rows(e.max_seqs);
  e.kv_type = options_.kv_type == "f32" ? DType::f32 : DType::f16;
  e.groups = cache_groups(model_->shape());
  CHECK(e.groups.windows == options_.scheduler.group_windows);  // headers and model agree
  executor_ = std::make_unique<ModelExecutor>(*backend_, *model_, e, clock_);
  ledger_.workspace = ModelExecutor::workspace_bytes(*model_, e);
  Engine::Options engine;
  engine.pipeline = options_.pipeline;
  engine.observer = [this](const StepReport& r, const StepPlan& p, const Events& ev,
                           const Scheduler& s) {
    observe(r);
    if (options_.observer) options_.observer(r, p, ev, s);
  };
  engine_ = std::make_unique<Engine>(std::move(scheduler), *executor_, clock_, std::move(engine));
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

void Session::observe(const StepReport& r) {
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
  if (!trace_ || trace_written_) return {};
  trace_written_ = true;
  return trace_->write(options_.trace);
}

}  // namespace sluice
