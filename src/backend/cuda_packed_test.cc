#include "backend/cuda_packed.h"

#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "tensor/formats/all.h"

namespace sluice {
namespace {

constexpr Format kPackedFormats[] = {Format::q8_0, Format::q4_0, Format::q4_1, Format::iq4_nl,
                                     Format::q4_k, Format::q5_k, Format::q6_k};

// Every element comes out of the tiles as the format's own decoder has it, bit by bit, and what
// lies beyond the last row and column is zero.
TEST(CudaPacked, HoldsWhatTheFileHolds) {
  for (Format format : kPackedFormats) {
    for (auto [num_rows, blocks] : {std::pair{16, 2}, {1, 1}, {37, 3}}) {
      const FormatInfo& info = format_info(format);
      const int64_t rows = num_rows;
      const int64_t cols = int64_t{blocks} * info.block_elems;
      SCOPED_TRACE(testing::Message() << info.name << " " << rows << "x" << cols);
      std::mt19937 rng(7);
      std::normal_distribution<float> normal;
      std::vector<float> values(static_cast<size_t>(rows * cols)), want(values.size());
      for (float& v : values) v = normal(rng);
      std::vector<std::byte> raw(row_bytes(format, cols) * static_cast<size_t>(rows));
      info.encode(values.data(), raw.data(), rows * cols);
      info.decode(raw.data(), want.data(), rows * cols);

      const PackedShape shape(format, rows, cols);
      std::vector<uint8_t> packed(shape.bytes(), 0xee);
      int wrong = 0;
      with_packed_block(format, [&](auto block) {
        using Block = decltype(block);
        const PackedSource<Block> from{reinterpret_cast<const Block*>(raw.data()), rows, cols};
        for (int64_t r = 0; r < shape.row_tiles; ++r)
          for (int64_t t = 0; t < shape.tiles; ++t)
            for (int lane = 0; lane < kPackedLanes; ++lane)
              pack_tile(packed.data(), shape, from, r, r, t, lane);
        for (int64_t r = 0; r < shape.row_tiles * kPackedRows; ++r) {
          for (int64_t c = 0; c < shape.tiles * kPackedCols; ++c) {
            const float got = packed_value<Block::kFormat>(packed.data(), shape, r, c);
            const bool inside = r < rows && c < cols;
            wrong += got != (inside ? want[static_cast<size_t>(r * cols + c)] : 0);
          }
        }
      });
      EXPECT_EQ(wrong, 0);
    }
  }
}

TEST(CudaPacked, TakesAboutTheFilesBytes) {
  for (Format format : kPackedFormats) {
    SCOPED_TRACE(format_info(format).name);
    const auto file = static_cast<double>(row_bytes(format, 3584) * 4608);
    const auto packed = static_cast<double>(PackedShape(format, 4608, 3584).bytes());
    EXPECT_GE(packed, file);
    EXPECT_LE(packed, file * 1.03);
  }
  EXPECT_FALSE(is_packed(Format::bf16));
  EXPECT_FALSE(is_packed(Format::q2_k));
}

}  // namespace
}  // namespace sluice
