// For tests with many cases that take long: which of them run. SLUICE_TEST_SLICE=N leaves one case
// in N, another one for each SLUICE_TEST_SEED; unset, all run. One object per test; tests that
// share a body (one per parameter) give each a `first_case` of its own, so that each runs other
// cases.
#pragma once

#include <cstdint>
#include <cstdlib>

namespace sluice {

class TestSlice {
 public:
  explicit TestSlice(uint64_t first_case = 0)
      : TestSlice(number("SLUICE_TEST_SLICE"), number("SLUICE_TEST_SEED") + first_case) {}
  TestSlice(uint64_t num_slices, uint64_t seed)
      : num_slices_(num_slices == 0 ? 1 : num_slices), next_(seed % num_slices_) {}

  // Call it once per case: whether this one runs.
  bool take() { return next_++ % num_slices_ == 0; }

 private:
  static uint64_t number(const char* name) {
    const char* text = std::getenv(name);
    return text ? std::strtoull(text, nullptr, 10) : 0;
  }

  uint64_t num_slices_;
  uint64_t next_;
};

}  // namespace sluice
