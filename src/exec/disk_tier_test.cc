// The disk's thread: blocks come back in any later step, and a disk that fails is done without.
#include "exec/disk_tier.h"

#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <filesystem>
#include <map>
#include <stdexcept>
#include <string>

#include <gtest/gtest.h>

namespace sluice {
namespace {

constexpr int kTierBlock = 4;
constexpr size_t kTierBytes = 64;

class DiskTierTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = (std::filesystem::temp_directory_path() / "sluice-tier-XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    top_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(top_); }
  BlockFile open() const {
    return std::move(
        BlockFile::open({top_ / "d", std::string(64, 'a'), 8, kTierBlock, kTierBytes}).value());
  }
  BlockLabel label(uint64_t k) const { return {{{k, k}, 0, 0}, tokens_}; }
  static bool write(DiskTier& disk, int place, const BlockLabel& label, int value) {
    return disk.write(place, label, [&](std::byte* memory) {
      std::fill_n(memory, kTierBytes, static_cast<std::byte>(value));
    });
  }
  // What came back, by transfer: the first byte, or -1.
  static std::map<TransferId, int> collect(DiskTier& disk, TransferId oldest = 0) {
    std::map<TransferId, int> got;
    disk.collect(oldest, [&](TransferId id, BlockId block, const std::byte* memory) {
      EXPECT_EQ(block, static_cast<BlockId>(id + 100));
      got[id] = memory ? static_cast<int>(*memory) : -1;
    });
    return got;
  }

  std::filesystem::path top_;
  std::vector<Token> tokens_ = {1, 2, 3, 4};
};

TEST_F(DiskTierTest, BlocksComeBack) {
  {
    DiskTier disk(open());
    EXPECT_TRUE(write(disk, 1, label(1), 11));
    disk.read(1, label(1), 5, 105);
    disk.read(2, label(2), 6, 106);
    disk.flush();
    EXPECT_EQ(collect(disk), (std::map<TransferId, int>{{5, 11}, {6, -1}}));
    EXPECT_TRUE(collect(disk).empty()) << "each once";
    for (int k = 0; k < 3; ++k) EXPECT_TRUE(write(disk, 2, label(2), 20 + k));
  }
  DiskTier disk(open());  // the first one's end has written all
  disk.read(2, label(2), 7, 107);
  disk.wait(std::chrono::minutes(1));
  EXPECT_EQ(collect(disk), (std::map<TransferId, int>{{7, 22}}));
  disk.wait(std::chrono::minutes(1));  // nothing is asked for: at once
}

TEST_F(DiskTierTest, MemoryComesBackFromACallerThatThrows) {
  DiskTier disk(open());
  EXPECT_TRUE(write(disk, 1, label(1), 11));
  // More in all than there is memory for at once.
  TransferId id = 0;
  for (int round = 0; round < 30; ++round) {
    for (int k = 0; k < 50; ++k, ++id) disk.read(1, label(1), id, static_cast<BlockId>(id + 100));
    disk.flush();
    std::byte* held = nullptr;
    auto take = [&](TransferId, BlockId, std::byte* memory) {
      if (held) throw std::runtime_error("the second one");
      held = memory;
    };
    EXPECT_THROW(disk.collect_held(0, take), std::runtime_error);
    ASSERT_NE(held, nullptr);
    EXPECT_EQ(*held, std::byte{11});
    disk.return_read(held);
  }
  disk.wait(std::chrono::minutes(1));  // nothing is asked for any more: at once
  EXPECT_TRUE(collect(disk).empty());
}

TEST_F(DiskTierTest, ReadsThatNobodyWantsAnyMoreAreDropped) {
  DiskTier disk(open());
  EXPECT_TRUE(write(disk, 1, label(1), 11));
  // More than there is memory for at once.
  for (TransferId id = 1; id <= 600; ++id)
    disk.read(1, label(1), id, static_cast<BlockId>(id + 100));
  std::map<TransferId, int> got;
  while (got.size() < 11) {
    disk.wait(std::chrono::minutes(1));
    got.merge(collect(disk, 590));
  }
  EXPECT_EQ(got.begin()->first, 590u);
  for (const auto& [id, value] : got) EXPECT_EQ(value, 11);
}

TEST_F(DiskTierTest, AFullDiskTurnsItOff) {
  DiskTier disk(open());
  EXPECT_TRUE(write(disk, 1, label(1), 11));
  disk.flush();
  auto before = signal(SIGXFSZ, SIG_IGN);
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &limit), 0);
  rlimit small = limit;
  small.rlim_cur = 4096 + 4096;
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  EXPECT_TRUE(write(disk, 3, label(3), 33)) << "not known yet";
  disk.flush();
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
  signal(SIGXFSZ, before);
  EXPECT_FALSE(write(disk, 4, label(4), 44));
  disk.read(1, label(1), 5, 105);
  disk.wait(std::chrono::minutes(1));
  EXPECT_EQ(collect(disk), (std::map<TransferId, int>{{5, -1}}));
}

}  // namespace
}  // namespace sluice
