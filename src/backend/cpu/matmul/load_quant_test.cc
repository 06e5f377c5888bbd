#include "backend/cpu/matmul/load_quant.h"

#include <gtest/gtest.h>

#include "backend/cpu/matmul/matmul.h"
#include "tensor/formats/all.h"

namespace sluice {
namespace {

TensorInfo tensor(std::string name, int64_t rows, int64_t cols, Format format = Format::f16) {
  return {std::move(name), format, rows, cols, row_bytes(format, cols) * static_cast<size_t>(rows)};
}

const std::vector<TensorInfo>& tensors() {
  static const std::vector<TensorInfo> list = {tensor("token_embd.weight", 200, 96),
                                               tensor("output_norm.weight", 1, 96, Format::f32),
                                               tensor("blk.0.attn_q.weight", 96, 96),
                                               tensor("blk.0.attn_output.weight", 96, 96),
                                               tensor("blk.1.attn_output.weight", 96, 96),
                                               tensor("blk.0.ffn_down.weight", 96, 160),
                                               tensor("blk.0.ffn_odd.weight", 96, 100),
                                               tensor("position_embd.weight", 64, 96),
                                               tensor("blk.0.four.weight", 96, 96, Format::q4_0)};
  return list;
}

const TensorInfo& named(std::string_view name) {
  for (const TensorInfo& t : tensors()) {
    if (t.name == name) return t;
  }
  ADD_FAILURE() << name;
  return tensors()[0];
}

TEST(LoadQuant, NamesMatchByPartOrPattern) {
  EXPECT_TRUE(matches_name("attn_output", "blk.0.attn_output.weight"));
  EXPECT_TRUE(matches_name("output", "blk.0.attn_output.weight"));
  EXPECT_FALSE(matches_name("attn_outputs", "blk.0.attn_output.weight"));
  EXPECT_TRUE(matches_name("blk.*.attn_output", "blk.12.attn_output.weight"));
  EXPECT_TRUE(matches_name("blk.?.attn_output.weight", "blk.1.attn_output.weight"));
  EXPECT_FALSE(matches_name("blk.?.attn_output", "blk.12.attn_output.weight"));
  EXPECT_TRUE(matches_name("blk.[01].*", "blk.1.ffn_up.weight"));
  EXPECT_FALSE(matches_name("*attn", "blk.0.attn_output.weight"));
}

TEST(LoadQuant, WhatBecomesOfEachTensor) {
  const LoadQuant w8 = load_quant("w8a8", "blk.*.attn_output", tensors()).value();
  EXPECT_EQ(w8.of(named("token_embd.weight")), WeightQuant::w8a8);
  EXPECT_EQ(w8.of(named("blk.0.attn_q.weight")), WeightQuant::w8a8);
  EXPECT_EQ(w8.of(named("blk.0.four.weight")), WeightQuant::w8a8);
  EXPECT_EQ(w8.of(named("output_norm.weight")), WeightQuant::none);
  EXPECT_EQ(w8.of(named("position_embd.weight")), WeightQuant::none);
  EXPECT_EQ(w8.of(named("blk.1.attn_output.weight")), WeightQuant::none);
  EXPECT_EQ(w8.of(named("blk.0.ffn_odd.weight")), WeightQuant::none) << "no multiple of 32";
  EXPECT_EQ(w8.of(tensor("long", 2, kMaxW8Cols)), WeightQuant::w8a8);
  EXPECT_EQ(w8.of(tensor("long", 2, kMaxW8Cols + 32)), WeightQuant::none);
  const LoadQuant w4 = load_quant("w4", "", tensors()).value();
  EXPECT_EQ(w4.of(named("blk.0.attn_output.weight")), WeightQuant::w4);
  EXPECT_EQ(w4.of(named("blk.0.four.weight")), WeightQuant::none) << "has 4 bits already";
  const LoadQuant u8 = load_quant("u8", "token_embd", tensors()).value();
  EXPECT_EQ(u8.of(named("blk.0.ffn_odd.weight")), WeightQuant::u8);
  EXPECT_EQ(u8.of(named("token_embd.weight")), WeightQuant::none);
  EXPECT_EQ(load_quant("none", "", tensors())->of(named("token_embd.weight")), WeightQuant::none);
}

TEST(LoadQuant, Mistakes) {
  const auto message = [](const char* kind, const char* exclude) {
    const Result<LoadQuant> q = load_quant(kind, exclude, tensors());
    return q ? std::string("no error") : q.error().message;
  };
  EXPECT_NE(message("fp8", "").find("w8a8"), std::string::npos);
  EXPECT_NE(message("none", "attn_q").find("--quantize w8a8"), std::string::npos);
  EXPECT_NE(message("w8a8", "attn_q,lm_head").find("'lm_head'"), std::string::npos);
  EXPECT_NE(message("w8a8", "blk.7.*").find("'blk.7.*'"), std::string::npos);
  EXPECT_NE(message("w8a8", "output_norm").find("no matrix"), std::string::npos);
  EXPECT_NE(message("w8a8", "attn_q,,attn_output").find("empty"), std::string::npos);
  EXPECT_EQ(message("w8a8", "attn_q,blk.0.ffn_down"), "no error");
}

// The ledger's sizes are those of the packed weights, whatever the kind.
TEST(LoadQuant, SizesAreKnownFromHeaders) {
  ThreadPool pool(2, false);
  for (const char* kind : {"none", "w8a8", "w4", "u8"}) {
    const LoadQuant quant = load_quant(kind, "", tensors()).value();
    for (const TensorInfo& t : tensors()) {
      const std::vector<std::byte> bytes(t.bytes);
      const WeightSegment segment{&t, bytes};
      const PackedWeight w = pack_weight(pool, {&segment, 1}, {}, {.quant = &quant});
      const PackedWeight plan = plan_weight({&segment, 1}, {.quant = &quant});
      EXPECT_EQ(plan.bytes, w.bytes) << kind << " " << t.name;
      EXPECT_EQ(plan.act, w.act) << kind << " " << t.name;
      EXPECT_EQ(plan.keeps_source, w.keeps_source) << kind << " " << t.name;
      EXPECT_EQ(plan.memory.bytes(), 0u);
      // All but the rows read from the source is allocated, in whole cache lines.
      EXPECT_EQ(w.memory.bytes(), w.keeps_source ? 0 : (w.bytes + 63) / 64 * 64) << t.name;
      if (quant.of(t) != WeightQuant::none) {
        EXPECT_FALSE(w.keeps_source);
      }
    }
  }
}

}  // namespace
}  // namespace sluice
