#include "exec/model_executor.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <exception>
#include <new>
#include <stdexcept>

#include "base/check.h"
#include "base/failure.h"

namespace sluice {

namespace {

// Also without memory for a long text.
void set_failure(StepResult& r, const char* reason) noexcept {
  try {
    r.failure = reason;
  } catch (...) {
  }
  if (r.failure.empty()) r.failure = "failed";
}

// Rows of logits held at once; more are done in turns. A step has no more than it has tokens.
int logits_per_turn(const ExecutorConfig& c) {
  return std::min(c.logits_rows, std::max(c.max_step_tokens, 1));
}

}  // namespace

size_t ModelExecutor::workspace_bytes(const Model& model, const ExecutorConfig& config) {
  const int outputs = logits_per_turn(config);
  return model.scratch_bytes(config.max_step_tokens, outputs) +
         static_cast<size_t>(outputs) * output_row_bytes(model.shape());
}

ModelExecutor::ModelExecutor(
    Backend& backend, Model& model, ExecutorConfig config, const Clock& clock, DiskTier* disk)
    : backend_(backend),
      model_(model),
      config_(with_groups(std::move(config), model.shape())),
      clock_(clock),
      cache_(backend,
             model.shape(),
             config_.groups,
             {config_.kv_type, config_.num_blocks, config_.block_size, group_stride(config_),
              config_.num_pages, config_.max_seqs}),
      logits_per_turn_(logits_per_turn(config_)),
      disk_(disk),
      rows_(static_cast<size_t>(config_.max_seqs)),
      batch_(config_, cache_),
      reader_(config_),
      pooler_(rows_.size()) {
  CHECK(config_.num_disk == (disk_ ? disk_->num_places() : 0));
  if (config_.num_places > 0) {
    size_t bytes = block_bytes(cache_.planes());
    tier_ = HostTier(backend_.allocate(static_cast<size_t>(config_.num_places) * bytes),
                     config_.num_places, bytes);
  }
  auto outputs = static_cast<size_t>(logits_per_turn_);
  auto tokens = static_cast<size_t>(config_.max_step_tokens);
  model_.reserve(backend_, config_.max_step_tokens, logits_per_turn_);
  logits_ = backend_.allocate(outputs * output_row_bytes(model_.shape()));
  out_rows_.reserve(tokens);
  work_.slices.reserve(rows_.size());
  work_.outputs.reserve(tokens);
  sampled_.reserve(tokens);
  tops_.resize(outputs);
  best_.resize(outputs);
  scratch_.resize(outputs);
  for (SampleScratch& s : scratch_) s.full_sort = config_.full_sort;
  // Those in flight, and the one whose result the engine reads.
  auto jobs = static_cast<size_t>(config_.pipeline.max_in_flight()) + 1;
  for (auto* list : {&idle_, &queue_, &done_}) list->reserve(jobs);
  arrived_.reserve(jobs);
  for (size_t i = 0; i < jobs; ++i) idle_.push_back(std::make_unique<Job>());
  thread_ = std::thread([this] { device_main(); });
}

ModelExecutor::~ModelExecutor() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  launched_.notify_one();
  masks_came_.notify_one();
  thread_.join();
}

void ModelExecutor::launch(const StepPlan& plan) {
  std::unique_ptr<Job> job;
  {
    std::lock_guard lock(mutex_);
    CHECK(!idle_.empty());
    job = std::move(idle_.front());  // in turn, so that all have grown after a few steps
    idle_.erase(idle_.begin());
  }
  try {
    job->plan = plan;  // vectors keep their memory: no allocation once grown
  } catch (...) {
    std::lock_guard lock(mutex_);
    idle_.push_back(std::move(job));
    throw;
  }
  job->failures_seen = failures_seen_;
  {
    std::lock_guard lock(mutex_);
    queue_.push_back(std::move(job));
  }
  launched_.notify_one();
}

void ModelExecutor::masks(StepMasks masks) {
  {
    std::lock_guard lock(mutex_);
    if (masks.step < next_step_) return;
    for (const StepMasks& m : arrived_) {
      if (m.step == masks.step) return;
    }
    arrived_.push_back(std::move(masks));
  }
  masks_came_.notify_one();
}

// Waits for the masks of the step at hand, once per step.
void ModelExecutor::take_masks(uint64_t step) {
  if (has_masks_) return;
  std::unique_lock lock(mutex_);
  auto at = arrived_.end();
  masks_came_.wait(lock, [&] {
    at = std::ranges::find(arrived_, step, &StepMasks::step);
    return at != arrived_.end() || stop_;
  });
  if (at == arrived_.end()) throw std::runtime_error("the executor stops");
  masks_ = std::move(*at);
  arrived_.erase(at);
  has_masks_ = true;
}

