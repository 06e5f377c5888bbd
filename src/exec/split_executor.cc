#include "exec/split_executor.h"

#include <pthread.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <new>

#include "base/check.h"
#include "base/failure.h"

namespace sluice {

namespace {

constexpr size_t kPiece = size_t{1} << 20;  // of the residual stream, copied by one thread

}  // namespace

size_t SplitExecutor::workspace_bytes(const Model& model, const ExecutorConfig& host) {
  return model.scratch_bytes(host.max_step_tokens, 0) +
         states_bytes(model.shape(), host.max_step_tokens);
}

SplitExecutor::SplitExecutor(Backend& backend,
                             Model& model,
                             ExecutorConfig host,
                             const Clock& clock,
                             float* states,
                             Executor& rest)
    : backend_(backend),
      model_(model),
      config_(std::move(host)),
      clock_(clock),
      states_(states),
      rest_(rest),
      cache_(backend,
             model.shape(),
             config_.groups,
             {config_.kv_type, config_.num_blocks, config_.block_size, group_stride(config_)}),
      reader_(config_),
      batch_(config_, cache_) {
  CHECK(config_.pipeline.depth == 0);
  CHECK(config_.num_pages == 0 && config_.num_places == 0 && config_.num_disk == 0);
  model_.reserve(backend_, config_.max_step_tokens, 0);
  constexpr size_t kReason = 512;  // a failure is named without memory
  failure_.reserve(kReason);
  thread_ = std::thread([this] { host_main(); });
}

SplitExecutor::~SplitExecutor() {
  {
    std::unique_lock lock(mutex_);
    computed_.wait(lock, [&] { return phase_ != Phase::planned; });
    phase_ = Phase::stop;
  }
  planned_.notify_one();
  thread_.join();
}

void SplitExecutor::launch(const StepPlan& plan) {
  plan_ = plan;  // vectors keep their memory
  {
    std::lock_guard lock(mutex_);
    CHECK(phase_ == Phase::idle);
    phase_ = Phase::planned;
    step_ = plan.step;
    rest_launched_ = false;
    early_.reset();
  }
  planned_.notify_one();
}

void SplitExecutor::masks(StepMasks masks) {
  {
    std::lock_guard lock(mutex_);
    if (masks.step != step_) return;
    if (!rest_launched_) {
      if (!early_) early_ = std::move(masks);
      return;
    }
  }
  rest_.masks(std::move(masks));
}

const StepResult& SplitExecutor::wait() {
  {
    std::unique_lock lock(mutex_);
    computed_.wait(lock, [&] { return phase_ == Phase::computed; });
    phase_ = Phase::idle;
  }
  if (!failure_.empty()) {
    result_.clear();
    result_.step = plan_.step;
    result_.failure = failure_;
    if (config_.timed) result_.begin = begin_, result_.end = clock_.now();
    return result_;
  }
  rest_.launch(plan_);
  std::optional<StepMasks> early;
  {
    std::lock_guard lock(mutex_);
    rest_launched_ = true;
    early.swap(early_);
  }
  if (early) rest_.masks(std::move(*early));
  result_ = rest_.wait();
  if (config_.timed) result_.begin = begin_;
  return result_;
}

void SplitExecutor::host_main() {
  pthread_setname_np(pthread_self(), "host-layers");
  try {
    backend_.attach();
  } catch (...) {
    log_exception("binding the thread of the CPU's layers to a core");
  }
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      planned_.wait(lock, [&] { return phase_ == Phase::planned || phase_ == Phase::stop; });
      if (phase_ == Phase::stop) return;
    }
    failure_.clear();
    try {
      compute();
    } catch (const std::bad_alloc&) {
      failure_ = "out of memory";
    } catch (const std::exception& e) {
      failure_ = e.what();
    }
    {
      std::lock_guard lock(mutex_);
      phase_ = Phase::computed;
    }
    computed_.notify_one();
  }
}

// The step's table edits, copies and layers on the host.
void SplitExecutor::compute() {
  if (config_.timed) begin_ = clock_.now();
  reader_.read(plan_, work_);
  batch_.edit_tables(plan_, reader_);
  for (const Transfer& t : plan_.transfers) work_.copies.push_back({t.from, t.to});
  if (!work_.copies.empty()) backend_.copy_blocks(cache_.planes(), work_.copies);
  if (plan_.slices.empty()) return;
  const BatchView batch = batch_.build(plan_, work_.slices);
  model_.forward(backend_, batch, cache_.layers());
  copy_states(batch.num_tokens);
  if (config_.trace)
    config_.trace->span("layers on the CPU", begin_, clock_.now(),
                        {{"step", static_cast<double>(plan_.step)}});
}

// To memory that the device can copy from, on all threads: a long prompt's is a hundred megabytes.
void SplitExecutor::copy_states(int rows) {
  struct Copy {
    float* to;
    const float* from;
    size_t bytes;
  } ctx{states_, model_.states().f32(), states_bytes(model_.shape(), rows)};
  backend_.parallel(
      static_cast<int>((ctx.bytes + kPiece - 1) / kPiece),
      [](void* p, int index) {
        const auto& c = *static_cast<Copy*>(p);
        const size_t at = static_cast<size_t>(index) * kPiece, n = std::min(kPiece, c.bytes - at);
        std::memcpy(reinterpret_cast<std::byte*>(c.to) + at,
                    reinterpret_cast<const std::byte*>(c.from) + at, n);
      },
      &ctx);
}

}  // namespace sluice
