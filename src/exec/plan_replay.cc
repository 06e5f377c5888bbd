#include "exec/plan_replay.h"

#include <algorithm>
#include <cstring>

#include "base/str.h"
#include "core/plan_codec.h"
#include "core/replay.h"
#include "core/scheduler_state.h"
#include "exec/model_executor.h"

namespace sluice {

namespace {

using Number = unsigned long long;

// Adds the blocks that a segment's plans put into tables or move, and the places that they read.
void add_blocks_read(std::span<const std::byte> segment, NeededBlocks& out) {
  const auto add = [](std::vector<bool>& to, BlockId at) {
    if (at > 0 && static_cast<size_t>(at) < to.size()) to[static_cast<size_t>(at)] = true;
  };
  RecordReader reader(segment);
  if (!reader.header()) return;
  while (std::optional<Record> r = reader.next()) {
    if (r->kind != RecordKind::plan) continue;
    Result<RecordedPlan> p = read_plan(r->payload);
    if (!p) break;
    for (const TableEdit& e : p->plan.edits) add(out.blocks, e.block);
    for (const Transfer& t : p->plan.transfers)
      add(t.kind == Transfer::in ? out.places : out.blocks, t.from);
  }
}

// Whether an executor of that size can take it: files are not trusted.
bool fits(const StepPlan& p, const ExecutorConfig& c, int vocab) {
  const auto slot = [&](Slot s) { return s < static_cast<Slot>(c.max_seqs); };
  const auto block = [&](BlockId b) { return b >= 0 && b <= c.num_blocks; };
  const auto place = [&](BlockId b) { return b > 0 && b <= c.num_places; };
  return p.num_tokens <= c.max_step_tokens && p.pages.empty() &&
         std::ranges::all_of(p.rows, [&](const RowOp& r) { return slot(r.slot); }) &&
         std::ranges::all_of(p.edits,
                             [&](const TableEdit& e) {
                               return slot(e.slot) && e.index < table_len(c) &&
                                      e.group < c.groups.num_groups() && block(e.block);
                             }) &&
         std::ranges::all_of(
             p.slices,
             [&](const Slice& s) { return slot(s.slot) && s.pos <= c.max_len - s.count; }) &&
         std::ranges::all_of(p.tokens, [&](Token t) { return t >= 0 && t < vocab; }) &&
         std::ranges::all_of(p.transfers, [&](const Transfer& t) {
           if (t.key != kNoKey) return false;
           if (t.kind == Transfer::out) return block(t.from) && place(t.to);
           if (t.kind == Transfer::in) return place(t.from) && block(t.to);
           return t.kind == Transfer::copy && block(t.from) && block(t.to);
         });
}

bool same_top(const StepResult& a, const StepResult& b) {
  return a.top.empty() ||
         std::memcmp(a.top.data(), b.top.data(), a.top.size() * sizeof a.top[0]) == 0;
}

const Sampled* row_in(const StepResult& r, Slot slot, uint32_t epoch) {
  auto at = std::ranges::find_if(
      r.rows, [&](const Sampled& s) { return s.slot == slot && s.epoch == epoch; });
  return at == r.rows.end() ? nullptr : &*at;
}

// Only this token, or nothing that a mask says where there is none.
StepMasks::Row only(Token token) {
  if (token < 0) return {0};
  StepMasks::Row row(static_cast<size_t>(token) / 32 + 1);
  row.back() = 1u << (token % 32);
  return row;
}

}  // namespace

PlanReplay::PlanReplay(MakeExecutor make, const ModelShape& shape, ExecutorConfig config)
    : make_(std::move(make)), vocab_(shape.vocab), config_(with_groups(std::move(config), shape)) {}

PlanReplay::PlanReplay(Backend& backend, Model& model, ExecutorConfig config, const Clock& clock)
    : PlanReplay(
          [&backend, &model, &clock](const ExecutorConfig& c) {
            return std::make_unique<ModelExecutor>(backend, model, c, clock);
          },
          model.shape(),
          std::move(config)) {}

PlanReplay::~PlanReplay() { drain(); }

// Waits for all steps in flight; a cut recording lacks their masks and results.
void PlanReplay::drain() {
  for (const Launched& s : steps_) {
    if (s.masked) executor_->masks({s.step, {}});
  }
  for (size_t k = steps_.size(); k > 0; --k) executor_->wait();
  steps_.clear();
}

void PlanReplay::expect(std::span<const std::byte> segment) {
  needed_.blocks.resize(static_cast<size_t>(config_.num_blocks) + 1);
  needed_.places.resize(static_cast<size_t>(config_.num_places) + 1);
  add_blocks_read(segment, needed_);
}

Result<void> PlanReplay::run(std::span<const std::byte> segment) {
  RecordReader reader(segment);
  if (Result<RecordingHeader> h = reader.header(); !h) return h.error();
  std::optional<Record> state = reader.next();
  if (!state || state->kind != RecordKind::state) return Error{422, "it has no state"};
  if (!executor_ || !std::ranges::equal(state->payload, end_state_)) {
    drain();
    if (auto ok = begin(segment); !ok) return ok;
  }
  end_state_.clear();
  there_ = {};
  while (std::optional<Record> r = reader.next()) {
    if (auto ok = take(*r); !ok) return ok;
    if (!difference.empty()) return {};
  }
  return find_end(segment);
}

// The scheduler's state behind a segment, with which the next one begins unless records are missing
// in between.
Result<void> PlanReplay::find_end(std::span<const std::byte> segment) {
  ReplayHooks hooks;
  hooks.end = [this](const Scheduler& scheduler) {
    encode_state(scheduler, end_state_);
    if (Result<ExecutorContent> content = content_of(scheduler, needed_); content)
      there_ = BlockContents(*content, config_.block_size);
  };
  Result<ScheduleReport> report = replay_schedule(segment, hooks);
  if (!report) return report.error();
  return {};
}

Result<void> PlanReplay::begin(std::span<const std::byte> segment) {
  RecordReader reader(segment);
  Result<RecordingHeader> header = reader.header();
  if (!header) return header.error();
  std::optional<Record> state = reader.next();
  if (!state) return Error{422, "it has no state"};
  Result<Scheduler> scheduler =
      decode_state(state->payload, header->config, replay_text(header->vocab));
  if (!scheduler) return scheduler.error();
  known_.clear(), opened_.clear();
  const BlockCounts counts = scheduler->count_blocks();
  if (counts.free == counts.total && scheduler->idle()) {
    if (!executor_) open(0);
    return {};
  }
  expect(segment);
  Result<ExecutorContent> content = content_of(*scheduler, needed_);
  if (!content) return content.error();
  if (auto ok = restore(*content); !ok) return ok;
  while (std::optional<Record> r = reader.next()) {
    if (r->kind != RecordKind::in_flight) break;
    Result<StepPlan> p = decode_plan(r->payload);
    if (!p) return p.error();
    make_early(*scheduler, *p);
    if (auto ok = launch(*p, true); !ok) return ok;
  }
  return {};
}

// A plan from before the first state. What its slices take from the device is known by now, unless
// a step before it samples that; and rows whose sequence has ended are not there.
void PlanReplay::make_early(const Scheduler& scheduler, StepPlan& p) {
  keep_needed_transfers(scheduler, p);
  for (const RowOp& op : p.rows) {
    if (op.kind == RowOp::open) opened_.insert({op.slot, op.epoch});
  }
  std::erase_if(p.slices, [&](const Slice& s) { return !opened_.contains({s.slot, s.epoch}); });
  p.num_tokens = p.num_decode = 0;
  for (Slice& s : p.slices) {
    p.num_tokens += s.count;
    p.num_decode += p.num_tokens == p.num_decode + 1 && s.count == 1;
    const bool again = std::ranges::any_of(steps_, [&](const Launched& e) {
      return std::ranges::any_of(e.slices, [&](const Slice& x) { return x.slot == s.slot; });
    });
    if (!s.chained || again || s.count != 1) continue;
    s.chained = false;
    s.token_at = static_cast<uint32_t>(p.tokens.size());
    p.tokens.push_back(std::max(0, known_token(scheduler, s.slot, s.epoch, s.pos)));
  }
}

void PlanReplay::open(int num_extra) {
  executor_.reset();  // a device has one
  there_ = {};
  num_extra_ = num_extra;
  ExecutorConfig c = config_;
  c.num_blocks += num_extra;
  executor_ = make_(c);
}

Result<void> PlanReplay::restore(const ExecutorContent& content) {
  num_unknown += static_cast<int>(content.unknown.size());
  if (auto ok = KvRestore::check(content, config_, vocab_); !ok) return ok;
  const StepPlan& rows = content.rows;
  if (!fits(rows, config_, vocab_)) return Error{400, "its rows are not for this model"};
  KvRestore kv(config_, content, there_);
  if (!executor_ || kv.num_extra() > num_extra_) open(kv.num_extra());
  num_restored += kv.run(*executor_, progress);
  if (rows.empty()) return {};
  run_alone(*executor_, rows, "rows cannot be opened");
  for (const RowOp& op : rows.rows) known_.insert({op.slot, op.epoch});
  opened_ = known_;
  return {};
}

Result<void> PlanReplay::launch(const StepPlan& plan, bool partly) {
  if (!fits(plan, config_, vocab_))
    return Error{
        400, strf("the plan of step %llu is not for this model", static_cast<Number>(plan.step))};
  if (steps_.size() >= static_cast<size_t>(config_.pipeline.max_in_flight()))
    return Error{400, "too many steps are in flight"};
  const bool masked =
      std::ranges::any_of(plan.slices, [](const Slice& s) { return s.mask != kNoMask; });
  executor_->launch(plan);
  steps_.push_back({plan.step, masked, partly, plan.slices});
  return {};
}

Result<void> PlanReplay::take(const Record& r) {
  if (r.kind == RecordKind::plan) {
    Result<RecordedPlan> p = read_plan(r.payload);
    if (!p) return p.error();
    if (!p->plan.empty()) return launch(p->plan, false);
  } else if (r.kind == RecordKind::masks) {
    Result<StepMasks> m = decode_masks(r.payload);
    if (!m) return m.error();
    for (Launched& s : steps_) s.masked = s.masked && s.step != m->step;
    executor_->masks(std::move(*m));
  } else if (r.kind == RecordKind::result) {
    Result<RecordedResult> recorded = read_result(r.payload);
    if (!recorded) return recorded.error();
    return take_result(*recorded);
  }
  return {};
}

Result<void> PlanReplay::take_result(const RecordedResult& recorded) {
  if (steps_.empty()) return Error{400, "a result belongs to no step in flight"};
  const Launched step = std::move(steps_.front());
  steps_.erase(steps_.begin());
  const StepResult& was = recorded.result;
  if (step.masked) {
    // Its masks came before the first segment, or their record is missing: they allowed what was
    // sampled.
    StepMasks masks{step.step, {}};
    for (const Slice& s : step.slices) {
      const Sampled* sampled = row_in(was, s.slot, s.epoch);
      if (s.mask == kNoMask || !sampled || sampled->num_tokens == 0) continue;
      const auto at = static_cast<size_t>(s.mask);
      if (masks.rows.size() <= at) masks.rows.resize(at + 1);
      masks.rows[at] = only(was.tokens[sampled->token_at]);
    }
    executor_->masks(std::move(masks));
  }
  const StepResult& is = executor_->wait();
  ++num_results;
  num_tokens += was.tokens.size();
  step.partly ? compare_known(was, is) : compare(was, is);
  return {};
}

void PlanReplay::compare(const StepResult& was, const StepResult& is) {
  const auto step = static_cast<Number>(was.step);
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
  const char* what = was.rows != is.rows                                     ? "rows"
                     : was.transfers != is.transfers || was.lost != is.lost  ? "transfers"
                     : was.top.size() != is.top.size() || !same_top(was, is) ? "log-probabilities"
                                                                             : "vectors";
  difference = strf("step %llu: its tokens are equal, its %s are not", step, what);
}

// Rows of sequences that had ended are nobody's.
void PlanReplay::compare_known(const StepResult& was, const StepResult& is) {
  const auto step = static_cast<Number>(was.step);
  if (was.failure != is.failure) {
    difference = strf("step %llu: recorded failure \"%s\", now \"%s\"", step, was.failure.c_str(),
                      is.failure.c_str());
    return;
  }
  for (const Sampled& a : was.rows) {
    if (!known_.contains({a.slot, a.epoch}) || a.num_tokens == 0) continue;
    const Sampled* b = row_in(is, a.slot, a.epoch);
    if (b && b->num_tokens == a.num_tokens && was.tokens[a.token_at] == is.tokens[b->token_at])
      continue;
    difference = strf("step %llu: slot %u has another token than was recorded", step, a.slot);
    return;
  }
}

}  // namespace sluice
