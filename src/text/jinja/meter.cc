#include "text/jinja/meter.h"

#include <algorithm>

namespace sluice::jinja {

Meter::Meter(uint64_t steps, size_t bytes, const Clock* clock, Time limit)
    : reserve_(steps), bytes_(bytes), clock_(clock), deadline_(kNever) {
  if (clock_ && limit < kNever) deadline_ = clock_->now() + limit;
}

void Meter::refill(uint64_t n) {
  uint64_t all = fuel_ + reserve_;
  if (n > all) {
    fuel_ = reserve_ = 0;
    fail("too many steps; the template does not end or the conversation is too long for it");
  }
  if (deadline_ != kNever && clock_->now() > deadline_) {
    fail("rendering takes too long; the template does not end or the machine is overloaded");
  }
  fuel_ = std::min(all, std::max(n, kSlice));
  reserve_ = all - fuel_;
}

void Meter::rebase(uint64_t steps, size_t bytes) {
  reserve_ += std::min(steps, UINT64_MAX - reserve_);
  bytes_ = std::min(bytes_, bytes);
}

void Meter::out_of_memory() const {
  fail("out of memory: a value or all values together are too large");
}

}  // namespace sluice::jinja
