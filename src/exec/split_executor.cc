#include "exec/split_executor.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <exception>
#include <new>
#include <utility>

#include "base/check.h"
#include "base/failure.h"
#include "base/log.h"

namespace sluice {

namespace {

constexpr size_t kStatesPiece = size_t{1} << 20;  // of the residual stream, copied by one thread
// Rows that the host computes at once. More take turns, which changes no bits.
constexpr int kHostRows = 512;
constexpr int kLeastStreamed = 16;  // rows of a slice that runs through the device

int host_rows(const ExecutorConfig& c) { return std::min(c.max_step_tokens, kHostRows); }

}  // namespace

size_t SplitExecutor::workspace_bytes(const Model& model, const ExecutorConfig& host) {
  return model.scratch_bytes(host_rows(host), 0) +
         states_bytes(model.shape(), host.max_step_tokens);
}

SplitExecutor::SplitExecutor(Backend& backend,
                             Model& model,
                             ExecutorConfig host,
                             const Clock& clock,
                             float* states,
                             Executor& rest,
                             LayerStream* stream)
    : backend_(backend),
      model_(model),
      config_(std::move(host)),
      clock_(clock),
      states_(states),
      rest_(rest),
      stream_(stream),
      max_rows_(host_rows(config_)),
      cache_(backend,
             model.shape(),
             config_.groups,
             {config_.kv_type, config_.num_blocks, config_.block_size, group_stride(config_)}),
      reader_(config_),
      batch_(config_, cache_) {
  CHECK(config_.pipeline.depth == 0);
  CHECK(config_.num_pages == 0 && config_.num_places == 0 && config_.num_disk == 0);
  model_.reserve(backend_, max_rows_, 0);
  constexpr size_t kReason = 512;  // a failure is named without memory
  failure_.reserve(kReason);
  thread_ = std::thread([this] { host_main(); });
}

SplitExecutor::~SplitExecutor() {
  {
    std::unique_lock lock(mutex_);
    computed_.wait(lock, [&] { return phase_ != Phase::planned && phase_ != Phase::streams; });
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
  bool streams = false;
  {
    std::unique_lock lock(mutex_);
    computed_.wait(lock, [&] { return phase_ == Phase::streams || phase_ == Phase::computed; });
    // A step that is computed already may have failed before it knew what to stream.
    streams = phase_ == Phase::streams || (stream_ && failure_.empty() && !stream_->empty());
  }
  std::string failure;
  if (streams) failure = run_streamed();
  {
    std::unique_lock lock(mutex_);
    computed_.wait(lock, [&] { return phase_ == Phase::computed; });
    phase_ = Phase::idle;
  }
  if (failure_.empty()) failure_ = failure;
  if (!failure_.empty()) {
    drop_streamed();
    result_.clear();
    result_.step = plan_.step;
    result_.failure = failure_;
    if (config_.timed) result_.begin = begin_, result_.end = clock_.now();
    return result_;
  }
  try {
    run_rest();
  } catch (...) {
    drop_streamed();
    throw;
  }
  if (!result_.failure.empty()) drop_streamed();
  return result_;
}

// The layers behind the host's. The result is a copy, for it begins earlier: a few rows and tokens.
void SplitExecutor::run_rest() {
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
}

// Why it failed; empty: it is queued.
std::string SplitExecutor::run_streamed() {
  try {
    stream_->run(states_);
  } catch (const std::exception& e) {
    return e.what();
  }
  return {};
}

// After a failure: nothing of the step is stored, and the device is done with memory that the next
// one writes.
void SplitExecutor::drop_streamed() noexcept {
  stores_ = false;
  if (stream_) stream_->drain();
}

void SplitExecutor::host_main() {
  pthread_setname_np(pthread_self(), "host-layers");
  try {
    backend_.attach();
  } catch (...) {
    log_exception("binding the thread of the CPU's layers to a core");
  }
  bool measured = false;
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      planned_.wait(lock, [&] { return phase_ == Phase::planned || phase_ == Phase::stop; });
      if (phase_ == Phase::stop) return;
    }
    failure_.clear();
    try {
      if (stream_ && !std::exchange(measured, true)) choose_threshold();
      compute();
    } catch (const std::bad_alloc&) {
      failure_ = "out of memory";
    } catch (const std::exception& e) {
      failure_ = e.what();
    }
    set_phase(Phase::computed);
  }
}

void SplitExecutor::set_phase(Phase phase) {
  {
    std::lock_guard lock(mutex_);
    phase_ = phase;
  }
  computed_.notify_one();
}

// The step's table edits, copies and layers on the host.
void SplitExecutor::compute() {
  if (config_.timed || config_.trace) begin_ = clock_.now();
  if (std::exchange(stores_, false)) stream_->store(cache_, backend_);
  if (stream_) stream_->begin();
  reader_.read(plan_, work_);
  batch_.edit_tables(plan_, reader_);
  for (const Transfer& t : plan_.transfers) work_.copies.push_back({t.from, t.to});
  if (!work_.copies.empty()) backend_.copy_blocks(cache_.planes(), work_.copies);
  if (plan_.slices.empty()) return;
  streamed_.assign(plan_.slices.size(), false);
  if (stream_ && choose_streamed()) {
    embed_streamed();
    stream_->fetch(cache_, backend_);
    stores_ = true;
    num_streamed_rows_ += static_cast<uint64_t>(stream_->num_rows());
    set_phase(Phase::streams);
  }
  compute_rows();
  if (config_.trace)
    config_.trace->span("layers on the CPU", begin_, clock_.now(),
                        {{"step", static_cast<double>(plan_.step)},
                         {"streamed", static_cast<double>(stream_ ? stream_->num_rows() : 0)}});
}

