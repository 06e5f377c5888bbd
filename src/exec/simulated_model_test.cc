#include "exec/simulated_model.h"

#include <gtest/gtest.h>

#include <chrono>

#include "backend/ref/ref_backend.h"

namespace sluice {
namespace {

class NamedSizes final : public Model {
 public:
  const ModelShape& shape() const override { return shape_; }
  size_t weight_bytes() const override { return 1000; }
  size_t step_bytes() const override { return 900; }
  size_t scratch_bytes(int, int) const override { return 10; }
  void reserve(Backend&, int, int, int) override {}
  void use_lane(int) override {}
  void reserve_in(std::span<std::byte>, int, int) override {}
  std::span<std::byte> scratch() const override { return {}; }
  Tensor states() const override { return {}; }
  void embed(Backend&, const BatchView&) override {}
  void forward(Backend&, const BatchView&, std::span<const KvLayer>) override { FAIL(); }
  void logits(Backend&, std::span<const int32_t>, Tensor) override { FAIL(); }
  void best(Backend&, std::span<const int32_t>, Tensor, std::span<Best>) override { FAIL(); }
  void hidden(Backend&, std::span<const int32_t>, Tensor) override { FAIL(); }

 private:
  ModelShape shape_{.arch = "llama", .num_layers = 1, .hidden = 4, .vocab = 6, .windows = {}};
};

TEST(SimulatedModel, TakesItsTimeAndSaysWords) {
  StepCost cost;
  cost.rows = {{0, 0.02}, {100, 0.02}};
  SimulatedModel m(std::make_unique<NamedSizes>(), cost, {2, 5, 3});
  EXPECT_EQ(m.weight_bytes(), 0u);
  auto backend = make_ref_backend();
  const int32_t tokens[] = {0, 0, 0}, positions[] = {7, 3, 4};
  const SliceView slices[] = {{0, 1, 7, 0}, {1, 2, 3, 1}};
  BatchView batch;
  batch.num_tokens = 3;
  batch.tokens = tokens, batch.positions = positions, batch.slices = slices;
  const auto begin = std::chrono::steady_clock::now();
  m.forward(*backend, batch, {});
  EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(20));
  const int32_t rows[] = {0, 2};
  float values[12] = {};
  const Tensor out{values, DType::f32, 2, 6, 6};
  Best best[2];
  m.best(*backend, rows, out, best);
  EXPECT_EQ(best[0].at, 5);
  EXPECT_EQ(best[1].at, 5);
  const int32_t middle[] = {1};
  m.logits(*backend, middle, out);
  EXPECT_EQ(std::max_element(values, values + 6) - values, 2);
  m.hidden(*backend, middle, Tensor{values, DType::f32, 1, 4, 4});
  EXPECT_EQ(values[2], 1);
}

}  // namespace
}  // namespace sluice
