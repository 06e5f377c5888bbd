#include "tools/replay/recorded_workload.h"

#include <algorithm>
#include <map>

#include "base/str.h"
#include "core/replay.h"

namespace sluice {

namespace {

// What a run's segments say of its requests and steps.
class WorkloadReader {
 public:
  Result<void> read(const RecordedRun& run) {
    ReplayHooks hooks;
    hooks.arrival = [&](const RecordedArrival& a) { arrive(a); };
    hooks.plan = [&](const RecordedPlan& p) { plan(p.plan); };
    hooks.result = [&](const RecordedResult& r, const Events& events) {
      for (auto s = steps_.rbegin(); s != steps_.rend() && s->step >= r.result.step; ++s) {
        if (s->step != r.result.step) continue;
        if (r.result.failure.empty()) s->seconds = sluice::seconds(r.result.end - r.result.begin);
        break;
      }
      count(events);
    };
    hooks.events = [&](const Events& events, Time) { count(events); };
    block_size_ = run.header().config.block_size;
    for (const SegmentFile& file : run.segments) {
      Result<Bytes> bytes = read_bytes(file.path);
      if (!bytes) return bytes.error();
      if (file.header.follows == false) rows_.clear();
      Result<ScheduleReport> r = replay_schedule(*bytes, hooks);
      if (!r) break;  // cut off at its beginning
      if (!r->difference.empty())
        return Error{400, file.path + ": its plans are not those of this program: see --schedule"};
      done_.insert(done_.end(), steps_.begin(), steps_.end());
      steps_.clear();
    }
    return {};
  }

  RecordedWorkload take() {
    for (SimRequest& r : requests_) r.output = std::max(r.output, 1);
    return {std::move(requests_), std::move(done_)};
  }

 private:
  void arrive(const RecordedArrival& a) {
    SimRequest r;
    r.at = a.now;
    r.input = static_cast<int>(a.request.prompt->size());
    r.output = 0;
    r.priority = a.request.priority;
    r.account = a.request.account;
    if (a.request.deadline != kNever) r.deadline = a.request.deadline;
    r.block_tokens = block_size_;
    for (BlockHash h : hash_blocks(*a.request.prompt, block_size_, a.request.tenant))
      r.blocks.push_back(h.a);
    at_[a.request.id] = {requests_.size(), a.request.max_new};
    requests_.push_back(std::move(r));
  }

  void plan(const StepPlan& p) {
    RecordedStep s;
    s.step = p.step;
    s.load = step_load(p);
    s.num_decode = p.num_decode;
    for (const RowOp& op : p.rows) {
      if (op.kind == RowOp::open) rows_[op.slot] = op.id.req;
    }
    for (const Slice& slice : p.slices) {
      if (slice.count == 1) continue;
      s.prompt_tokens += slice.count;
      if (slice.count <= s.prompt_count) continue;
      s.prompt_count = slice.count, s.prompt_pos = slice.pos;
      auto row = rows_.find(slice.slot);
      s.prompt = row == rows_.end() ? 0 : row->second;
    }
    steps_.push_back(s);
  }

  // Of several choices the first one counts.
  void count(const Events& events) {
    for (const Event& e : events.list) {
      auto it = at_.find(e.req);
      if (it == at_.end() || e.choice != 0) continue;
      SimRequest& r = requests_[it->second.index];
      r.output += e.token != kNoToken;
      if (e.finish == Finish::deadline) r.output = std::max(r.output, it->second.max_new);
    }
  }

  int block_size_ = 16;
  struct Asked {
    size_t index = 0;
    int max_new = 0;
  };
  std::map<RequestId, Asked> at_;
  std::map<Slot, RequestId> rows_;
  std::vector<SimRequest> requests_;
  std::vector<RecordedStep> steps_, done_;  // of this segment, of those before
};

}  // namespace

Result<RecordedWorkload> read_workload(const RecordedRun& run) {
  WorkloadReader reader;
  if (auto ok = reader.read(run); !ok) return ok.error();
  return reader.take();
}

Result<std::vector<SimRequest>> recorded_arrivals(const std::string& path) {
  Result<RecordingFiles> files = find_recordings(path);
  if (!files) return files.error();
  for (auto run = files->runs.rbegin(); run != files->runs.rend(); ++run) {
    Result<RecordedWorkload> w = read_workload(*run);
    if (!w) return w.error();
    if (w->requests.empty()) continue;
    const Time first = w->requests.front().at;
    for (SimRequest& r : w->requests) {
      r.at -= first;
      if (r.deadline != kNever) r.deadline -= first;
    }
    return std::move(w->requests);
  }
  return Error{400, strf("%s: no request arrives in it", quote(path).c_str())};
}

}  // namespace sluice
