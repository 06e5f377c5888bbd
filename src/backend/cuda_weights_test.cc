#include "backend/cuda_weights.h"

#include <string>

#include <gtest/gtest.h>

#include "backend/cuda_plugin.h"

namespace sluice {
namespace {

struct Tensors {
  Tensors(const std::string& name, int64_t rows, int64_t cols)
      : info{name, Format::bf16, rows, cols, static_cast<size_t>(rows * cols) * 2} {
    segments.push_back({&info, {}});
  }
  TensorInfo info;
  std::vector<WeightSegment> segments;
};

TEST(CudaWeights, Fp8IsForLayersOfWholeSixteens) {
  const CudaTypes fp8{DType::bf16, true};
  struct Case {
    const char* name;
    int64_t rows, cols;
    bool f8;
  };
  for (const Case& c : {Case{"blk.0.ffn_up.weight", 64, 32, true},
                        {"blk.0.ffn_up.weight", 64, 40, false},
                        {"blk.0.ffn_up.weight", 70, 32, false},
                        {"output.weight", 64, 32, false},
                        {"token_embd.weight", 64, 32, false}}) {
    SCOPED_TRACE(testing::Message() << c.name << " " << c.rows << "x" << c.cols);
    Tensors t(c.name, c.rows, c.cols);
    const CudaWeightPlan p = plan_cuda_weight(t.segments, fp8);
    EXPECT_EQ(p.type, c.f8 ? DType::f8 : DType::bf16);
    EXPECT_EQ(p.act, c.f8 ? kActF32 | kActF8 : kActF32);
    const auto elements = static_cast<size_t>(c.rows * c.cols);
    EXPECT_EQ(p.bytes, c.f8 ? elements + static_cast<size_t>(c.rows) * 4 : elements * 2);
    EXPECT_EQ(plan_cuda_weight(t.segments, {DType::bf16, false}).type, DType::bf16);
  }
}

TEST(CudaWeights, Int8IsForLayersWhoseTensorsAllMayBe) {
  const auto plan = [](const Tensors& t, std::vector<std::string> exclude = {}) {
    return plan_cuda_weight(
        t.segments, {DType::bf16, false, true, false, {WeightQuant::w8a8, std::move(exclude)}});
  };
  Tensors q("blk.0.attn_q.weight", 70, 64), k("blk.0.attn_k.weight", 6, 64);
  q.segments.push_back(k.segments[0]);
  const CudaWeightPlan p = plan(q);
  EXPECT_EQ(p.type, DType::i8);
  EXPECT_EQ(p.act, kActI8);
  EXPECT_EQ(p.bytes, 76u * 64 + 76 * 4);
  EXPECT_EQ(plan(q, {"attn_k"}).type, DType::bf16);
  EXPECT_EQ(plan(q, {"attn_k"}).act, kActF32);
  EXPECT_EQ(plan(q, {"attn_k"}).bytes, 76u * 64 * 2);
  EXPECT_EQ(plan(q, {"blk.1.*"}).type, DType::i8);
  EXPECT_EQ(plan(Tensors("blk.0.ffn_up.weight", 64, 48)).type, DType::bf16);
  EXPECT_EQ(plan(Tensors("output.weight", 64, 64)).type, DType::bf16);
  EXPECT_EQ(plan(Tensors("token_embd.weight", 64, 64)).type, DType::bf16);
}

TEST(CudaWeights, SegmentsAddUp) {
  Tensors q("blk.0.attn_q.weight", 64, 32), k("blk.0.attn_k.weight", 16, 32);
  q.segments.push_back(k.segments[0]);
  const CudaWeightPlan p = plan_cuda_weight(q.segments, {DType::f16, true});
  EXPECT_EQ(p.rows, 80);
  EXPECT_EQ(p.cols, 32);
  EXPECT_TRUE(p.layer);
  // The memory plan computes the same figures.
  const Weight w = cuda_weight_sizes({DType::f16, true})->load(q.segments, {});
  EXPECT_EQ(w.rows, p.rows);
  EXPECT_EQ(w.cols, p.cols);
  EXPECT_EQ(w.act, p.act);
  EXPECT_EQ(w.bytes, p.bytes);
}

// Segments of one format go together where tiles of 16 rows allow it.
TEST(CudaWeights, StoredWeightsHaveAPartPerFormat) {
  const CudaTypes stored{DType::bf16, false, true};
  const auto parts_of = [&](std::initializer_list<std::pair<Format, int64_t>> list,
                            const CudaTypes& types) {
    std::vector<TensorInfo> tensors;
    for (auto [format, rows] : list) tensors.push_back({"blk.0.w", format, rows, 256, 0});
    std::vector<WeightSegment> segments;
    for (const TensorInfo& t : tensors) segments.push_back({&t, {}});
    return plan_cuda_weight(segments, types);
  };
  using enum Format;
  const CudaWeightPlan mixed = parts_of({{q4_k, 64}, {q4_k, 16}, {q6_k, 16}}, stored);
  ASSERT_EQ(mixed.parts.size(), 2u);
  EXPECT_EQ(mixed.parts[0].rows, 80);
  EXPECT_EQ(mixed.part_of, (std::vector<size_t>{0, 0, 1}));
  EXPECT_EQ(mixed.bytes, PackedShape(q4_k, 80, 256).bytes() + PackedShape(q6_k, 16, 256).bytes());
  EXPECT_EQ(stored_scratch(mixed, stored), 96u * 256 * 2);
  EXPECT_EQ(stored_scratch(mixed, {DType::bf16, false, true, true}), 64u * (512 + 32 + 4));
  EXPECT_EQ(parts_of({{q8_0, 20}, {q8_0, 16}}, stored).parts.size(), 2u);
  EXPECT_TRUE(parts_of({{q8_0, 16}, {bf16, 16}}, stored).parts.empty());  // no layout for all
  EXPECT_TRUE(parts_of({{q8_0, 16}}, {DType::bf16, false, false}).parts.empty());
  EXPECT_TRUE(parts_of({{q8_0, 16}}, {DType::f32, false, true}).parts.empty());
}

TEST(CudaWeights, DecodedPiecesFit) {
  EXPECT_EQ(decoded_rows(4608, 3584), 4608);
  for (auto [rows, cols] :
       {std::pair<int64_t, int64_t>{37888, 3584}, {152064, 3584}, {262144, 5376}}) {
    const int64_t step = decoded_rows(rows, cols);
    EXPECT_EQ(step % 256, 0);
    EXPECT_LE(static_cast<size_t>(step * cols) * 2, kMostDecoded);
    EXPECT_GT(static_cast<size_t>(step * cols) * 2, kMostDecoded / 2);
  }
}

TEST(CudaWeights, OnlyHalvesKeepSumsInF32) {
  EXPECT_EQ(cuda_output_type({DType::f16, false}), DType::f32);
  EXPECT_EQ(cuda_output_type({DType::bf16, false}), DType::bf16);
  EXPECT_EQ(cuda_output_type({DType::f32, false}), DType::f32);
}

TEST(Act, FewRowsMayHaveNoF8) {
  Act a;
  a.f.rows = kMaxRowsWithoutF8;
  EXPECT_FALSE(a.fills_f8());
  a.f8.data = &a;
  EXPECT_TRUE(a.fills_f8());
  a.f8.of_many = true;
  EXPECT_FALSE(a.fills_f8());
  a.f.rows = kMaxRowsWithoutF8 + 1;
  EXPECT_TRUE(a.fills_f8());
  a.f.rows = 1;
  a.f8.type = DType::i8;  // products in int8 read nothing else
  EXPECT_TRUE(a.fills_f8());
}

// Stored weights ask for split rows in the form that their formats' products read.
TEST(CudaWeights, StoredWeightsReadSplitRows) {
  const CudaTypes stored{DType::bf16, false, true};
  const auto needs = [&](std::vector<Format> formats) {
    std::vector<TensorInfo> tensors;
    for (Format f : formats) tensors.push_back({"blk.0.ffn_up.weight", f, 32, 256, 0});
    std::vector<WeightSegment> segments;
    for (const TensorInfo& t : tensors) segments.push_back({&t, {}, nullptr});
    return plan_cuda_weight(segments, stored).act;
  };
  EXPECT_EQ(needs({Format::q4_k}), kActF32 | kActSplitK);
  EXPECT_EQ(needs({Format::q4_k, Format::q6_k}), kActF32 | kActSplitK);
  EXPECT_EQ(needs({Format::q8_0}), kActF32 | kActSplit);
  EXPECT_EQ(needs({Format::q4_0, Format::q5_k}), kActF32 | kActSplit | kActSplitK);
  EXPECT_EQ(needs({Format::q4_1}), kActF32);
  EXPECT_EQ(needs({Format::q4_k, Format::bf16}), kActF32);  // not stored
}

}  // namespace
}  // namespace sluice
