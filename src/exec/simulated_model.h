// A model that computes nothing: a step takes the time that a step cost says, asleep, and what is
// sampled depends on the position alone. For trying routers, clients and capacity without the
// device. Device thread.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "core/step_cost.h"
#include "model/model.h"

namespace sluice {

class SimulatedModel final : public Model {
 public:
  // `sizes`: the model that is simulated, loaded from headers. `words`: tokens that outputs are
  // made of, at least one.
  SimulatedModel(std::unique_ptr<Model> sizes, StepCost cost, std::vector<int32_t> words)
      : sizes_(std::move(sizes)), cost_(std::move(cost)), words_(std::move(words)) {}

  const ModelShape& shape() const override { return sizes_->shape(); }
  size_t weight_bytes() const override { return 0; }
  size_t step_bytes() const override { return sizes_->step_bytes(); }
  size_t scratch_bytes(int, int) const override { return 0; }
  void reserve(Backend&, int, int, int) override {}
  void use_lane(int) override {}
  void reserve_in(std::span<std::byte>, int, int) override {}
  std::span<std::byte> scratch() const override { return {}; }
  Tensor states() const override { return {}; }
  void embed(Backend&, const BatchView&) override {}
  void forward(Backend& backend, const BatchView& batch, std::span<const KvLayer> kv) override;
  void logits(Backend& backend, std::span<const int32_t> rows, Tensor out) override;
  void best(Backend& backend,
            std::span<const int32_t> rows,
            Tensor scratch,
            std::span<Best> out) override;
  void hidden(Backend& backend, std::span<const int32_t> rows, Tensor out) override;

 private:
  int32_t word(int32_t row) const;

  std::unique_ptr<Model> sizes_;
  StepCost cost_;
  std::vector<int32_t> words_;
  std::vector<int32_t> positions_;  // of the last batch
};

}  // namespace sluice
