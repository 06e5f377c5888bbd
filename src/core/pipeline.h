// How far the host runs ahead of the device. Plain numbers: every ring, reserve and margin that
// depends on it is derived from them.
#pragma once

namespace sluice {

struct Pipeline {
  int depth = 1;        // steps in flight when the next one is planned; 0: plan from known results
  bool chained = true;  // a slice may take the token that the step before it samples, on the device
  int lanes = 1;        // steps that compute at the same time, in different stages of the device

  // Steps that are launched and not yet waited for, at most.
  constexpr int max_in_flight() const { return (depth + 1) * lanes; }
  constexpr bool operator==(const Pipeline&) const = default;

  static const Pipeline sync;     // plan only when the result of the last step is known
  static const Pipeline overlap;  // plan a step ahead
};

inline constexpr Pipeline Pipeline::sync{0, false, 1};
inline constexpr Pipeline Pipeline::overlap{1, true, 1};

}  // namespace sluice
