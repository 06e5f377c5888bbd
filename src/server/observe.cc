#include "server/observe.h"

#include <algorithm>
#include <bit>

#include "base/keyed_hash.h"

namespace sluice {

namespace {

constexpr Time kMapInterval = std::chrono::milliseconds(200);
constexpr size_t kMapBlocks = 65'536;  // larger pools are walked less often
constexpr int kFirstOctave = 13;       // 8 us
constexpr int64_t kWindow = 60;        // seconds that percentiles are of

}  // namespace

void Buckets::add(Time t) {
  auto ns = static_cast<uint64_t>(std::max<int64_t>(t.count(), 8));
  int octave = std::bit_width(ns) - 1;
  auto at = static_cast<int64_t>(octave - kFirstOctave) * 8 +
            static_cast<int64_t>((ns >> (octave - 3)) & 7);
  ++counts[static_cast<size_t>(std::clamp<int64_t>(at, 0, kNum - 1))];
  ++total;
}

void Buckets::add(const Buckets& other) {
  if (other.total == 0) return;
  for (size_t i = 0; i < kNum; ++i) counts[i] += other.counts[i];
  total += other.total;
}

double Buckets::percentile(double p) const {
  if (total == 0) return 0;
  auto rank = static_cast<uint64_t>(p * static_cast<double>(total - 1));
  size_t i = 0;
  for (uint64_t seen = counts[0]; seen <= rank && i + 1 < kNum;) seen += counts[++i];
  auto octave = static_cast<double>(uint64_t{1} << (static_cast<size_t>(kFirstOctave) + i / 8));
  return octave * (1 + (static_cast<double>(i % 8) + 0.5) / 8) * 1e-9;
}

uint64_t answer_key(std::string_view id) {
  return std::max<uint64_t>(keyed_hash({0x736c75696365, 2}, id), 1);
}

void Recorder::begin(const SchedulerConfig& config) {
  std::lock_guard lock(mutex_);
  config_ = config;
  steps_.resize(kSteps);
  slices_.resize(kSlices);
  requests_.resize(kRequests);
  seconds_.resize(kSeconds);
  slots_.resize(static_cast<size_t>(config.max_seqs));
  live_.reserve(kRequests);
  finished_.resize(kFinished);
  blocks_.resize(static_cast<size_t>(config.num_blocks));
  scratch_.resize(blocks_.size());
  hits_.resize(kHits);
  recording_.store(true, std::memory_order_release);
}

// ---- requests ----

RequestRecord* Recorder::find(RequestId id) {
  RequestRecord& r = requests_[id % kRequests];
  return id != 0 && r.id == id ? &r : nullptr;
}

RequestRecord& Recorder::ensure(RequestId id) {
  RequestRecord& r = requests_[id % kRequests];
  if (r.id == id) return r;
  if (r.id != 0 && r.live()) retire(r);  // one that many later ones have overtaken
  r = RequestRecord{};
  r.id = id;
  r.live_at = static_cast<uint32_t>(live_.size());
  live_.push_back(id);
  return r;
}

void Recorder::retire(RequestRecord& r) {
  RequestId last = live_.back();
  live_[r.live_at] = last;
  requests_[last % kRequests].live_at = r.live_at;
  live_.pop_back();
}

void Recorder::on_submit(const Submission& s) {
  if (!recording_.load(std::memory_order_acquire)) return;
  std::lock_guard lock(mutex_);
  if (requests_[s.id % kRequests].id > s.id) return;
  RequestRecord& r = ensure(s.id);
  r.key = s.key;
  r.n = s.n;
  r.num_prompt = s.num_prompt;
  r.max_new = s.max_new;
  r.stream = s.stream;
  r.received = s.received;
  r.answer = s.answer;
  r.constraint = s.constraint;
  r.compile = s.compile;
  r.turn = s.turn;
  r.trace = s.trace;
  r.fetched = s.fetched;
  if (r.arrival == Time{0}) r.arrival = s.arrival;
}

void Recorder::on_refused(RequestId id, Time now) {
  if (!recording_.load(std::memory_order_acquire)) return;
  std::lock_guard lock(mutex_);
  RequestRecord* r = find(id);
  if (!r || !r->live()) return;
  retire(*r);
  r->state = RequestState::refused;
  r->finish = r->delivered = now;
}

void Recorder::on_delivered(RequestId id, Time now) {
  if (!recording_.load(std::memory_order_acquire)) return;
  std::lock_guard lock(mutex_);
  if (RequestRecord* r = find(id)) r->delivered = now;
}

void Recorder::take(const Event& e) {
  RequestRecord* r = find(e.req);
  if (e.token != kNoToken) {
    Second& s = second_of(e.timing.last_token);
    ++s.output_tokens;
    ++totals_.output_tokens;
    if (r) {
      ++r->num_output;
      r->arrival = e.timing.arrival;
      if (r->first_token == Time{0}) {
        r->first_token = e.timing.first_token;
        s.ttft.add(e.timing.first_token - e.timing.arrival);
      }
      if (e.choice < r->last_token_of.size()) {
        Time& last = r->last_token_of[e.choice];
        if (last != Time{0}) s.itl.add(e.timing.last_token - last);
        last = e.timing.last_token;
      }
      r->last_token = e.timing.last_token;
      if (r->state == RequestState::prefill) r->state = RequestState::decode;
    }
  }
  if (e.finish == Finish::none || !r) return;
  r->done_choices |= 1u << (e.choice & 31);
  r->num_cached = std::max(r->num_cached, e.timing.num_cached);
  if (!e.last || !r->live()) return;
  retire(*r);
  r->state = RequestState::done;
  r->why = e.finish;
  r->arrival = e.timing.arrival;
  r->finish = e.timing.finish;
  r->device_after = device_busy_;
  finished_[num_finished_++ % kFinished] = r->id;
  ++totals_.finished;
  ++second_of(e.timing.finish).finished;
}

// ---- steps ----

void Recorder::observe(const StepReport& report,
                       const StepPlan& plan,
                       const Events& events,
                       const Scheduler& scheduler) {
  if (!recording_.load(std::memory_order_relaxed)) return;
  std::lock_guard lock(mutex_);
  totals_.stats = report.stats;
  if (report.launched) launch(report, plan);
  if (report.completed) complete(report);
  for (const Event& e : events.list) take(e);
  if (watched_.load(std::memory_order_relaxed)) copy_blocks(scheduler, report.plan_end);
}

void Recorder::open(const RowOp& row, Time now) {
  slots_[row.slot] = {row.id.req, static_cast<int32_t>(row.num_prompt), row.id.choice, true};
  if (requests_[row.id.req % kRequests].id > row.id.req) return;  // overtaken
  RequestRecord& r = ensure(row.id.req);
  ++r.num_open;
  r.num_prompt = static_cast<int32_t>(row.num_prompt);
  if (r.first_scheduled == Time{0}) {
    r.first_scheduled = now;
    r.device_before = device_busy_;
  }
  if (r.preempt_begin != Time{0}) {
    r.preempted += std::max(now - std::max(r.preempt_begin, r.last_step_end), Time{0});
    r.preempt_begin = Time{0};
  }
  if (r.state != RequestState::decode) r.state = RequestState::prefill;
}

// A row closes because its sequence ended, or because it was put back into the queue.
void Recorder::close(const RowOp& row, Time now) {
  RequestRecord* r = find(row.id.req);
  if (!r) return;
  --r->num_open;
  if (!r->live() || (r->done_choices >> (row.id.choice & 31) & 1) != 0) return;
  ++r->num_preemptions;
  if (r->num_open > 0) return;
  r->preempt_begin = now;
  r->state = RequestState::preempted;
}

void Recorder::launch(const StepReport& report, const StepPlan& plan) {
  for (const RowOp& row : plan.rows) {
    if (row.slot >= slots_.size()) continue;
    row.kind == RowOp::open ? open(row, report.plan_begin) : close(row, report.plan_begin);
  }
  StepRecord& st = steps_[plan.step % kSteps];
  st = StepRecord{};
  st.step = plan.step;
  st.plan_begin = report.plan_begin;
  st.plan_end = report.plan_end;
  st.running = report.stats.num_running;
  st.waiting = report.stats.num_waiting;
  st.available = report.stats.available_blocks;
  st.slice_at = num_slices_;
  for (const Slice& slice : plan.slices) {
    SlotInfo& slot = slots_[slice.slot];
    bool prefill = slice.count > 1 || slice.pos < slot.num_prompt;
    slices_[num_slices_++ % kSlices] = {slot.req,    slice.pos, slice.count,
                                        slot.choice, prefill,   slice.mask != kNoMask};
    (prefill ? st.num_prefill : st.num_decode) += slice.count;
    ++st.num_slices;
    RequestRecord* r = find(slot.req);
    if (r && r->first_step == 0) {
      r->first_step = plan.step;
      r->num_cached = slice.pos;
    }
    if (slot.fresh && slice.pos > 0 && slot.choice == 0) note_hits(slice, plan);
    slot.fresh = false;
  }
}

void Recorder::note_hits(const Slice& slice, const StepPlan& plan) {
  if (!watched_.load(std::memory_order_relaxed)) return;
  auto num = static_cast<uint32_t>(slice.pos / config_.block_size);
  for (const TableEdit& e : plan.edits) {
    if (e.slot == slice.slot && e.index < num && e.block != kNullBlock)
      hits_[num_hits_++ % kHits] = e.block;
  }
}

void Recorder::complete(const StepReport& report) {
  StepRecord& st = steps_[report.completed_step % kSteps];
  if (st.step != report.completed_step) return;
  st.begin = report.begin;
  st.end = report.end;
  st.complete_begin = report.complete_begin;
  st.complete_end = report.complete_end;
  st.done = true;
  last_done_ = st.step;
  device_busy_ += st.end - st.begin;
  if (st.num_slices == 0) return;
  ++totals_.steps;
  totals_.prefill_tokens += static_cast<uint64_t>(st.num_prefill);
  Second& s = second_of(st.complete_end);
  ++s.steps;
  s.prefill_tokens += st.num_prefill;
  s.busy += st.end - st.begin;
  s.running = std::max(s.running, st.running);
  s.waiting = std::max(s.waiting, st.waiting);
  for (uint64_t k = 0; k < static_cast<uint64_t>(st.num_slices); ++k)
    charge(st, slices_[(st.slice_at + k) % kSlices]);
}

// The step's time goes to each request in it, once, under the kind of its first slice.
void Recorder::charge(const StepRecord& st, const SliceRecord& slice) {
  RequestRecord* r = find(slice.req);
  if (!r || !r->live()) return;
  int own_prefill = slice.prefill ? slice.count : 0;
  StepShare& share = slice.prefill ? r->prefill : st.num_prefill > 0 ? r->crowded : r->decode;
  Time time = st.end - st.begin;
  int64_t tokens = int64_t{st.num_prefill} + st.num_decode;
  share.own += slice.count;
  r->num_masked += slice.masked ? 1 : 0;
  share.own_time += time * slice.count / std::max<int64_t>(tokens, 1);
  if (r->num_preemptions > 0 && slice.prefill) r->num_recomputed += slice.count;
  if (r->last_step == st.step) return;
  r->last_step = st.step;
  r->last_step_end = st.end;
  ++share.steps;
  share.time += time;
  share.other_prefill += st.num_prefill - own_prefill;
  share.other_decode += st.num_decode - (slice.prefill ? 0 : slice.count);
}

Second& Recorder::second_of(Time t) {
  int64_t second = t / std::chrono::seconds(1);
  Second& s = seconds_[static_cast<size_t>(second) % kSeconds];
  if (s.second != second) {
    s = Second{};
    s.second = second;
  }
  return s;
}

void Recorder::copy_blocks(const Scheduler& scheduler, Time now) {
  Time interval = kMapInterval * static_cast<int64_t>(1 + blocks_.size() / kMapBlocks);
  if (copied_at_ != Time{0} && now - copied_at_ < interval) return;
  copied_at_ = now;
  scheduler.block_uses(scratch_);
  if (map_version_ > 0 && scratch_ == blocks_) return;
  blocks_.swap(scratch_);
  ++map_version_;
}

// ---- readers ----

void Recorder::read(Cursor& cursor, const Limits& limits, Time now, Snapshot& out) const {
  out.steps.clear();
  out.in_flight.clear();
  out.seconds.clear();
  out.requests.clear();
  out.hits.clear();
  out.ttft = out.itl = Buckets{};
  std::lock_guard lock(mutex_);
  uint64_t first = cursor.step + 1;
  if (last_done_ >= limits.steps) first = std::max(first, last_done_ - limits.steps + 1);
  out.num_skipped = cursor.step > 0 ? first - cursor.step - 1 : 0;
  for (uint64_t n = first; n <= last_done_; ++n) {
    const StepRecord* st = known_step(n);
    if (st && st->done && st->num_slices > 0) out.steps.push_back(*st);
  }
  cursor.step = last_done_;
  // Steps that an exception has ended are never completed: with nobody left they are not in flight.
  for (uint64_t n = last_done_ + 1; !live_.empty(); ++n) {
    const StepRecord* st = known_step(n);
    if (!st) break;
    if (!st->done && st->num_slices > 0) out.in_flight.push_back(*st);
  }

  int64_t current = now / std::chrono::seconds(1);
  auto oldest = std::max<int64_t>(current - static_cast<int64_t>(kSeconds) + 2, 0);
  for (int64_t n = oldest; n < current; ++n) {
    const Second& s = seconds_[static_cast<size_t>(n) % kSeconds];
    if (s.second != n) continue;
    if (n > cursor.second) out.seconds.push_back(s);
    if (n < current - kWindow) continue;
    out.ttft.add(s.ttft);
    out.itl.add(s.itl);
  }
  cursor.second = current - 1;

  read_requests(limits.requests, out);
  out.map_changed = map_version_ != cursor.map;
  if (out.map_changed) out.blocks = blocks_;
  cursor.map = map_version_;
  uint64_t hit = num_hits_ - std::min<uint64_t>(num_hits_ - cursor.hits, kHits);
  for (; hit < num_hits_; ++hit) out.hits.push_back(hits_[hit % kHits]);
  cursor.hits = num_hits_;
  out.totals = totals_;
}

// Running ones first, then those that wait; of each the oldest. Only ids are sorted: the engine
// thread may be waiting.
void Recorder::read_requests(size_t max, Snapshot& out) const {
  out.num_live = live_.size();
  out.order.clear();
  for (RequestId id : live_) {
    RequestState state = requests_[id % kRequests].state;
    bool waits = state == RequestState::waiting || state == RequestState::preempted;
    out.order.emplace_back(waits, id);
  }
  size_t num = std::min(max, out.order.size());
  std::partial_sort(out.order.begin(), out.order.begin() + static_cast<ptrdiff_t>(num),
                    out.order.end());
  for (size_t k = 0; k < num; ++k)
    out.requests.push_back(requests_[out.order[k].second % kRequests]);
  for (uint64_t k = 0; k < std::min<uint64_t>(num_finished_, kFinished); ++k) {
    RequestId id = finished_[(num_finished_ - 1 - k) % kFinished];
    const RequestRecord& r = requests_[id % kRequests];
    if (r.id == id) out.requests.push_back(r);
  }
}

const StepRecord* Recorder::known_step(uint64_t step) const {
  if (steps_.empty()) return nullptr;
  const StepRecord& st = steps_[step % kSteps];
  return step != 0 && st.step == step ? &st : nullptr;
}

void Recorder::copy_slices(const StepRecord& st, std::vector<SliceRecord>& out) const {
  if (num_slices_ - st.slice_at > kSlices) return;  // overwritten
  for (uint64_t k = 0; k < static_cast<uint64_t>(st.num_slices); ++k)
    out.push_back(slices_[(st.slice_at + k) % kSlices]);
}

bool Recorder::request(RequestId id, RequestRecord& out) const {
  std::lock_guard lock(mutex_);
  if (requests_.empty() || id == 0 || requests_[id % kRequests].id != id) return false;
  out = requests_[id % kRequests];
  return true;
}

std::vector<Recorder::Brief> Recorder::made_by(int key, Time now) const {
  std::vector<Brief> out;
  out.reserve(kRequests);
  std::lock_guard lock(mutex_);
  for (const RequestRecord& r : requests_) {
    if (r.id == 0 || r.key != key) continue;
    Time begin = r.received != Time{0} ? r.received : r.arrival;
    Time end = r.delivered != Time{0} ? r.delivered : r.finish != Time{0} ? r.finish : now;
    out.push_back({r.id, begin, end - begin});
  }
  return out;
}

RequestId Recorder::find_answer(uint64_t answer) const {
  std::lock_guard lock(mutex_);
  RequestId found = 0;
  for (const RequestRecord& r : requests_) {
    if (r.id != 0 && answer != 0 && r.answer == answer && (found == 0 || r.id < found))
      found = r.id;
  }
  return found;
}

bool Recorder::step(uint64_t step, StepRecord& out, std::vector<SliceRecord>& slices) const {
  std::lock_guard lock(mutex_);
  const StepRecord* st = known_step(step);
  if (!st || !st->done) return false;
  out = *st;
  copy_slices(*st, slices);
  return true;
}

void Recorder::steps(uint64_t first,
                     uint64_t last,
                     size_t max,
                     std::vector<StepRecord>& out,
                     std::vector<SliceRecord>& slices) const {
  std::lock_guard lock(mutex_);
  if (first == 0 || last < first) return;
  first = std::max(first, last - std::min<uint64_t>(last, max - 1));
  for (uint64_t n = first; n <= last; ++n) {
    const StepRecord* st = known_step(n);
    if (!st || !st->done) continue;
    StepRecord& copy = out.emplace_back(*st);
    copy.slice_at = slices.size();
    copy_slices(*st, slices);
    copy.num_slices = static_cast<int32_t>(slices.size() - copy.slice_at);
  }
}

}  // namespace sluice
