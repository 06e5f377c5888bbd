#include "tensor/file_watch.h"

#include <sys/stat.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "tensor/mapped_file.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

struct FileWatch : testing::Test {
  fs::path folder = fs::temp_directory_path() / ("sluice-watch-" + std::to_string(getpid()));
  std::string path = folder / "model";

  void SetUp() override {
    fs::create_directory(folder);
    write(path, 'a');
  }
  void TearDown() override { fs::remove_all(folder); }
  static void write(const std::string& to, char c) { std::ofstream(to) << std::string(20'000, c); }
  // "what" of the only change; empty without one.
  std::string change(bool in_place) {
    auto all = changed_files();
    if (all.empty()) return {};
    EXPECT_EQ(all.size(), 1u);
    EXPECT_EQ(all[0].path, path);
    EXPECT_EQ(all[0].in_place, in_place);
    return all[0].what;
  }
};

TEST_F(FileWatch, TellsChangesInPlaceFromReplacement) {
  auto file = MappedFile::open(path);
  ASSERT_TRUE(file);
  file->prefetch(0, 5000);
  EXPECT_EQ(change(true), "");
  fs::rename(path, path + ".old");
  EXPECT_EQ(change(false), "was removed");
  write(path, 'b');
  EXPECT_EQ(change(false), "was replaced");
  EXPECT_EQ(file->bytes()[0], std::byte{'a'});
  fs::rename(path + ".old", path);
  EXPECT_EQ(change(true), "");
  fs::last_write_time(path, fs::last_write_time(path) + std::chrono::nanoseconds(1));
  EXPECT_EQ(change(true), "was written to");
  std::ofstream(path, std::ios::app) << "more";
  EXPECT_EQ(change(true), "has grown");
  fs::resize_file(path, 100);
  EXPECT_EQ(change(true), "was truncated");
}

TEST_F(FileWatch, AsksOnlyForWhatIsReadInPlace) {
  auto file = MappedFile::open(path);
  ASSERT_TRUE(file);
  fs::resize_file(path, 100);
  EXPECT_EQ(change(true), "");
  file->prefetch(0, 5000);
  file->prefetch(8192, 5000);
  file->drop(0, 5000);
  EXPECT_EQ(change(true), "was truncated");
  file->drop(8192, 5000);
  EXPECT_EQ(change(true), "");
}

TEST_F(FileWatch, NamesTheFileThatFaulted) {
  auto read_past_end = [&] {
    catch_file_faults();
    auto file = MappedFile::open(path);
    if (!file) std::exit(3);
    fs::resize_file(path, 0);
    volatile std::byte b = file->bytes()[10'000];
    static_cast<void>(b);
    std::exit(4);
  };
  EXPECT_EXIT(read_past_end(), testing::ExitedWithCode(1),
              "^sluice: model file .*/model was truncated or cannot be read any more: [^\n]*\n$");
}

TEST_F(FileWatch, LeavesOtherFaultsAlone) {
  auto fault = [&] {
    std::signal(SIGBUS, [](int) { _exit(5); });  // as it was before
    catch_file_faults();
    auto file = MappedFile::open(path);
    std::raise(SIGBUS);
    std::exit(4);
  };
  EXPECT_EXIT(fault(), testing::ExitedWithCode(5), "");
}

}  // namespace
}  // namespace sluice
