// How published systems judge latency, as functions of token times. Pure; times are seconds.
#pragma once

#include <vector>

namespace sluice {

// One request's life.
struct TokenTimes {
  double arrival = 0;
  std::vector<double> tokens;  // when each came, ascending
  int prompt = 0;              // its tokens

  double ttft() const { return tokens.front() - arrival; }
  // Mean time per token after the first; 0 with one.
  double tpot() const;
  // Orca and vLLM: time from arrival to the last token, per output token.
  double normalised_latency() const {
    return (tokens.back() - arrival) / static_cast<double>(tokens.size());
  }
};

// Exponential moving average of the time between tokens, by gaps as they come.
class GapAverage {
 public:
  static constexpr double kWeight = 0.1;  // of the newest gap
  void add(double gap);
  double worst() const { return worst_; }  // its largest value so far; 0 without a gap

 private:
  double average_ = 0, worst_ = 0;
  bool any_ = false;
};

// DeepSpeed-FastGen: the first token within prompt / 512 s, and the average rate of generation,
// as an exponential moving average, never below `rate` tokens/s.
inline constexpr double kFastGenRates[] = {2, 4, 6};
bool meets_fastgen(double ttft, int prompt, double worst_average_gap, double rate);
bool meets_fastgen(const TokenTimes& times, double rate);

// DistServe: the share of requests that keep both limits; capacity is where it is 90 %.
inline constexpr double kAttainmentGoal = 0.9;
double attainment(const std::vector<TokenTimes>& requests, double ttft, double tpot);

// Mooncake: time between tokens, as the mean of the worst tenth of all gaps (at least one).
double worst_decile_gap(std::vector<double> gaps);

// Sarathi-Serve: limits of the 99th percentile of time between tokens, as multiples of a decode
// step of 32 requests.
inline constexpr double kSarathiStrict = 5, kSarathiRelaxed = 25;

}  // namespace sluice
