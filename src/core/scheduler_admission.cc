// What must be free before a sequence starts.
#include <algorithm>
#include <cmath>

#include "core/scheduler.h"

namespace sluice {

// Whether blocks for the next sequence are there, without looking for a common prefix.
bool Scheduler::has_blocks_for(Index i) const {
  if (config_.ranged()) return ranges_.largest() >= range_blocks(i);
  if (config_.mapped()) return has_pages_for(seqs_[i]);
  return blocks_.available() >= missing_blocks(seqs_[i]) + watermark_blocks();
}

int Scheduler::watermark_blocks() const {
  if (config_.admission == Admission::reserve_max || running_.empty()) return 0;
  return static_cast<int>(std::ceil(config_.watermark * static_cast<float>(config_.num_blocks)));
}

// Blocks that stay free when `s` starts. A sequence that was preempted waits until it and all that
// run can grow by more and more tokens, in the end to their full length: it is preempted at most
// kMaxPreemptions times by the growth of others.
int Scheduler::kept_free(const Sequence& s) const {
  if (config_.admission == Admission::reserve_max || running_.empty()) return 0;
  int64_t kept = watermark_blocks();
  static constexpr int kGrowth[] = {0, 64, 512, INT32_MAX};  // tokens, by number of preemptions
  int tokens = kGrowth[std::min(s.timing.num_preemptions, kMaxPreemptions)];
  if (tokens > 0) {
    int64_t growth = growth_blocks(s, tokens);
    for (Index i : running_) growth += growth_blocks(seqs_[i], tokens);
    kept = std::max(kept, growth);
  }
  return static_cast<int>(std::min<int64_t>(kept, INT32_MAX));
}

// prefill_delay: whether sequences may start. With enough free slots they do, until plan() leaves
// no slot free or nobody waiting.
bool Scheduler::may_join() {
  int num_free = config_.max_seqs - static_cast<int>(running_.size()) - held_slots_;
  if (num_free >= std::min(config_.prefill_delay, config_.max_seqs)) joining_ = true;
  return joining_;
}

// fill_wait: whether those that wait do so until others have come. Not while anything runs, nor
// after a preemption, nor once they fill a step.
bool Scheduler::wait_to_fill(Time now) {
  fill_until_ = kNever;
  if (!running_.empty() || waiting_.empty()) return false;
  if (static_cast<int>(waiting_.size()) >= config_.max_seqs) return false;
  Time first = kNever;
  int64_t tokens = 0;
  for (Index i : waiting_) {
    const Sequence& s = seqs_[i];
    if (s.timing.num_preemptions > 0) return false;
    tokens += known_len(s);
    first = std::min(first, s.timing.arrival);
  }
  if (tokens >= config_.budget || now >= first + config_.fill_wait) return false;
  fill_until_ = first + config_.fill_wait;
  return true;
}

// admission=reserve-max: whether so many blocks can be set aside.
bool Scheduler::reservation_fits(int64_t blocks) const {
  return config_.admission != Admission::reserve_max || reserved_ + blocks <= config_.num_blocks;
}

// The output has got as long as was predicted, and goes on.
void Scheduler::grow_prediction(Sequence& s) const {
  s.predicted_output = predictor_.predict(request_of(s), static_cast<int>(s.output.size()));
}

void Scheduler::add_peak(const Sequence& s) const {
  int num_output = static_cast<int>(s.output.size()) + s.unknown;
  Growth g;
  g.left = std::max(s.predicted_output - num_output, 1);
  g.held = prompt_len(s) + num_output + config_.block_size - 1;
  g.num = num_forks(s);
  g.windows = 0;
  if (layout_.num_windowed > 0) {
    int end = prompt_len(s) + std::max(s.predicted_output, num_output + 1);
    int64_t full = int64_t{layout_.num_groups - layout_.num_windowed} * blocks_for(end);
    g.windows =
        (s.beam ? int64_t{layout_.num_groups} * blocks_for(end) : most_blocks(end, config_)) - full;
  }
  growths_.push_back(g);
}

// The same from how long outputs got, and how likely each is to go on.
bool Scheduler::forecast_fits(const Sequence& s, const Sequence* other) const {
  forecast_.clear();
  auto add = [&](const Sequence& q) {
    PeakForecast::Growth g;
    g.ended = predictor_.history(request_of(q));
    g.num_output = static_cast<int>(q.output.size()) + q.unknown;
    g.predicted = q.predicted_output;
    g.max_new = q.max_new;
    g.positions = prompt_len(q) + g.num_output;
    g.num = num_forks(q);
    if (layout_.num_windowed > 0) {
      int end = prompt_len(q) + std::max(q.predicted_output, g.num_output + 1);
      int64_t full = int64_t{layout_.num_groups - layout_.num_windowed} * blocks_for(end);
      g.windows =
          (q.beam ? int64_t{layout_.num_groups} * blocks_for(end) : most_blocks(end, config_)) -
          full;
    }
    forecast_.add(g);
  };
  for (Index i : running_) add(seqs_[i]);
  add(s);
  if (other) add(*other);
  bool fits = forecast_.fits(config_.num_blocks - watermark_blocks(),
                             layout_.num_groups - layout_.num_windowed, config_.block_size);
  forecast_.clear();  // it points into this scheduler
  return fits;
}

// admission=predicted-peak: whether the blocks of all that run, of `s` and of `other` fit the pool
// from now on. All grow by a position a step and give their blocks back at their predicted end, so
// the sum is largest just before one of them ends. Blocks that sequences share count for each.
bool Scheduler::peak_fits(const Sequence& s, const Sequence* other) const {
  if (config_.admission != Admission::predicted_peak || running_.empty()) return true;
  if (config_.predictor.kind == Predict::survival) return forecast_fits(s, other);
  growths_.clear();
  for (Index i : running_) add_peak(seqs_[i]);
  add_peak(s);
  if (other) add_peak(*other);
  std::sort(growths_.begin(), growths_.end(),
            [](const Growth& a, const Growth& b) { return a.left > b.left; });
  int64_t full_groups = layout_.num_groups - layout_.num_windowed;
  int64_t usable = config_.num_blocks - watermark_blocks(), num = 0, held = 0, windows = 0;
  for (const Growth& g : growths_) {
    num += g.num;
    held += g.num * g.held;
    windows += g.num * g.windows;
    int64_t positions = held + num * (g.left - 1);
    if (full_groups * positions / config_.block_size + windows > usable) return false;
  }
  return true;
}

}  // namespace sluice