const StepResult& ModelExecutor::wait() {
  std::unique_lock lock(mutex_);
  if (returned_) idle_.push_back(std::move(returned_));
  finished_.wait(lock, [&] { return !done_.empty(); });
  returned_ = std::move(done_.front());
  done_.erase(done_.begin());
  if (!returned_->result.failure.empty()) failures_seen_ = returned_->num_failures;
  return returned_->result;
}

void ModelExecutor::device_main() {
  pthread_setname_np(pthread_self(), "device");
  try {
    backend_.attach();
  } catch (...) {
    log_exception("binding the device thread to a core");
  }
  for (;;) {
    std::unique_ptr<Job> job;
    {
      std::unique_lock lock(mutex_);
      launched_.wait(lock, [&] { return stop_ || !queue_.empty(); });
      if (queue_.empty()) return;
      job = std::move(queue_.front());
      queue_.erase(queue_.begin());
    }
    run(*job);
    has_masks_ = false;
    {
      std::lock_guard lock(mutex_);
      next_step_ = job->plan.step + 1;
      std::erase_if(arrived_, [&](const StepMasks& m) { return m.step < next_step_; });
      done_.push_back(std::move(job));
    }
    finished_.notify_one();
  }
}

void ModelExecutor::run(Job& job) {
  StepResult& r = job.result;
  r.clear();
  r.step = job.plan.step;
  if (config_.timed) r.begin = r.end = clock_.now();
  Time from = r.begin;
  auto trace = [&](const char* part) {
    if (!config_.trace) return;
    const Time now = clock_.now();
    config_.trace->span(part, from, now, {{"step", static_cast<double>(r.step)}});
    from = now;
  };
  // Rows that a failed step should have opened are missing from those planned before it was known.
  job.num_failures = num_failures_;
  if (num_failures_ > job.failures_seen) return set_failure(r, "a step before it failed");
  try {
    reader_.read(job.plan, work_);
    apply_deltas(job.plan);
    r.rows = work_.rows;
    r.transfers = work_.completed;
    r.lost = work_.lost;
    if (disk_) collect_disk(job.plan, r);
    if (!job.plan.transfers.empty()) trace("copies");
    if (!job.plan.slices.empty()) {
      const BatchView batch = batch_.build(job.plan, work_.slices);
      trace("build");
      forward(batch, job.plan);
      trace("forward");
      compute_outputs(r);
      compute_pooled(r);
      trace("sample");
    }
  } catch (const std::bad_alloc&) {
    set_failure(r, "out of memory");
  } catch (const std::exception& e) {
    set_failure(r, e.what());
  } catch (...) {
    set_failure(r, "unknown exception");
  }
  if (!r.failure.empty()) ++num_failures_;
  job.num_failures = num_failures_;
  if (config_.timed) r.end = clock_.now();
}

void ModelExecutor::apply_deltas(const StepPlan& plan) {
  for (const RowOp& op : plan.rows) {
    if (op.kind != RowOp::open) continue;
    rows_[op.slot].open(plan.sampling[op.sampling],
                        {plan.tokens.data() + op.history_at, op.num_history},
                        op.num_history_prompt);
  }
  batch_.edit_tables(plan, reader_);
  if (!plan.pages.empty()) cache_.set_pages(plan.pages);
  if (!plan.transfers.empty()) move_blocks(plan);
}

// Runs of transfers one after the other, the blocks of a run on all threads.
void ModelExecutor::move_blocks(const StepPlan& plan) {
  for_runs(plan.transfers, [&](Transfer::Kind kind, std::span<const Transfer> run) {
    if (kind == Transfer::send) return;  // as the step writes them
    if (kind == Transfer::copy) {
      work_.copies.clear();
      for (const Transfer& t : run) work_.copies.push_back({t.from, t.to});
      return backend_.copy_blocks(cache_.planes(), work_.copies);
    }
    struct Run {
      ModelExecutor* self;
      std::span<const Transfer> transfers;
    } ctx{this, run};
    backend_.parallel(
        static_cast<int>(run.size()),
        [](void* p, int index) {
          auto& [self, list] = *static_cast<Run*>(p);
          const Transfer& t = list[static_cast<size_t>(index)];
          if (t.key != kNoKey) return;
          if (t.kind == Transfer::out) {
            for_pieces(
                self->cache_.planes(), t.from, self->tier_.at(t.to),
                [](std::byte* block, std::byte* to, size_t n) { std::memcpy(to, block, n); });
          } else {
            for_pieces(
                self->cache_.planes(), t.to, self->tier_.at(t.from),
                [](std::byte* block, std::byte* from, size_t n) { std::memcpy(block, from, n); });
          }
        },
        &ctx);
    for (const Transfer& t : run) {
      if (t.key != kNoKey) move_disk(plan, t);
    }
  });
}

