// With --slo: prompt tokens beside decodes, by how long the step will take.
#include "core/scheduler.h"

namespace sluice {

int Scheduler::slo_tokens(Time now, int budget) {
  if (draft_.empty() || budget < 1) return budget;
  const Index front = front_prompt();
  if (front == kNone) return budget;
  const Sequence& s = seqs_[front];
  SloBudget::Offer offer;
  for (const Draft& d : draft_) offer.decodes += slice_load(d.slice);
  offer.pos = s.planned;
  offer.rest = remaining(s);
  offer.waited = now - s.timing.arrival;
  offer.most = budget;
  return slo_.choose(offer);
}

}  // namespace sluice
