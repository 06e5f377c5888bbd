#include "exec/simulated_model.h"

#include <algorithm>
#include <chrono>
#include <thread>

namespace sluice {

namespace {

constexpr float kSimulatedLogit = 20;  // of the one token that is likely; others have 0

}  // namespace

void SimulatedModel::forward(Backend&, const BatchView& batch, std::span<const KvLayer> kv) {
  const auto begin = std::chrono::steady_clock::now();
  positions_.assign(batch.positions, batch.positions + batch.num_tokens);
  StepLoad load;
  // A prompt's chunks but the last sample nothing; which is the last is not known here, and a row
  // of the output matrix is little beside a chunk.
  for (const SliceView& s : batch.slices) load += chunk_load(s.pos, s.count);
  const std::chrono::duration<double> time(cost_.seconds(load));
  const auto sleep_for = [&](double share) {
    std::this_thread::sleep_until(
        begin + std::chrono::duration_cast<std::chrono::steady_clock::duration>(time * share));
  };
  for (size_t l = 0; watch_ && l < kv.size(); ++l) {
    sleep_for(static_cast<double>(l + 1) / static_cast<double>(kv.size()));
    watch_->wrote(static_cast<int>(l));
  }
  sleep_for(1);
}

int32_t SimulatedModel::word(int32_t row) const {
  const auto position = static_cast<size_t>(positions_[static_cast<size_t>(row)]);
  return words_[position % words_.size()];
}

void SimulatedModel::logits(Backend&, std::span<const int32_t> rows, Tensor out) {
  for (size_t i = 0; i < rows.size(); ++i) {
    float* row = out.row(static_cast<int64_t>(i));
    std::fill_n(row, out.cols, 0.0f);
    row[word(rows[i])] = kSimulatedLogit;
  }
}

void SimulatedModel::best(Backend&, std::span<const int32_t> rows, Tensor, std::span<Best> out) {
  for (size_t i = 0; i < rows.size(); ++i) out[i] = {kSimulatedLogit, word(rows[i])};
}

void SimulatedModel::hidden(Backend&, std::span<const int32_t> rows, Tensor out) {
  for (size_t i = 0; i < rows.size(); ++i) {
    float* row = out.row(static_cast<int64_t>(i));
    std::fill_n(row, out.cols, 0.0f);
    row[static_cast<size_t>(word(rows[i])) % static_cast<size_t>(out.cols)] = 1;
  }
}

}  // namespace sluice
