#include "core/segment_encoder.h"

#include <algorithm>
#include <utility>

#include "core/plan_codec.h"

namespace sluice {

SegmentEncoder::SegmentEncoder(RecordingHeader header,
                               size_t segment_bytes,
                               std::shared_ptr<const TokenMap> map,
                               SegmentSink& sink)
    : header_(std::move(header)),
      segment_bytes_(segment_bytes),
      map_(std::move(map)),
      sink_(sink),
      no_vector_(std::make_shared<const std::vector<float>>()) {
  header_.segment = 0;
  header_.text = map_ == nullptr;
}

void SegmentEncoder::start(const Scheduler& by) noexcept {
  header_.config = by.config();
  record(by, [](Bytes&) {});
}

// Writes a record, or begins a segment with what it led to. A segment that has no room, or no
// memory, ends where it is.
void SegmentEncoder::record(const Scheduler& by, auto&& encode) noexcept {
  try {
    write(by, encode);
    by.beam_rows(beam_rows_);
  } catch (...) {
    end();
    sink_.end();
  }
}

void SegmentEncoder::write(const Scheduler& by, auto&& encode) {
  if (open_) {
    scratch_.clear();
    encode(scratch_);
    if (!sink_.write(scratch_)) return end();
    written_ += scratch_.size();
    // A large state costs the scheduler's thread time: its segments are longer.
    const size_t most = std::max(segment_bytes_, std::min(8 * first_size_, 4 * segment_bytes_));
    if (written_ + sink_.beside() < most) return;
    end();
    if (sink_.ready(first_size_))
      begin(by, true);
    else
      sink_.end();
    return;
  }
  ++num_unwritten_;
  if (sink_.ready(first_size_)) begin(by, false);
}

void SegmentEncoder::begin(const Scheduler& by, bool follows) {
  header_.follows = follows;
  scratch_.clear();
  begin_segment(header_, scratch_);
  record_state(by, scratch_, map_.get());
  for (size_t k = 0; k < num_launched_; ++k) {
    size_t at = begin_record(RecordKind::in_flight, scratch_);
    scratch_.insert(scratch_.end(), launched_[k].second.begin(), launched_[k].second.end());
    end_record(at, scratch_);
  }
  first_size_ = scratch_.size();
  open_ = sink_.begin(header_.segment, scratch_);
  header_.segment += open_;
  written_ = 0;
}

void SegmentEncoder::end() noexcept { open_ = false; }

void SegmentEncoder::added(const Scheduler& by,
                           const Request& request,
                           const SamplingSpec& asked,
                           Time now) noexcept {
  record(by, [&](Bytes& out) { record_arrival(request, asked, now, out, map_.get()); });
}

void SegmentEncoder::cancelled(const Scheduler& by, RequestId id, Time now) noexcept {
  record(by, [&](Bytes& out) { record_cancel(id, now, out); });
}

void SegmentEncoder::planned(const Scheduler& by, const StepPlan& plan, Time now) noexcept {
  if (!map_ && !plan.empty()) {
    try {
      if (num_launched_ == launched_.size()) launched_.emplace_back();
      auto& [step, bytes] = launched_[num_launched_++];
      step = plan.step;
      bytes.clear();
      encode(plan, bytes);
    } catch (...) {
      end();
    }
  }
  record(by, [&](Bytes& out) { record_plan(plan, now, out, map_.get()); });
}

// Log-probabilities of a known model and vectors of prompts say what the text was. Searches need
// the former.
StepResult& SegmentEncoder::without_text(const StepResult& result) {
  bare_.clear();
  bare_.step = result.step;
  bare_.rows = result.rows;
  bare_.tokens = result.tokens;
  bare_.top = result.top;
  for (const Sampled& s : bare_.rows) {
    if (std::ranges::find(beam_rows_, std::pair(s.slot, s.epoch)) != beam_rows_.end()) continue;
    for (uint32_t k = 0; k < s.num_top; ++k) {
      TopLogprob& t = bare_.top[s.top_at + k];
      t.logprob = 0, t.rank = 0;
    }
  }
  bare_.pooled.assign(result.pooled.size(), no_vector_);
  bare_.transfers = result.transfers;
  bare_.lost = result.lost;
  bare_.begin = result.begin, bare_.end = result.end;
  bare_.failure = result.failure;
  return bare_;
}

void SegmentEncoder::completed(const Scheduler& by,
                               const StepResult& result,
                               Time now,
                               std::span<const Event> events) noexcept {
  if (num_launched_ > 0 && launched_[0].first == result.step)
    std::rotate(launched_.begin(), launched_.begin() + 1,
                launched_.begin() + static_cast<ptrdiff_t>(num_launched_--));
  record(by, [&](Bytes& out) {
    stopped_.clear();
    for (const Event& e : events) {
      if (e.stop_string >= 0) stopped_.push_back({e.req, e.choice});
    }
    const StepResult& written =
        map_ && (!result.top.empty() || !result.pooled.empty()) ? without_text(result) : result;
    record_result(written, now, stopped_, out, map_.get());
  });
  if (!result.failure.empty()) sink_.failed();
}

void SegmentEncoder::appended(const Scheduler& by,
                              SeqId id,
                              std::span<const Token> tokens,
                              Time now,
                              std::span<const Event> events) noexcept {
  // Each of the tokens that it took became an event.
  tokens = tokens.first(std::min(tokens.size(), events.size()));
  bool stopped = !events.empty() && events.back().stop_string >= 0;
  record(by, [&](Bytes& out) { record_append(id, tokens, stopped, now, out, map_.get()); });
}

// No record says so: a segment with the state of now follows, which has the steps in flight.
void SegmentEncoder::flushed(const Scheduler& by) noexcept {
  end();
  sink_.end();
  record(by, [](Bytes&) {});
}

// What the scheduler was told may have been half done: a segment with its state of now follows.
void SegmentEncoder::reset(const Scheduler& by) noexcept {
  end();
  sink_.end();
  num_launched_ = 0;
  record(by, [](Bytes&) {});
}

}  // namespace sluice
