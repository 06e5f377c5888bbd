#include "core/step_plan.h"

#include <algorithm>
#include <bit>

namespace sluice {

namespace {

bool same_bits(float a, float b) {
  return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b);
}

bool same(const TopLogprob& a, const TopLogprob& b) {
  return a.pos == b.pos && a.token == b.token && a.rank == b.rank &&
         same_bits(a.logprob, b.logprob);
}

bool same_vector(const Vector& a, const Vector& b) { return std::ranges::equal(*a, *b, same_bits); }

}  // namespace

const char* transfer_name(Transfer::Kind kind) {
  switch (kind) {
    case Transfer::copy:
      return "copy";
    case Transfer::out:
      return "out";
    case Transfer::in:
      return "in";
    case Transfer::send:
      return "send";
    case Transfer::receive:
      return "receive";
  }
  return "?";
}

bool operator==(const StepResult& a, const StepResult& b) {
  return a.step == b.step && a.rows == b.rows && a.tokens == b.tokens &&
         std::ranges::equal(a.top, b.top, same) &&
         std::ranges::equal(a.pooled, b.pooled, same_vector) && a.transfers == b.transfers &&
         a.lost == b.lost && a.failure == b.failure;
}

}  // namespace sluice
