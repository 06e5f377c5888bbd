#include "backend/gemm_choices.h"

#include <unistd.h>

#include <filesystem>
#include <string>

#include <gtest/gtest.h>

namespace sluice {
namespace {

GemmKey key_of(int64_t rows, int bucket) {
  return {.rows = rows,
          .cols = 4096,
          .bucket = bucket,
          .type = DType::f8,
          .out = DType::f32,
          .bias = true,
          .wide = true};
}

GemmChoices some_choices() {
  GemmChoices c;
  c.set(key_of(1024, 1), {GemmKernel::skinny, 1, {}, 3.5F});
  c.set(key_of(1024, 16), {GemmKernel::narrow, 4, {}, 4.25F});
  c.set(key_of(1024, 32), {GemmKernel::tall, 1, {}, 5});
  c.set(key_of(1024, 512), {GemmKernel::cublas, 1, {1, 2, 3, 4, 5, 6, 7, UINT64_MAX}, 60.125F});
  return c;
}

TEST(GemmChoices, ATextGivesTheSameChoices) {
  const GemmChoices written = some_choices();
  GemmChoices read;
  read.add(written.text());
  EXPECT_EQ(read.size(), 4U);
  for (int bucket : {1, 16, 32, 512}) {
    ASSERT_NE(read.find(key_of(1024, bucket)), nullptr) << bucket;
    EXPECT_EQ(*read.find(key_of(1024, bucket)), *written.find(key_of(1024, bucket))) << bucket;
  }
  EXPECT_EQ(read.find(key_of(1025, 1)), nullptr);
  EXPECT_EQ(read.text(), written.text());
}

TEST(GemmChoices, TypesAndCodesAreToldApart) {
  GemmChoices written, read;
  GemmKey int8 = key_of(1024, 256);
  int8.type = DType::i8, int8.out = DType::bf16;
  written.set(int8, {GemmKernel::wide, 2, {}, 7});
  GemmKey coded = key_of(1024, 1);
  coded.coded = true;
  written.set(coded, {GemmKernel::narrow, 2, {}, 5});
  read.add(written.text());
  EXPECT_EQ(read.find(key_of(1024, 256)), nullptr);
  EXPECT_EQ(read.find(key_of(1024, 1)), nullptr);
  for (const GemmKey& key : {int8, coded}) {
    ASSERT_NE(read.find(key), nullptr);
    EXPECT_EQ(*read.find(key), *written.find(key));
  }
}

TEST(GemmChoices, OnlyTimedChoicesAreWritten) {
  GemmChoices c = some_choices();
  GemmKey refused = key_of(1024, 1);
  refused.cublas_only = true;
  c.set(refused, {});
  EXPECT_EQ(c.find(refused)->kernel, GemmKernel::cublas);
  EXPECT_EQ(c.find(key_of(1024, 1))->kernel, GemmKernel::skinny);
  EXPECT_EQ(c.text(), some_choices().text());
}

TEST(GemmChoices, OtherVersionsAreIgnored) {
  const std::string text = some_choices().text();
  const size_t line = text.find('\n');
  const std::string rest = text.substr(line);
  for (const std::string& first :
       {std::string("sluice-gemm ") + std::to_string(GemmChoices::kVersion - 1),
        std::string("sluice-gemm ") + std::to_string(GemmChoices::kVersion + 1),
        std::string("sluice-gemm"), std::string()}) {
    GemmChoices c;
    c.add(first + rest);
    EXPECT_EQ(c.size(), 0U) << "'" << first << "'";
  }
  // As files without a version line were written.
  GemmChoices c;
  c.add("1024 4096 1 3 0 1 1 -1 3.5 0 0 0 0 0 0 0 0\n");
  EXPECT_EQ(c.size(), 0U);
}

TEST(GemmChoices, LinesThatCannotBeReadAreSkipped) {
  const std::string first = "sluice-gemm " + std::to_string(GemmChoices::kVersion) + "\n";
  const std::string algo = " 0 0 0 0 0 0 0 0";
  for (const std::string& line : {
           std::string("1024 4096 1 f8 f32 1 1 0 skinny 1 3.5"),            // no algorithm
           "1024 4096 1 f8 f32 1 1 0 skinny 1 3.5" + algo + " 0",           // a word too many
           "1024 4096 1 f9 f32 1 1 0 skinny 1 3.5" + algo,                  // no such type
           "1024 4096 1 f8 f32 1 1 0 thin 1 3.5" + algo,                    // no such kernel
           "1024 4096 1 f8 f32 1 1 0 narrow 5 3.5" + algo,                  // no such splits
           "1024 4096 1 f8 f32 1 1 0 narrow 16 3.5" + algo,                 // too many splits
           "1024 4096 1 f8 f32 1 1 0 skinny 2 3.5" + algo,                  // skinny has none
           "1024 4096 1 f8 f32 1 1 0 skinny 1 0" + algo,                    // not timed
           "1024 4096 1 f8 f32 1 1 0 skinny 1 -2" + algo,                   //
           "99999999999999999999 4096 1 f8 f32 1 1 0 skinny 1 3.5" + algo,  // too large
       }) {
    GemmChoices c;
    c.add(first + line + "\n1024 4096 2 f8 f32 1 1 0 skinny 1 3.5" + algo + "\n");
    EXPECT_EQ(c.size(), 1U) << line;
    EXPECT_NE(c.find(key_of(1024, 2)), nullptr) << line;
  }
}

TEST(GemmChoices, AFileIsReplacedWhole) {
  const std::filesystem::path dir =
      std::filesystem::path(testing::TempDir()) / ("gemm_choices_" + std::to_string(getpid()));
  const std::filesystem::path path = dir / "deep" / "choices.txt";
  GemmChoices none;
  none.load(path);
  EXPECT_EQ(none.size(), 0U);
  some_choices().save(path);
  GemmChoices read;
  read.load(path);
  EXPECT_EQ(read.text(), some_choices().text());
  size_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(path.parent_path()))
    files += entry.is_regular_file();
  EXPECT_EQ(files, 1U);
  std::filesystem::remove_all(dir);
}

}  // namespace
}  // namespace sluice
