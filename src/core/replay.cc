#include "core/replay.h"

#include <algorithm>
#include <utility>

#include "core/scheduler_state.h"

namespace sluice {

namespace {

constexpr Time kLatest = Time(int64_t{1} << 61);  // no sum of two times overflows
bool valid(Time t) { return t >= -kLatest && t <= kLatest; }

using Number = unsigned long long;

std::string words(const Slice& s) {
  return strf("slot %u, positions [%d, %d), epoch %u, want %d%s, mask %d", s.slot, s.pos,
              s.pos + s.count, s.epoch, static_cast<int>(s.want), s.chained ? ", chained" : "",
              s.mask);
}
std::string words(const RowOp& r) {
  return strf("%s request %llu choice %d in slot %u, epoch %u",
              r.kind == RowOp::open ? "open" : "close", static_cast<Number>(r.id.req),
              int{r.id.choice}, r.slot, r.epoch);
}
std::string words(const TableEdit& e) {
  return strf("slot %u, row %u, group %d, block %d", e.slot, e.index, int{e.group}, e.block);
}
std::string words(const PageOp& p) { return strf("slot %u, %u pages", p.slot, p.num_pages); }
std::string words(const Transfer& t) {
  return strf("%s from %d to %d, transfer %llu", transfer_name(t.kind), t.from, t.to,
              static_cast<Number>(t.id));
}
std::string words(Token t) { return strf("%d", t); }
std::string words(const BlockKey& k) {
  return strf("hash %llx, group %u", static_cast<Number>(k.hash.a), k.group);
}
std::string words(const SamplingSpec& s) { return strf("temperature %g", double{s.temperature}); }

template <typename T>
std::string list_difference(const char* name, const T& recorded, const T& planned) {
  size_t common = std::min(recorded.size(), planned.size());
  for (size_t k = 0; k < common; ++k) {
    if (recorded[k] == planned[k]) continue;
    return strf("%s %zu: recorded %s; planned %s", name, k, words(recorded[k]).c_str(),
                words(planned[k]).c_str());
  }
  if (recorded.size() == planned.size()) return {};
  const auto& longer = recorded.size() > common ? recorded : planned;
  return strf("%s: recorded %zu, planned %zu; the first that only one has: %s", name,
              recorded.size(), planned.size(), words(longer[common]).c_str());
}

// One segment, told to a scheduler.
class Replayer {
 public:
  Replayer(std::span<const std::byte> file, const ReplayHooks& hooks)
      : reader_(file), hooks_(hooks) {}

  Result<ScheduleReport> run() {
    Result<RecordingHeader> header = reader_.header();
    if (!header) return header.error();
    report_.header = std::move(*header);
    std::optional<Record> state = reader_.next();
    if (!state || state->kind != RecordKind::state)
      return Error{reader_.tail() == RecordReader::Tail::damaged ? 400 : 422,
                   "the recording is cut off before its scheduler's state ends, or damaged "
                   "there: nothing of it can be replayed"};
    text_ = replay_text(report_.header.vocab);
    Result<Scheduler> scheduler = decode_state(state->payload, report_.header.config, text_);
    if (!scheduler) return scheduler.error();
    scheduler_.emplace(std::move(*scheduler));
    SchedulerStats stats = scheduler_->stats();
    report_.num_live = stats.num_running + stats.num_waiting;
    report_.num_in_flight = stats.num_in_flight;
    report_.num_cached = scheduler_->count_blocks().cached;
    while (std::optional<Record> r = reader_.next()) {
      ++report_.num_records;
      if (auto ok = take(*r); !ok) return located(*r, ok.error());
      if (hooks_.events && !events_.list.empty() && r->kind != RecordKind::result)
        hooks_.events(events_, report_.last);
      events_.clear();
      if (!report_.difference.empty()) break;
    }
    report_.tail = reader_.tail();
    report_.bytes_read = reader_.at();
    if (hooks_.end && report_.difference.empty()) hooks_.end(*scheduler_);
    return std::move(report_);
  }

 private:
  static Error located(const Record& r, const Error& e) {
    return {e.code, strf("%s at byte %zu: %s", record_name(r.kind), r.at, e.message.c_str())};
  }

  Result<void> take(const Record& r) {
    switch (r.kind) {
      case RecordKind::header:
      case RecordKind::state:
        return Error{400, "it is in the middle of a segment"};
      case RecordKind::in_flight:
      case RecordKind::masks:
      case RecordKind::end:
        return {};
      case RecordKind::arrival:
        return arrive(r);
      case RecordKind::cancel:
        return cancel(r);
      case RecordKind::plan:
      case RecordKind::idle:
        return plan(r);
      case RecordKind::result:
        return complete(r);
      case RecordKind::append:
        return append(r);
    }
    return {};
  }

  Result<void> see(Time now) {
    if (!valid(now)) return Error{400, "its time is out of range"};
    if (report_.first == Time{0}) report_.first = now;
    report_.last = now;
    return {};
  }

  Result<void> arrive(const Record& r) {
    Result<RecordedArrival> a = read_arrival(r.payload);
    if (!a) return a.error();
    if (auto ok = see(a->now); !ok) return ok;
    const Request& request = a->request;
    if (!valid(request.arrival) || (request.deadline != kNever && !valid(request.deadline)))
      return Error{400, "its time is out of range"};
    ++report_.num_arrivals;
    if (hooks_.arrival) hooks_.arrival(*a);
    auto id = static_cast<Number>(request.id);
    if (auto ok = scheduler_->add(std::move(a->request), a->now); !ok)
      report_.difference = strf("request %llu was taken when it was recorded, and is refused: %s",
                                id, ok.error().message.c_str());
    return {};
  }

