// Short prompts beside long ones. A prompt that does not fit the step would keep all that came
// after it waiting for as many steps as it takes; a share of the step's prompt tokens goes to
// shorter ones instead, the shortest first. The one in front always keeps the rest.
#include <algorithm>

#include "core/scheduler.h"

namespace sluice {

namespace {

constexpr size_t kLookAhead = 256;  // waiting sequences that are compared

}  // namespace

void Scheduler::plan_short_prompts(Time now, bool may_admit, StepPlan& out, int& budget) {
  Index front = front_prompt();
  if (front == kNone || budget < 2 || remaining(seqs_[front]) <= budget) return;
  int share =
      std::clamp(static_cast<int>(config_.short_share * static_cast<float>(budget)), 1, budget - 1);
  int left = share;
  while (left > 0 && prompts_left_ > 0) {
    Index i = shortest_prompt(front, may_admit && !prefill_blocked_);
    if (i == kNone) break;
    if (seqs_[i].phase == Phase::running) {
      run_prompt(i, out, left);
      if (seqs_[i].phase != Phase::running || seqs_[i].planned_step != next_step_) break;
    } else if (!admit_one(i, now, out, left)) {
      break;
    }
  }
  budget -= share - left;
}

// The first prompt in order of service that is not done.
Scheduler::Index Scheduler::front_prompt() const {
  if (draft_.size() < running_.size()) {
    for (Index i : running_) {
      if (prefilling(seqs_[i])) return i;
    }
  }
  return waiting_.empty() ? kNone : waiting_[next_waiting()];
}

// The prompt with the fewest tokens left, of those that run and those that may start; ties go by
// order of service.
Scheduler::Index Scheduler::shortest_prompt(Index front, bool may_admit) const {
  Index best = kNone;
  int least = remaining(seqs_[front]);
  for (Index i : running_) {
    const Sequence& s = seqs_[i];
    if (i == front || !prefilling(s) || remaining(s) >= least) continue;
    if (slides(s) && s.table.ready() * config_.block_size <= s.planned) continue;
    best = i;
    least = remaining(s);
  }
  if (!may_admit || !can_start()) return best;
  if (waiting_.empty()) return best;
  size_t head = next_waiting(), num = std::min(head + 1, kLookAhead);
  if (!peak_fits(seqs_[waiting_[head]])) return best;  // then nobody overtakes it
  for (size_t k = 0; k < num; ++k) {
    Index i = waiting_[head - k];
    if (i == front || must_wait(seqs_[i]) || remaining(seqs_[i]) >= least ||
        !may_overtake(i, front, waiting_[head]))
      continue;
    best = i;
    least = remaining(seqs_[i]);
  }
  return best;
}

// Whether waiting sequence `i` can start and the one that is next in the queue still could after
// it. Nobody overtakes a request of higher priority, one that has waited for `aging`, or one of
// another account.
bool Scheduler::may_overtake(Index i, Index front, Index next) const {
  const Sequence &s = seqs_[i], &head = seqs_[next];
  const Standing &at = standings_[i], &first = standings_[front];
  if ((config_.order == Order::priority || aged(front)) && at.rank > first.rank) return false;
  if (config_.order == Order::fair && at.account != first.account) return false;
  if (i == next) return true;
  if (!can_start(num_slots(s) + num_slots(head))) return false;
  // With both in the largest run, the first one fits whatever run the second one is given.
  if (config_.ranged()) return ranges_.largest() >= range_blocks(i) + range_blocks(next);
  if (config_.mapped()) {
    auto most = [&](const Sequence& q) { return pages_of(q, prompt_len(q) + q.max_new); };
    if (config_.admission == Admission::reserve_max)
      return reserved_ + most(s) + most(head) <= pages_.total();
    return pages_.available() - pages_of(s, known_len(s)) - pages_of(head, known_len(head)) >=
           std::max(kept_pages(s), kept_pages(head));
  }
  if (config_.admission == Admission::reserve_max) {
    return reserved_ + reserve_blocks(s) + reserve_blocks(head) <= config_.num_blocks;
  }
  if (!peak_fits(s, &head)) return false;
  return blocks_.available() - missing_blocks(s) - kept_free(s) >=
         missing_blocks(head) + kept_free(head);
}

}  // namespace sluice
