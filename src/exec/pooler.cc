#include "exec/pooler.h"

#include <memory>
#include <utility>

namespace sluice {

void add_pool_rows(const Slice& s, PoolRow at, std::vector<PoolRow>& rows) {
  if (s.want != Want::add && s.want != Want::pool) return;
  const int32_t batch_row = at.row;
  for (int32_t k = at.pooling == Pooling::mean ? 0 : s.count - 1; k < s.count; ++k) {
    at.row = batch_row + k;
    at.first = s.pos + k == 0;
    at.last = s.want == Want::pool && k == s.count - 1;
    rows.push_back(at);
  }
}

void Pooler::add(const PoolRow& p, std::span<const float> hidden, StepResult& result) {
  std::vector<double>& sum = sums_[p.slot];
  const bool mean = p.pooling == Pooling::mean;
  if (mean) {
    if (p.first) sum.assign(hidden.size(), 0);
    for (size_t d = 0; d < hidden.size(); ++d) sum[d] += double{hidden[d]};
  }
  if (!p.last) return;
  auto v = std::make_shared<std::vector<float>>(hidden.begin(), hidden.end());
  for (size_t d = 0; mean && d < hidden.size(); ++d)
    (*v)[d] = static_cast<float>(sum[d] / p.num_prompt);
  result.rows[static_cast<size_t>(p.result)].pooled = static_cast<int32_t>(result.pooled.size());
  result.pooled.push_back(std::move(v));
}

}  // namespace sluice
