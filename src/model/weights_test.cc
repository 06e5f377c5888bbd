// Loading by name: what is missing or of another shape is said, once, and nothing after it loads.
#include "model/weights.h"

#include <gtest/gtest.h>

#include "backend/ref/ref_backend.h"
#include "model/checkpoint_fake.h"

namespace sluice {
namespace {

std::string load_error(FakeCheckpoint& c) {
  auto backend = make_ref_backend();
  Result<std::unique_ptr<Model>> m = load_model(c, *backend, {});
  return m ? "" : m.error().message;
}

TEST(Weights, AWholeModelLoads) {
  FakeCheckpoint c;
  c.add_weights();
  EXPECT_EQ(load_error(c), "");
}

TEST(Weights, EveryMissingTensorIsNamed) {
  FakeCheckpoint whole;
  whole.add_weights();
  for (const TensorInfo& t : whole.tensors()) {
    FakeCheckpoint c;
    c.add_weights();
    c.drop_tensor(t.name);
    EXPECT_NE(load_error(c).find(t.name), std::string::npos) << t.name << ": " << load_error(c);
  }
}

TEST(Weights, EveryWrongShapeIsNamedWithBothShapes) {
  FakeCheckpoint whole;
  whole.add_weights();
  for (const TensorInfo& t : whole.tensors()) {
    if (t.name == "token_embd.weight") continue;  // its rows say how large the vocabulary is
    FakeCheckpoint c;
    c.add_weights();
    c.reshape(t.name, t.rows, t.cols / 2);
    std::string expected = "tensor " + t.name + " is " + std::to_string(t.rows) + " x " +
                           std::to_string(t.cols / 2) + ", expected " + std::to_string(t.rows) +
                           " x " + std::to_string(t.cols);
    EXPECT_EQ(load_error(c), expected);
  }
  FakeCheckpoint c;
  c.add_weights();
  c.reshape("token_embd.weight", 50, 32);
  EXPECT_NE(load_error(c).find("token_embd.weight"), std::string::npos) << load_error(c);
}

TEST(Weights, AfterAFailureNothingLoadsAndTheFirstErrorStays) {
  FakeCheckpoint c;
  c.add_weights();
  auto backend = make_ref_backend();
  LoadOptions options;
  WeightLoader loader(c, *backend, options);
  EXPECT_TRUE(loader.has("output_norm.weight"));
  EXPECT_EQ(loader.vector("output_norm.weight", 64).size, 64u);
  EXPECT_TRUE(loader.ok());
  EXPECT_TRUE(loader.vector("nothing.weight", 64).empty());
  EXPECT_FALSE(loader.ok());
  EXPECT_TRUE(loader.vector("output_norm.weight", 64).empty());
  EXPECT_EQ(loader.matrix("blk.0.attn_q", 1, 1).bytes, 0u);
  EXPECT_NE(loader.error().message.find("nothing.weight"), std::string::npos);
}

TEST(Weights, ProgressEndsAtTheTotal) {
  FakeCheckpoint c;
  c.add_weights();
  size_t total = 0, done = 0, of = 0;
  for (const TensorInfo& t : c.tensors()) total += t.bytes;
  auto backend = make_ref_backend();
  LoadOptions options;
  options.progress = [&](size_t d, size_t o) {
    EXPECT_GT(d, done);
    done = d;
    of = o;
  };
  ASSERT_TRUE(load_model(c, *backend, options));
  EXPECT_EQ(done, total);
  EXPECT_EQ(of, total);
}

}  // namespace
}  // namespace sluice
