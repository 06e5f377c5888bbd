#include "tools/sla.h"

#include <algorithm>
#include <functional>
#include <numeric>

namespace sluice {

double TokenTimes::tpot() const {
  return tokens.size() < 2
             ? 0
             : (tokens.back() - tokens.front()) / static_cast<double>(tokens.size() - 1);
}

void GapAverage::add(double gap) {
  average_ = any_ ? average_ + kWeight * (gap - average_) : gap;
  any_ = true;
  worst_ = std::max(worst_, average_);
}

bool meets_fastgen(double ttft, int prompt, double worst_average_gap, double rate) {
  return ttft <= prompt / 512.0 && worst_average_gap * rate <= 1;
}

bool meets_fastgen(const TokenTimes& t, double rate) {
  GapAverage gaps;
  for (size_t i = 1; i < t.tokens.size(); ++i) gaps.add(t.tokens[i] - t.tokens[i - 1]);
  return meets_fastgen(t.ttft(), t.prompt, gaps.worst(), rate);
}

double attainment(const std::vector<TokenTimes>& requests, double ttft, double tpot) {
  if (requests.empty()) return 0;
  auto good = std::count_if(requests.begin(), requests.end(), [&](const TokenTimes& t) {
    return t.ttft() <= ttft && t.tpot() <= tpot;
  });
  return static_cast<double>(good) / static_cast<double>(requests.size());
}

double worst_decile_gap(std::vector<double> gaps) {
  if (gaps.empty()) return 0;
  const size_t num = std::max<size_t>(gaps.size() / 10, 1);
  std::nth_element(gaps.begin(), gaps.begin() + static_cast<int64_t>(num) - 1, gaps.end(),
                   std::greater<>());
  return std::accumulate(gaps.begin(), gaps.begin() + static_cast<int64_t>(num), 0.0) /
         static_cast<double>(num);
}

}  // namespace sluice
