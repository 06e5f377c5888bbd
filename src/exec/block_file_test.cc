// The file behind the disk tier: what was written comes back, and nothing else ever does.
#include "exec/block_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>

#include <gtest/gtest.h>

namespace sluice {
namespace {

constexpr int kFileBlock = 4;
constexpr size_t kBlockBytes = 40;
constexpr size_t kHeadBytes = 96, kLabelBytes = 56 + kFileBlock * sizeof(Token);

class BlockFileTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = (std::filesystem::temp_directory_path() / "sluice-blocks-XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    top_ = name;
    config_ = {top_ / "prefixes", std::string(64, 'a'), 2, kFileBlock, kBlockBytes};
  }
  void TearDown() override { std::filesystem::remove_all(top_); }

  BlockFile open() {
    Result<BlockFile> file = BlockFile::open(config_);
    EXPECT_TRUE(file) << file.error().message;
    return std::move(*file);
  }
  std::string why() {
    Result<BlockFile> file = BlockFile::open(config_);
    return file ? "" : file.error().message;
  }
  std::filesystem::path path() const { return config_.dir / "blocks-aaaaaaaaaaaaaaaa"; }
  std::string contents() const {
    std::ifstream in(path(), std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  void replace(const std::string& bytes) const {
    std::ofstream(path(), std::ios::binary)
        .write(bytes.data(), static_cast<ptrdiff_t>(bytes.size()));
  }

  // Record number k, wherever it is written.
  struct Record {
    PrefixKey key;
    std::vector<Token> tokens;
    std::vector<std::byte> block;
    BlockLabel label() const { return {key, tokens}; }
  };
  static Record record(int k) {
    Record r;
    r.key = {
        {static_cast<uint64_t>(k), ~static_cast<uint64_t>(k)}, k, 70u + static_cast<uint64_t>(k)};
    for (int t = 0; t < kFileBlock; ++t) r.tokens.push_back(1000 * k + t + 1);
    for (size_t b = 0; b < kBlockBytes; ++b)
      r.block.push_back(static_cast<std::byte>(1 + (b * 7 + static_cast<size_t>(k) * 31) % 255));
    return r;
  }
  // Whether the record is there; never as anything but itself.
  static bool found(BlockFile& file, int place, const Record& r) {
    std::vector<std::byte> block(kBlockBytes);
    Result<bool> read = file.read(place, r.label(), block);
    EXPECT_TRUE(read) << read.error().message;
    if (!read || !*read) return false;
    EXPECT_EQ(block, r.block);
    return true;
  }
  void write_both() {
    BlockFile file = open();
    for (int k : {1, 2}) ASSERT_TRUE(file.write(k, record(k).label(), record(k).block));
  }

  std::filesystem::path top_;
  BlockFileConfig config_;
};

TEST_F(BlockFileTest, RecordsOutliveTheProcess) {
  HashKey tenants{};
  {
    BlockFile file = open();
    tenants = file.tenant_key();
    EXPECT_TRUE(file.list().empty());
    EXPECT_FALSE(found(file, 1, record(1)));
  }
  write_both();
  BlockFile file = open();
  EXPECT_EQ(file.tenant_key(), tenants);
  std::vector<StoredBlock> all = file.list();
  ASSERT_EQ(all.size(), 2u);
  for (int k : {1, 2}) {
    const StoredBlock& b = all[static_cast<size_t>(k - 1)];
    EXPECT_EQ(b.place, k);
    EXPECT_EQ(b.key, record(k).key);
    EXPECT_EQ(b.tokens, record(k).tokens);
    EXPECT_TRUE(found(file, k, record(k)));
    EXPECT_FALSE(found(file, 3 - k, record(k))) << "a record in another's place";
  }
  Record other = record(1);
  other.key.tenant = 1;
  EXPECT_FALSE(found(file, 1, other));
  other = record(1), other.key.group = 9;
  EXPECT_FALSE(found(file, 1, other));
  other = record(1), other.tokens[3] = 5;
  EXPECT_FALSE(found(file, 1, other));
}

TEST_F(BlockFileTest, FilesAreTheOwnersAlone) {
  write_both();
  auto mode = [](const std::filesystem::path& p) {
    struct stat info {};
    EXPECT_EQ(stat(p.c_str(), &info), 0);
    return info.st_mode & 0777;
  };
  EXPECT_EQ(mode(config_.dir), 0700u);
  EXPECT_EQ(mode(config_.dir / "secret"), 0600u);
  EXPECT_EQ(mode(path()), 0600u);
  size_t num = 0;
  for (const auto& entry : std::filesystem::directory_iterator(config_.dir))
    num += !entry.path().empty();
  EXPECT_EQ(num, 2u) << "drafts are left behind";
  chmod(path().c_str(), 0640);
  EXPECT_NE(why().find("private"), std::string::npos);
  chmod(path().c_str(), 0600);
  chmod(config_.dir.c_str(), 0755);
  EXPECT_NE(why().find("chmod 700"), std::string::npos);
  chmod(config_.dir.c_str(), 0700);
  std::filesystem::remove(path());
  std::filesystem::create_symlink(top_ / "elsewhere", path());
  EXPECT_NE(why(), "") << "a link";
}

TEST_F(BlockFileTest, OneProcessAtATime) {
  BlockFile first = open();
  EXPECT_NE(why().find("in use"), std::string::npos);
}

TEST_F(BlockFileTest, OtherContentIsAnotherFilesAndOtherSizesEmptyIt) {
  write_both();
  config_.content = std::string(64, 'b');
  EXPECT_TRUE(open().list().empty());
  config_.content = std::string(16, 'a') + std::string(48, 'b');
  EXPECT_TRUE(open().list().empty()) << "the same name by chance";
  config_.content = std::string(64, 'a');
  write_both();
  config_.num_places = 1;
  EXPECT_EQ(open().list().size(), 1u) << "cut to its size";
  EXPECT_EQ(contents().size(), 2 * 4096u);
  config_.num_places = 5;
  EXPECT_EQ(open().list().size(), 1u);
  config_.block_bytes = kBlockBytes - 1;
  EXPECT_TRUE(open().list().empty());
}

// Without the secret nobody can make records.
TEST_F(BlockFileTest, AnotherSecretFindsNothing) {
  write_both();
  std::filesystem::remove(config_.dir / "secret");
  BlockFile file = open();
  EXPECT_TRUE(file.list().empty());
  EXPECT_FALSE(found(file, 1, record(1)));
}

TEST_F(BlockFileTest, ACutSecretIsSaid) {
  write_both();
  std::filesystem::resize_file(config_.dir / "secret", 31);
  EXPECT_NE(why().find("secret is cut off: remove it"), std::string::npos);
}

// Every offset of the head and of the records.
std::vector<size_t> offsets() {
  std::vector<size_t> all;
  for (size_t k = 0; k < kHeadBytes; ++k) all.push_back(k);
  for (size_t place : {4096u, 8192u}) {
    for (size_t k = 0; k < kLabelBytes + kBlockBytes; ++k) all.push_back(place + k);
  }
  return all;
}

TEST_F(BlockFileTest, CutAnywhereItHoldsWhatIsWhole) {
  write_both();
  const std::string whole = contents();
  for (size_t at : offsets()) {
    replace(whole.substr(0, at));
    BlockFile file = open();
    bool first = at >= 4096 + kLabelBytes + kBlockBytes;
    EXPECT_EQ(found(file, 1, record(1)), first) << at;
    EXPECT_FALSE(found(file, 2, record(2))) << at;
  }
}

TEST_F(BlockFileTest, AFlippedBitAnywhereIsAMiss) {
  write_both();
  const std::string whole = contents();
  for (size_t at : offsets()) {
    std::string bytes = whole;
    bytes[at] = static_cast<char>(bytes[at] ^ (1 << at % 8));
    replace(bytes);
    BlockFile file = open();
    EXPECT_EQ(found(file, 1, record(1)), at >= 8192) << at;
    EXPECT_EQ(found(file, 2, record(2)), at >= 4096 && at < 8192) << at;
    EXPECT_LE(file.list().size(), 2u);
  }
}

// A new record over an old one, stopped after any of its bytes: the block is written first.
TEST_F(BlockFileTest, AnOverwriteStoppedAnywhereIsOldOrNewOrAMiss) {
  write_both();
  const std::string before = contents();
  {
    BlockFile file = open();
    ASSERT_TRUE(file.write(1, record(3).label(), record(3).block));
  }
  const std::string after = contents();
  std::string bytes = before;
  for (size_t k = 0; k < kBlockBytes + kLabelBytes; ++k) {
    replace(bytes);
    BlockFile file = open();
    int now = found(file, 1, record(1)) + found(file, 1, record(3));
    EXPECT_EQ(now, k == 0 || bytes == after) << k;  // the last bytes of both may be the same
    EXPECT_TRUE(found(file, 2, record(2)));
    size_t at = k < kBlockBytes ? kLabelBytes + k : k - kBlockBytes;
    bytes[4096 + at] = after[4096 + at];
  }
  replace(bytes);
  BlockFile file = open();
  EXPECT_TRUE(found(file, 1, record(3)));
}

TEST_F(BlockFileTest, ADirectoryThatCannotBeMadeIsSaid) {
  std::ofstream(top_ / "file") << "x";
  config_.dir = top_ / "file" / "prefixes";
  EXPECT_NE(why(), "");
  config_.dir = top_ / "file";
  EXPECT_NE(why().find("not a directory"), std::string::npos);
  config_.dir.clear();
  EXPECT_NE(why().find("--prefix-disk-dir"), std::string::npos);
}

}  // namespace
}  // namespace sluice