// Hands a block to the disk's thread, or asks for one.
void ModelExecutor::move_disk(const StepPlan& plan, const Transfer& t) {
  const BlockKey& key = plan.keys[static_cast<size_t>(t.key)];
  BlockLabel label{{key.hash, static_cast<int>(key.group), key.tenant},
                   std::span(plan.tokens).subspan(key.token_at, key.num_tokens)};
  if (t.kind == Transfer::in) return disk_->read(t.from - config_.num_places, label, t.id, t.to);
  bool kept = disk_->write(t.to - config_.num_places, label, [&](std::byte* memory) {
    for_pieces(cache_.planes(), t.from, memory,
               [](std::byte* block, std::byte* to, size_t n) { std::memcpy(to, block, n); });
  });
  if (kept) return;
  std::erase(work_.completed, t.id);
  work_.lost.push_back(t.id);
}

// Blocks that the disk's thread has read since the last step.
void ModelExecutor::collect_disk(const StepPlan& plan, StepResult& result) {
  if (plan.awaits) disk_->wait(DiskTier::kWait);
  disk_->collect(plan.oldest, [&](TransferId id, BlockId block, std::byte* memory) {
    (memory ? result.transfers : result.lost).push_back(id);
    if (!memory) return;
    for_pieces(cache_.planes(), block, memory,
               [](std::byte* to, std::byte* from, size_t n) { std::memcpy(to, from, n); });
  });
}

// From the states of the layers before, where another part of the model has computed them.
void ModelExecutor::forward(const BatchView& batch, const StepPlan& plan) {
  if (config_.states)
    std::memcpy(model_.states().data, config_.states,
                states_bytes(model_.shape(), batch.num_tokens));
  sends_.clear();
  for (const Transfer& t : plan.transfers)
    if (t.kind == Transfer::send) sends_.push_back(t);
  model_.watch(sends_.empty() ? nullptr : this);
  sending_step_ = plan.step;
  num_sent_planes_ = 0;
  model_.forward(backend_, batch, cache_.layers());
  if (!sends_.empty()) send_planes(cache_.planes().size());
}

// With one cache group, layers are planes.
void ModelExecutor::wrote(int layer) {
  const size_t end = static_cast<size_t>(layer) + 1;
  if (sends_behind(end, cache_.planes().size())) send_planes(end);
}

// Copies planes up to `end` of the blocks that leave to their places.
void ModelExecutor::send_planes(size_t end) {
  struct Run {
    ModelExecutor* self;
    std::span<const KvLayer> planes;
    size_t at;
  };
  const size_t first = num_sent_planes_, plane_bytes = 2 * cache_.planes()[0].block_bytes();
  Run ctx{this, cache_.planes().subspan(first, end - first), first * plane_bytes};
  backend_.parallel(
      static_cast<int>(sends_.size()),
      [](void* p, int index) {
        const Run& run = *static_cast<Run*>(p);
        const Transfer& t = run.self->sends_[static_cast<size_t>(index)];
        for_pieces(run.planes, t.from, run.self->tier_.at(t.to) + run.at,
                   [](std::byte* block, std::byte* to, size_t n) { std::memcpy(to, block, n); });
      },
      &ctx);
  num_sent_planes_ = end;
  if (end < cache_.planes().size()) config_.sender->written(sending_step_, end * plane_bytes);
}

void ModelExecutor::compute_outputs(StepResult& result) {
  const std::vector<OutputRow>& outputs = work_.outputs;
  auto turn = static_cast<size_t>(logits_per_turn_);
  sampled_.assign(outputs.size(), kNoToken);
  result.tokens.assign(work_.num_samples, kNoToken);
  for (size_t at = 0; at < outputs.size(); at += turn) {
    size_t num = std::min(turn, outputs.size() - at);
    sample_turn(result.step, at, num);
    for (size_t i = 0; i < num; ++i) {
      Sampled& s = result.rows[static_cast<size_t>(work_.result_of[at + i])];
      if (s.num_top == 0) s.top_at = static_cast<uint32_t>(result.top.size());
      result.top.insert(result.top.end(), tops_[i].begin(), tops_[i].end());
      s.num_top += static_cast<uint32_t>(tops_[i].size());
      if (outputs[at + i].actual != kNoToken) continue;
      Token token = result.tokens[s.token_at] = sampled_[at + i];
      if (token == kNoToken) continue;  // nothing that its mask allows: the sequence ends here
      batch_.set_last_token(s.slot, token);
      rows_[s.slot].add(token);
    }
  }
}

