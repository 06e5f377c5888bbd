#include "runtime/disk_content.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include <gtest/gtest.h>

namespace sluice {
namespace {

// Blocks on disk are those of one model, one format and one program.
TEST(DiskContent, DependsOnWhatTheBitsDependOn) {
  EngineOptions options;
  options.model = "random:smollm2-135m";
  std::string content = disk_content(options, KvType(DType::f16));
  EXPECT_EQ(content.size(), 64u);
  EXPECT_EQ(disk_content(options, KvType(DType::f16)), content);
  EXPECT_NE(disk_content(options, KvType(DType::i8, 32)), content);
  EXPECT_NE(disk_content(options, KvType(DType::f16), "a GPU"), content);
  EngineOptions other = options;
  other.random_seed = 2;
  EXPECT_NE(disk_content(other, KvType(DType::f16)), content);
  other = options, other.quantize = Quantize::w4;
  EXPECT_NE(disk_content(other, KvType(DType::f16)), content);
  other = options, other.scheduler.block_size = 32;
  EXPECT_NE(disk_content(other, KvType(DType::f16)), content);
  other = options, ++other.scheduler.max_len;
  EXPECT_NE(disk_content(other, KvType(DType::f16)), content);
  other = options, other.threads = 7, other.scheduler.budget = 1;
  EXPECT_EQ(disk_content(other, KvType(DType::f16)), content);
  other = options, other.model = SLUICE_SOURCE_DIR "/shapes";
  std::string folder = disk_content(other, KvType(DType::f16));
  other.model = SLUICE_SOURCE_DIR "/docs";
  EXPECT_NE(disk_content(other, KvType(DType::f16)), folder);
}

// What another machine's blocks are compared by: neither path nor time of the file.
TEST(DiskContent, SharedContentIsTheFilesOwn) {
  std::filesystem::path folder = testing::TempDir() + "shared-" + std::to_string(getpid());
  std::filesystem::create_directory(folder);
  std::string weights(size_t{3} << 20, 'w');
  auto content = [&](const char* name) {
    std::ofstream(folder / name) << weights;
    EngineOptions options;
    options.model = folder / name;
    return shared_content(options, KvType(DType::f16));
  };
  const std::string first = content("a.gguf");
  EXPECT_EQ(first.size(), 64u);
  EXPECT_EQ(content("b.gguf"), first);
  weights[size_t{2} << 20] = 'x';
  EXPECT_NE(content("b.gguf"), first);
  EngineOptions options;
  options.model = folder / "a.gguf";
  EXPECT_NE(shared_content(options, KvType(DType::i8, 32)), first);
  options.scheduler.group_windows = {0, 64};
  EXPECT_NE(shared_content(options, KvType(DType::f16)), first);
  std::filesystem::remove_all(folder);
}

TEST(DiskContent, DependsOnAllPartsOfASplitFile) {
  std::filesystem::path folder = testing::TempDir() + "split-" + std::to_string(getpid());
  std::filesystem::create_directory(folder);
  auto write = [&](const char* name, const char* text) { std::ofstream(folder / name) << text; };
  write("m-00001-of-00002.gguf", "a");
  write("m-00002-of-00002.gguf", "b");
  EngineOptions options;
  options.model = folder / "m-00001-of-00002.gguf";
  std::string content = disk_content(options, KvType(DType::f16));
  write("n-00002-of-00002.gguf", "another model");
  EXPECT_EQ(disk_content(options, KvType(DType::f16)), content);
  write("m-00002-of-00002.gguf", "other weights");
  EXPECT_NE(disk_content(options, KvType(DType::f16)), content);
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace sluice
