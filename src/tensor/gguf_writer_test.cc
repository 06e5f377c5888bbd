#include "tensor/gguf_writer.h"

#include <unistd.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>

#include <gtest/gtest.h>

#include "base/str.h"
#include "tensor/formats/all.h"
#include "tensor/gguf.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

class GgufWriterTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / strf("sluice-writer-%d", static_cast<int>(getpid()));
    fs::remove_all(folder_);
    fs::create_directories(folder_);
    path_ = (folder_ / "model.gguf").string();
  }
  void TearDown() override { fs::remove_all(folder_); }

  size_t num_files() const {
    return static_cast<size_t>(std::distance(fs::directory_iterator(folder_), {}));
  }

  fs::path folder_;
  std::string path_;
};

TensorInfo tensor(std::string name, Format format, int64_t rows, int64_t cols) {
  return {std::move(name), format, rows, cols, row_bytes(format, cols) * static_cast<size_t>(rows)};
}

std::vector<std::byte> random_bytes(size_t num, std::mt19937& rng) {
  std::vector<std::byte> out(num);
  for (std::byte& b : out) b = static_cast<std::byte>(rng());
  return out;
}

Meta all_kinds() {
  Meta meta;
  meta.set("general.architecture", std::string("llama"));
  meta.set("a.flag", true);
  meta.set("a.count", uint64_t{7});
  meta.set("a.signed_count", int64_t{8});
  meta.set("a.huge", uint64_t{1} << 40);
  meta.set("a.negative", int64_t{-3});
  meta.set("a.very_negative", -(int64_t{1} << 40));
  meta.set("a.fraction", 0.25);
  meta.set("a.text", std::string("one\0two\n", 8));
  meta.set("a.empty", std::string());
  meta.set("a.ints", std::vector<int64_t>{1, -2, 3});
  meta.set("a.wide_ints", std::vector<int64_t>{1, int64_t{1} << 40});
  meta.set("a.no_ints", std::vector<int64_t>{});
  meta.set("a.floats", std::vector<float>{0.5f, -1, 3e38f});
  meta.set("a.strings", std::vector<std::string>{"", "b", "\xc3\xa9"});
  meta.set("a.bools", std::vector<bool>{true, false, true});
  meta.set("tokenizer.ggml.precompiled_charsmap", std::vector<int64_t>{0, 255, 128});
  return meta;
}

// Integers may change their kind (signed counts become unsigned); their values do not.
void expect_same_meta(const Meta& want, const Meta& got) {
  ASSERT_EQ(want.all().size(), got.all().size());
  for (const auto& [key, value] : want.all()) {
    ASSERT_TRUE(got.has(key)) << key;
    if (want.integer(key)) {
      EXPECT_EQ(want.integer(key), got.integer(key)) << key;
    } else {
      EXPECT_TRUE(value == *got.find(key)) << key;
    }
  }
}

TEST_F(GgufWriterTest, OurReaderReadsItBack) {
  for (int64_t alignment : {0, 8, 64, 4096}) {
    std::mt19937 rng(1);
    Meta meta = all_kinds();
    if (alignment) meta.set("general.alignment", alignment);
    const std::vector<TensorInfo> tensors = {
        tensor("norm", Format::f32, 1, 5), tensor("half", Format::f16, 3, 7),
        tensor("blocks", Format::q4_k, 2, 512), tensor("more", Format::q8_0, 5, 32)};
    std::vector<std::byte> all;
    auto writer = GgufWriter::create(path_, meta, tensors, true);
    ASSERT_TRUE(writer) << writer.error().message;
    for (const TensorInfo& t : tensors) {
      const auto bytes = random_bytes(t.bytes, rng);
      all.insert(all.end(), bytes.begin(), bytes.end());
    }
    // In pieces that do not know where tensors end.
    for (size_t at = 0; at < all.size(); at += 13) {
      const size_t n = std::min<size_t>(13, all.size() - at);
      ASSERT_TRUE(writer->append({all.data() + at, n}));
    }
    ASSERT_TRUE(writer->finish());
    EXPECT_EQ(fs::file_size(path_), writer->size());
    EXPECT_EQ(num_files(), 1u);

    auto model = open_gguf(path_);
    ASSERT_TRUE(model) << model.error().message;
    expect_same_meta(meta, (*model)->meta());
    size_t at = 0;
    for (const TensorInfo& t : tensors) {
      const TensorInfo* got = (*model)->find(t.name);
      ASSERT_NE(got, nullptr);
      EXPECT_EQ(got->format, t.format);
      EXPECT_EQ(got->rows, t.rows);
      EXPECT_EQ(got->cols, t.cols);
      const auto data = (*model)->data(*got);
      ASSERT_EQ(data.size(), t.bytes);
      EXPECT_EQ(std::memcmp(data.data(), all.data() + at, t.bytes), 0) << t.name;
      at += t.bytes;
    }
  }
}

TEST_F(GgufWriterTest, MetadataAlone) {
  auto writer = GgufWriter::create(path_, all_kinds(), {}, false);
  ASSERT_TRUE(writer);
  ASSERT_TRUE(writer->finish());
  auto model = open_gguf(path_);
  ASSERT_TRUE(model) << model.error().message;
  expect_same_meta(all_kinds(), (*model)->meta());
}

TEST_F(GgufWriterTest, UnfinishedLeavesNothing) {
  std::ofstream(path_) << "old";
  {
    auto writer = GgufWriter::create(path_, all_kinds(), {tensor("x", Format::f32, 1, 5)}, true);
    ASSERT_TRUE(writer);
    EXPECT_EQ(num_files(), 2u);
  }
  EXPECT_EQ(num_files(), 1u);
  EXPECT_EQ(fs::file_size(path_), 3u);
}

TEST_F(GgufWriterTest, Refusals) {
  auto says = [&](const std::string& path, bool overwrite, const char* part) {
    auto w = GgufWriter::create(path, all_kinds(), {tensor("x", Format::f32, 1, 5)}, overwrite);
    ASSERT_FALSE(w);
    EXPECT_NE(w.error().message.find(part), std::string::npos) << w.error().message;
  };
  std::ofstream(path_) << "old";
  says(path_, false, "exists");
  says(folder_.string(), true, "is a folder");
  says((folder_ / "none" / "x.gguf").string(), false, "No such file");
  says((folder_ / "model.gguf" / "x").string(), false, "Not a directory");
  EXPECT_EQ(num_files(), 1u);
  Meta bad = all_kinds();
  bad.set("general.alignment", uint64_t{48});
  EXPECT_FALSE(GgufWriter::create(path_, bad, {}, true));
}

TEST_F(GgufWriterTest, TooLargeForAnyDiskIsSaidBeforeWriting) {
  auto w = GgufWriter::create(
      path_, all_kinds(), {tensor("x", Format::f32, int64_t{1} << 30, int64_t{1} << 22)}, false);
  ASSERT_FALSE(w);
  EXPECT_EQ(w.error().code, 500);
  EXPECT_NE(w.error().message.find("free"), std::string::npos) << w.error().message;
  EXPECT_EQ(num_files(), 0u);
}

}  // namespace
}  // namespace sluice