// Fills sampled_ and tops_ of outputs [at, at + num). Where nobody wants more than the largest
// logit, it is found while the logits are computed. Masks are waited for when all else is done.
void ModelExecutor::sample_turn(uint64_t step, size_t at, size_t num) {
  auto vocab = static_cast<int64_t>(model_.shape().vocab);
  std::span<const OutputRow> now(work_.outputs.data() + at, num);
  bool plain = true, masked = false;
  out_rows_.clear();
  for (const OutputRow& o : now) {
    out_rows_.push_back(o.row);
    plain &= o.actual == kNoToken && is_plain_greedy(sampling(o));
    masked |= o.mask != kNoMask;
  }
  Tensor logits{logits_.data(), DType::f32, static_cast<int64_t>(num), vocab, vocab};
  if (plain && !masked) {
    model_.best(backend_, out_rows_, logits, {best_.data(), num});
    for (size_t i = 0; i < num; ++i) {
      tops_[i].clear();
      sampled_[at + i] = pick(best_[i], sampling(now[i]), static_cast<int>(vocab));
    }
    return;
  }
  model_.logits(backend_, out_rows_, logits);
  if (!masked) return sample_rows({this, at, num});
  turn_.clear();
  for (bool with_mask : {false, true}) {
    size_t first = turn_.size();
    for (size_t i = 0; i < num; ++i) {
      if ((now[i].mask != kNoMask) == with_mask) turn_.push_back(i);
    }
    if (with_mask) set_masks(step, at, std::span(turn_).subspan(first));
    sample_rows({this, at, turn_.size() - first, turn_.data() + first});
    for (size_t k = first; with_mask && k < turn_.size(); ++k) row_of(at + turn_[k]).set_mask({});
  }
}

// Waits for the step's masks and gives each output its own.
void ModelExecutor::set_masks(uint64_t step, size_t first, std::span<const size_t> outputs) {
  take_masks(step);
  for (size_t i : outputs) row_of(first + i).set_mask(masks_.row(work_.outputs[first + i].mask));
}

void ModelExecutor::sample_rows(SampledRows rows) {
  backend_.parallel(
      static_cast<int>(rows.num),
      [](void* p, int k) {
        auto* r = static_cast<SampledRows*>(p);
        size_t i = r->list ? r->list[k] : static_cast<size_t>(k);
        auto v = static_cast<size_t>(r->self->model_.shape().vocab);
        auto* row = static_cast<float*>(r->self->logits_.data()) + i * v;
        r->self->sample(r->first + i, row);
      },
      &rows);
}

void ModelExecutor::compute_pooled(StepResult& result) {
  auto hidden = static_cast<size_t>(model_.shape().hidden);
  auto turn = static_cast<size_t>(logits_per_turn_);
  for (size_t at = 0; at < work_.pool.size(); at += turn) {
    size_t num = std::min(turn, work_.pool.size() - at);
    out_rows_.clear();
    for (size_t i = 0; i < num; ++i) out_rows_.push_back(work_.pool[at + i].row);
    auto width = static_cast<int64_t>(hidden);
    Tensor out{logits_.data(), DType::f32, static_cast<int64_t>(num), width, width};
    model_.hidden(backend_, out_rows_, out);
    for (size_t i = 0; i < num; ++i)
      pooler_.add(work_.pool[at + i], {out.f32() + i * hidden, hidden}, result);
  }
}

// On any of the backend's threads: touches only what belongs to this output.
void ModelExecutor::sample(size_t index, float* logits) {
  const OutputRow& o = work_.outputs[index];
  size_t local = index % static_cast<size_t>(logits_per_turn_);
  std::vector<TopLogprob>& top = tops_[local];
  top.clear();
  int vocab = model_.shape().vocab;
  if (o.actual != kNoToken) {
    score_row(logits, vocab, o.actual, o.position, {o.num_top}, top, scratch_[local]);
  } else {
    sampled_[index] =
        sample_row(logits, vocab, sampling(o), reader_.row(static_cast<Slot>(o.slot)).choice,
                   o.position, &top, scratch_[local]);
  }
}

}  // namespace sluice