  Result<void> cancel(const Record& r) {
    Result<RecordedCancel> c = read_cancel(r.payload);
    if (!c) return c.error();
    if (auto ok = see(c->now); !ok) return ok;
    ++report_.num_cancels;
    if (!scheduler_->find(c->id))
      report_.difference = strf("request %llu was live when it was cancelled, and is not",
                                static_cast<Number>(c->id));
    scheduler_->cancel(c->id, c->now, events_);
    return {};
  }

  Result<void> plan(const Record& r) {
    RecordedPlan recorded;
    if (r.kind == RecordKind::plan) {
      Result<RecordedPlan> p = read_plan(r.payload);
      if (!p) return p.error();
      recorded = std::move(*p);
      if (recorded.plan.empty()) return Error{400, "it is empty"};
      ++report_.num_plans;
      report_.last_step = recorded.plan.step;
      if (report_.first_step == 0) report_.first_step = recorded.plan.step;
    } else {
      Result<Time> now = read_idle(r.payload);
      if (!now) return now.error();
      recorded.now = *now;
      ++report_.num_idle;
    }
    if (auto ok = see(recorded.now); !ok) return ok;
    if (scheduler_->stats().num_in_flight >= 200) return Error{400, "too many steps are in flight"};
    scheduler_->plan(recorded.now, plan_, events_);
    if (r.kind == RecordKind::idle) {
      if (!plan_.empty())
        report_.difference = strf("nothing was planned at %.6f s, and step %llu is",
                                  seconds(recorded.now), static_cast<Number>(plan_.step));
      return {};
    }
    if (plan_ == recorded.plan) {
      if (hooks_.plan) hooks_.plan(recorded);
      return {};
    }
    std::string where =
        plan_.empty() ? "nothing is planned" : plan_difference(recorded.plan, plan_);
    report_.difference = strf("step %llu at %.6f s: %s", static_cast<Number>(recorded.plan.step),
                              seconds(recorded.now), where.c_str());
    return {};
  }

  Result<void> complete(const Record& r) {
    Result<RecordedResult> c = read_result(r.payload);
    if (!c) return c.error();
    if (auto ok = see(c->now); !ok) return ok;
    StepResult& result = c->result;
    if (!valid(result.begin) || !valid(result.end)) return Error{400, "its time is out of range"};
    if (auto ok = scheduler_->check(result); !ok) return ok;
    ++report_.num_results;
    report_.num_failed += !result.failure.empty();
    for (SeqId id : c->stopped) {
      int row = scheduler_->row_of(id);
      if (row < 0 || static_cast<size_t>(row) >= result.rows.size() ||
          result.rows[static_cast<size_t>(row)].num_tokens != 1)
        return Error{400, "a stop string ended a sequence that is not in it"};
      result.tokens[result.rows[static_cast<size_t>(row)].token_at] = report_.header.vocab;
    }
    scheduler_->complete(result, c->now, events_);
    if (hooks_.result) hooks_.result(*c, events_);
    return {};
  }

  Result<void> append(const Record& r) {
    Result<RecordedAppend> a = read_append(r.payload);
    if (!a) return a.error();
    if (auto ok = see(a->now); !ok) return ok;
    ++report_.num_appends;
    const Request* request = scheduler_->find(a->id.req);
    if (!request || a->id.choice >= request->n)
      return Error{400, "it names a request that is not live"};
    if (!request->masked() || request->beams)
      return Error{400, "it is for a request without a constraint"};
    if (a->stopped && !a->tokens.empty()) a->tokens.back() = report_.header.vocab;
    Event after;
    after.req = a->id.req, after.choice = a->id.choice;
    scheduler_->append(after, a->tokens, a->now, events_);
    return {};
  }

  RecordReader reader_;
  const ReplayHooks& hooks_;
  ScheduleReport report_;
  std::shared_ptr<const TokenText> text_;
  std::optional<Scheduler> scheduler_;
  StepPlan plan_;
  Events events_;
};

}  // namespace

std::string plan_difference(const StepPlan& a, const StepPlan& b) {
  if (a.step != b.step)
    return strf("recorded as step %llu, planned as step %llu", static_cast<Number>(a.step),
                static_cast<Number>(b.step));
  std::string d = list_difference("row", a.rows, b.rows);
  if (d.empty()) d = list_difference("slice", a.slices, b.slices);
  if (d.empty()) d = list_difference("table edit", a.edits, b.edits);
  if (d.empty()) d = list_difference("page op", a.pages, b.pages);
  if (d.empty()) d = list_difference("transfer", a.transfers, b.transfers);
  if (d.empty()) d = list_difference("key", a.keys, b.keys);
  if (d.empty()) d = list_difference("token", a.tokens, b.tokens);
  if (d.empty()) d = list_difference("sampling", a.sampling, b.sampling);
  if (d.empty() && a != b) d = "what it waits for";
  return d;
}

Result<ScheduleReport> replay_schedule(std::span<const std::byte> file, const ReplayHooks& hooks) {
  return Replayer(file, hooks).run();
}

}  // namespace sluice
