// Limits of compiling a constraint and of one step of a matcher. Work is counted, never timed, so
// that the same input is refused on every machine. One unit is roughly 50 ns.
#pragma once

#include <cstddef>
#include <cstdint>

namespace sluice::constrain {

struct ConstraintLimits {
  size_t max_source_bytes = 1 << 20;  // of a schema, regex, grammar or list of choices
  uint64_t max_compile_work = 3'000'000;
  uint32_t max_regex_nodes = 400'000;    // 40 bytes each, shared by all matchers
  uint32_t max_regex_states = 32'768;    // 1 KiB each, shared by all matchers
  size_t max_mask_bytes = 64u << 20;     // of kept masks, shared by all matchers
  uint32_t max_schemas = 60'000;         // subschemas after merging
  int max_depth = 200;                   // of groups in a pattern or a grammar
  uint64_t max_step_work = 2'000'000;    // of one fill_mask or accept
  uint32_t max_threads = 2'048;          // parses alive at once in one matcher
  size_t max_matcher_bytes = 64u << 20;  // of one matcher
};

// Counts down. Once it is spent it stays spent until it is refilled.
class WorkBudget {
 public:
  explicit WorkBudget(uint64_t units) : left_(units) {}
  bool spend(uint64_t units) {
    if (units > left_) {
      left_ = 0;
      spent_ = true;
      return false;
    }
    left_ -= units;
    return true;
  }
  bool spent() const { return spent_; }
  void refill(uint64_t units) {
    left_ = units;
    spent_ = false;
  }
  uint64_t left() const { return left_; }

 private:
  uint64_t left_;
  bool spent_ = false;
};

}  // namespace sluice::constrain
