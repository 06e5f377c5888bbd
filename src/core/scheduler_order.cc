// Who is served first: the queue, aging, the places of others under order=priority, the shares of
// accounts under order=fair.
#include <algorithm>

#include "base/check.h"
#include "core/scheduler.h"

namespace sluice {

namespace {

constexpr int64_t kAged = INT64_MIN;  // rank of who has waited longer than `aging`

}  // namespace

// Lower is served first; ties go by id. A waiting sequence under order=fair is only sorted by its
// account, so that each account's are together: next_waiting() chooses among them.
int64_t Scheduler::waiting_rank(Index i) const {
  const Sequence& s = seqs_[i];
  switch (config_.order) {
    case Order::fcfs:
      return 0;
    case Order::priority:
      return request_of(s).priority;
    case Order::longest_output:
      return -int64_t{s.predicted_output};
    case Order::shortest_output:
      return s.predicted_output;
    case Order::fair:
      return standings_[i].account;
  }
  return 0;
}

bool Scheduler::before(Index a, Index b) const {
  int64_t x = standings_[a].rank, y = standings_[b].rank;
  return x != y ? x < y : seqs_[a].id < seqs_[b].id;
}

bool Scheduler::aged(Index i) const { return standings_[i].rank == kAged; }

void Scheduler::enqueue(Index i) {
  seqs_[i].phase = Phase::waiting;
  if (!aged(i)) {
    standings_[i].rank = waiting_rank(i);
    if (config_.order == Order::fair) accounts_.add_waiting(standings_[i].account, 1);
    if (config_.aging > Time{0})
      next_aging_ = std::min(next_aging_, seqs_[i].timing.arrival + config_.aging);
  }
  auto at = std::lower_bound(waiting_.begin(), waiting_.end(), i,
                             [&](Index a, Index b) { return before(b, a); });
  waiting_.insert(at, i);
}

void Scheduler::dequeue(Index i) {
  waiting_.erase(std::find(waiting_.rbegin(), waiting_.rend(), i).base() - 1);
  if (config_.order == Order::fair && !aged(i)) accounts_.add_waiting(standings_[i].account, -1);
}

// The place in the queue of the sequence to start next; the queue must not be empty.
size_t Scheduler::next_waiting() const {
  size_t last = waiting_.size() - 1;
  if (config_.order != Order::fair || aged(waiting_[last])) return last;
  return last - accounts_.next().num_before;
}

// Those that have waited longer than `aging` go before all others, in order of arrival.
void Scheduler::promote_aged(Time now) {
  next_aging_ = kNever;
  bool some = false;
  for (Index i : waiting_) {
    if (aged(i)) continue;
    Time due = seqs_[i].timing.arrival + config_.aging;
    if (due > now) {
      next_aging_ = std::min(next_aging_, due);
      continue;
    }
    if (config_.order == Order::fair) accounts_.add_waiting(standings_[i].account, -1);
    standings_[i].rank = kAged;
    some = true;
  }
  if (some)
    std::sort(waiting_.begin(), waiting_.end(), [&](Index a, Index b) { return before(b, a); });
}

// A running sequence keeps the rank that it started with: under order=fair the charge of its
// account then.
void Scheduler::rank_running(Index i) {
  Standing& at = standings_[i];
  if (config_.order == Order::fair && !aged(i)) at.rank = accounts_.charged(at.account);
}

// Under order=priority the next waiting sequence takes the place of running ones of lower priority,
// unless it would not fit without all of them: beams stay.
void Scheduler::preempt_for_priority() {
  bool fits = config_.contiguous();  // there are no beams
  while (config_.order == Order::priority && !waiting_.empty() && !running_.empty() &&
         pending_.empty() && pending_ranges_.empty()) {
    Index next = waiting_.back(), last = last_preemptible();
    // One that has aged would be the next to start again, and so on for ever.
    if (last == kNone || before(last, next) ||
        request_of(seqs_[last]).priority <= request_of(seqs_[next]).priority)
      return;
    if (can_start(num_slots(seqs_[next])) && has_blocks_for(next)) return;
    int num_left = static_cast<int>(running_.size()), blocks = blocks_.available();
    for (size_t k = running_.size(); k > 0 && !fits; --k) {
      const Sequence& s = seqs_[running_[k - 1]];
      if (s.beam) continue;
      if (before(running_[k - 1], next) ||
          request_of(s).priority <= request_of(seqs_[next]).priority)
        break;
      --num_left;
      blocks += s.table.num_rows(layout_) * layout_.num_groups;
    }
    int watermark = num_left > 0 ? watermark_blocks() : 0;
    fits = fits || (num_left + held_slots_ + num_slots(seqs_[next]) <= config_.max_seqs &&
                    blocks >= missing_blocks(seqs_[next]) + watermark);
    if (!fits) return;
    preempt(last);
  }
}

// Accounts pay for the tokens of the step. What is computed again after a preemption is free.
void Scheduler::charge_accounts() {
  if (config_.order != Order::fair) return;
  for (const Draft& d : draft_) {
    Standing& s = standings_[d.seq];
    int end = d.slice.pos + d.slice.count, from = std::max(d.slice.pos, s.num_charged);
    if (end <= from) continue;
    accounts_.charge(s.account, end - from);
    s.num_charged = end;
  }
}

}  // namespace sluice
