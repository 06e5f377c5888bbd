// How far the host runs ahead of the device. Plain numbers: every ring, reserve and margin that
// depends on it is derived from them.
#pragma once

namespace sluice {

struct Pipeline {
  int depth = 1;  // steps in flight when the next one is planned; 0: plan from known results
  // A sequence may be in several steps in flight: a slice takes the token that the step before it
  // samples, on the device. Otherwise it is in one at most, and steps in flight hold different
  // sequences.
  bool chained = true;
  int lanes = 1;  // steps in flight that compute at the same time, each with scratch of its own

  // Steps that are launched and not yet waited for, at most.
  constexpr int max_in_flight() const { return depth + 1; }
  // Lanes do not wait for each other, so that a chained step has to be in its predecessor's.
  constexpr bool valid() const {
    return depth >= 0 && lanes >= 1 && lanes <= max_in_flight() && (lanes == 1 || !chained);
  }
  constexpr bool operator==(const Pipeline&) const = default;

  static const Pipeline sync;           // plan only when the result of the last step is known
  static const Pipeline simple_async;   // plan other sequences meanwhile, to run after it
  static const Pipeline interleave;     // the same, to run beside it
  static const Pipeline double_buffer;  // two side by side, and a third is queued
  static const Pipeline overlap;        // plan the same sequences' next step meanwhile
};

inline constexpr Pipeline Pipeline::sync{0, false, 1};
inline constexpr Pipeline Pipeline::simple_async{1, false, 1};
inline constexpr Pipeline Pipeline::interleave{1, false, 2};
inline constexpr Pipeline Pipeline::double_buffer{2, false, 2};
inline constexpr Pipeline Pipeline::overlap{1, true, 1};

}  // namespace sluice
