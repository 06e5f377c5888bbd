// Predicts how many tokens an output will have, for --order longest-output and shortest-output, for
// --admission predicted-peak and for refusing requests that would be late. Learns from outputs that
// have ended. Owned by the scheduler. Deterministic; allocates only when it is made.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "core/request.h"

namespace sluice {

enum class Predict : uint8_t {
  oracle,     // max_tokens: right where requests say how long they get
  constant,   // `tokens`
  histogram,  // a quantile of the outputs to prompts of about this length
  quantile,   // a quantile of the outputs of this account
  survival,   // the same; peaks are forecast from all of the account's outputs (peak_forecast.h)
};

struct PredictorConfig {
  Predict kind = Predict::oracle;
  int tokens = 256;
  float quantile = 0.75f;  // 0 to 1, both excluded
  bool operator==(const PredictorConfig&) const = default;
};

// Lengths in buckets: exact up to 16, then eight per octave. Halved when full, so that old ones
// count less and less.
class LengthHistogram {
 public:
  void add(int length);
  int total() const { return total_; }
  // The length that a share `q` of those above `above` do not exceed, rounded up to its bucket;
  // 0 when there is none above.
  int quantile(float q, int above) const;
  bool operator==(const LengthHistogram&) const = default;

 private:
  friend class SurvivalCurve;
  friend struct SchedulerState;
  static constexpr int kExact = 16, kPerOctave = 8, kBuckets = kExact + 16 * kPerOctave;
  static constexpr int kFull = 2048;
  static int bucket_of(int length);
  static int last_of(int bucket);  // the largest length in it

  std::array<uint16_t, kBuckets> counts_{};
  int total_ = 0;
};

// The share of outputs that get longer than a length. Those that still run count as far as they
// got: after a start the short ones end first, and alone they would promise too much.
class SurvivalCurve {
 public:
  void add_running(int length, int num) {
    running_[static_cast<size_t>(LengthHistogram::bucket_of(length))] += num;
  }
  void fit(const LengthHistogram& ended);
  double longer_than(int length) const;
  bool operator==(const SurvivalCurve&) const = default;

 private:
  static constexpr int kBuckets = LengthHistogram::kBuckets;
  std::array<int, kBuckets> running_{};
  std::array<float, kBuckets + 1> share_{};  // that reaches a bucket
};

class LengthPredictor {
 public:
  explicit LengthPredictor(PredictorConfig config);

  // Output tokens in all of a request that has `num_output` already and goes on: more than that,
  // at most max_new. What the request says itself comes first; until enough outputs have ended it
  // is max_new.
  int predict(const Request& request, int num_output) const;
  // The same by the median of the outputs like it, for estimates that need not be safe. Learnt
  // lengths count for every kind but `constant`.
  int expect(const Request& request, int num_output) const;
  // Under survival: outputs like this request's, once some have ended; else null. Valid until the
  // next call that changes this.
  const LengthHistogram* history(const Request& request) const;
  // An output has ended by itself.
  void learn(const Request& request, int num_output);

  void clear() noexcept;
  bool operator==(const LengthPredictor&) const = default;

 private:
  friend struct SchedulerState;
  static constexpr int kEnough = 16;          // outputs, before a histogram is used
  static constexpr size_t kAccounts = 512;    // two accounts of one place replace each other
  static constexpr size_t kPromptSizes = 24;  // by powers of two
  struct Known {
    TenantId account = 0;
    LengthHistogram lengths;
    bool operator==(const Known&) const = default;
  };
  size_t place_of(const Request& request) const;
  int learnt(const Request& request, int num_output, float quantile) const;
  bool by_account() const {
    return config_.kind == Predict::quantile || config_.kind == Predict::survival;
  }

  PredictorConfig config_;
  LengthHistogram all_;
  std::vector<Known> known_;  // by prompt size, or by account
};

}  // namespace sluice
