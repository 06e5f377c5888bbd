// With --slo: prompt tokens beside decodes, by how long the step will take.
#include <algorithm>

#include "core/scheduler.h"

namespace sluice {

namespace {

constexpr size_t kCounted = 64;  // waiting sequences; those behind them are taken to be alike

}  // namespace

// Prompt tokens that could run, but for those of the prompt in front.
int64_t Scheduler::tokens_behind(Index front) const {
  int64_t sum = 0;
  if (draft_.size() < running_.size()) {
    for (Index i : running_)
      if (i != front && prefilling(seqs_[i])) sum += remaining(seqs_[i]);
  }
  if (waiting_.empty() || !can_start()) return sum;
  const size_t slots = static_cast<size_t>(config_.max_seqs) - running_.size();
  const size_t num = std::min(waiting_.size(), kCounted);
  int64_t waiting = 0;
  for (size_t k = 0; k < num; ++k) {
    const Index i = waiting_[waiting_.size() - 1 - k];
    if (i != front) waiting += remaining(seqs_[i]);
  }
  return sum + waiting * static_cast<int64_t>(std::min(waiting_.size(), slots)) /
                   static_cast<int64_t>(num);
}

int Scheduler::slo_tokens(Time now, int budget) {
  if (draft_.empty() || budget < 1) return budget;
  const Index front = front_prompt();
  if (front == kNone) return budget;
  const Sequence& s = seqs_[front];
  SloBudget::Offer offer;
  for (const Draft& d : draft_) offer.decodes += slice_load(d.slice);
  offer.pos = s.planned;
  offer.rest = remaining(s);
  offer.behind = tokens_behind(front);
  offer.waited = now - s.timing.arrival;
  offer.most = budget;
  return slo_.choose(offer);
}

}  // namespace sluice