// A device that fails here is used no more for prompts.
void SplitExecutor::choose_threshold() {
  if (const int asked = asked_streams_from_.load(); asked > 0) return streams_from_.store(asked);
  try {
    measure();
  } catch (...) {
    log_exception("measuring how fast prompts run through the GPU: they do not");
  }
}

// From how many rows on a pass of all weights to the device takes less time than the host would.
// The rows go to the null block.
void SplitExecutor::measure() {
  const double pass = stream_->measure();
  const int rows = std::min({64, max_rows_, config_.max_len});
  StepPlan plan;
  plan.tokens.assign(static_cast<size_t>(rows), 0);
  Slice slice;
  slice.count = rows;
  plan.slices.push_back(slice);
  const SliceView view{0, rows, 0, 0};
  double best = 0;
  for (int round = 0; round < 2; ++round) {
    const BatchView batch = batch_.build(plan, {&view, 1});
    const auto begin = std::chrono::steady_clock::now();
    model_.forward(backend_, batch, cache_.layers());
    const std::chrono::duration<double> t = std::chrono::steady_clock::now() - begin;
    best = round == 0 ? t.count() : std::min(best, t.count());
  }
  streams_from_.store(std::max(kLeastStreamed, static_cast<int>(pass / best * rows) + 1));
  LOG(info,
      "prompts of %d tokens and more in a step run through the GPU: all weights of the CPU's "
      "layers are there in %.0f ms, the CPU takes %.0f ms for %d tokens",
      streams_from_.load(), pass * 1e3, best * 1e3, rows);
}

bool SplitExecutor::choose_streamed() {
  const int from = streams_from_.load();
  int rows = 0;
  for (const Slice& s : plan_.slices) rows += s.count >= kLeastStreamed ? s.count : 0;
  if (from == 0 || rows < from) return false;
  for (size_t i = 0; i < plan_.slices.size(); ++i) {
    if (plan_.slices[i].count < kLeastStreamed) continue;
    streamed_[i] = stream_->add(work_.slices[i], batch_.tables());
  }
  if (stream_->num_rows() >= from) return true;
  stream_->begin();  // too few have room
  streamed_.assign(streamed_.size(), false);
  return false;
}

void SplitExecutor::embed_streamed() {
  for (size_t i = 0; i < plan_.slices.size(); ++i) {
    if (!streamed_[i]) continue;
    for (int at = 0; at < plan_.slices[i].count; at += max_rows_) {
      const int num = std::min(max_rows_, plan_.slices[i].count - at);
      turn_.clear();
      add_to_turn(plan_.slices[i], work_.slices[i].row, at, num);
      model_.embed(backend_, batch_.build(plan_, turn_.slices, turn_.views, 0));
      copy_states(0, work_.slices[i].row + at, num);
    }
  }
}

// The other slices, in turns.
void SplitExecutor::compute_rows() {
  turn_.clear();
  for (size_t i = 0; i < plan_.slices.size(); ++i) {
    if (streamed_[i]) continue;
    for (int at = 0; at < plan_.slices[i].count;) {
      if (turn_.num_rows == max_rows_) compute_turn();
      const int num = std::min(max_rows_ - turn_.num_rows, plan_.slices[i].count - at);
      if (static_cast<int>(i) < plan_.num_decode) ++turn_.num_decode;
      add_to_turn(plan_.slices[i], work_.slices[i].row, at, num);
      at += num;
    }
  }
  if (turn_.num_rows > 0) compute_turn();
}

void SplitExecutor::add_to_turn(const Slice& slice, int row, int first, int count) {
  Slice part = slice;
  part.token_at += static_cast<uint32_t>(first);
  part.pos += first;
  part.count = count;
  turn_.slices.push_back(part);
  turn_.views.push_back({turn_.num_rows, count, part.pos, static_cast<int32_t>(slice.slot)});
  turn_.state_rows.push_back(row + first);
  turn_.num_rows += count;
}

void SplitExecutor::compute_turn() {
  model_.forward(backend_, batch_.build(plan_, turn_.slices, turn_.views, turn_.num_decode),
                 cache_.layers());
  // Neighbours go together: all of them, where nothing is streamed.
  for (size_t i = 0; i < turn_.slices.size();) {
    const int from = turn_.views[i].row, to = turn_.state_rows[i];
    int num = 0;
    for (; i < turn_.slices.size() && turn_.state_rows[i] == to + num; ++i)
      num += turn_.slices[i].count;
    copy_states(from, to, num);
  }
  turn_.clear();
}

// To memory that the device can copy from, on all threads: a long prompt's is a hundred megabytes.
void SplitExecutor::copy_states(int from, int to, int rows) {
  const auto hidden = static_cast<size_t>(model_.shape().hidden);
  struct Copy {
    float* to;
    const float* from;
    size_t bytes;
  } ctx{states_ + static_cast<size_t>(to) * hidden,
        model_.states().f32() + static_cast<size_t>(from) * hidden,
        states_bytes(model_.shape(), rows)};
  backend_.parallel(
      static_cast<int>((ctx.bytes + kStatesPiece - 1) / kStatesPiece),
      [](void* p, int index) {
        const auto& c = *static_cast<Copy*>(p);
        const size_t at = static_cast<size_t>(index) * kStatesPiece,
                     n = std::min(kStatesPiece, c.bytes - at);
        std::memcpy(reinterpret_cast<std::byte*>(c.to) + at,
                    reinterpret_cast<const std::byte*>(c.from) + at, n);
      },
      &ctx);
}

}  // namespace sluice
