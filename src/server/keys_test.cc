#include "server/keys.h"

#include <sys/stat.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

namespace sluice {
namespace {

struct KeysTest : testing::Test {
  std::string path =
      std::filesystem::temp_directory_path() / ("sluice-keys-" + std::to_string(getpid()));

  void write(const std::string& text) {
    std::ofstream(path) << text;
    chmod(path.c_str(), 0600);
  }
  void TearDown() override { unlink(path.c_str()); }
};

TEST_F(KeysTest, ReloadKeepsWhatAKeyIsKnownBy) {
  write("key-number-one\nkey-number-two\n");
  Result<Keys> keys = Keys::read(path);
  ASSERT_TRUE(keys);
  EXPECT_TRUE(keys->needed());
  int two = keys->find("Bearer key-number-two");
  ASSERT_GE(two, 0);
  EXPECT_EQ(keys->find("", "key-number-two"), two);
  EXPECT_EQ(keys->find("", "Bearer key-number-two"), -1);
  EXPECT_EQ(keys->find("Bearer key-number-none", "key-number-two"), -1);
  EXPECT_EQ(keys->find("Basic eDp5", "key-number-two"), -1);
  uint64_t tenant = keys->tenant(two, "salt");
  const std::string owner = keys->owner(two);
  EXPECT_EQ(keys->find_owner(owner), two);
  EXPECT_EQ(keys->find_owner(""), std::nullopt);
  EXPECT_EQ(Keys().find_owner(""), -1);

  write("key-number-three\nkey-number-two\nkey-number-two\n");
  auto r = keys->reload();
  ASSERT_TRUE(r);
  EXPECT_EQ(r->num_keys, 2u);
  EXPECT_EQ(r->num_new, 1u);
  EXPECT_EQ(r->num_removed, 1u);
  EXPECT_EQ(keys->find("Bearer key-number-one"), -1);
  EXPECT_EQ(keys->find("Bearer key-number-two"), two);
  EXPECT_EQ(keys->tenant(two, "salt"), tenant);
  EXPECT_EQ(keys->owner(two), owner);
  EXPECT_EQ(keys->find_owner(keys->owner(0)), std::nullopt);  // it was removed
  int three = keys->find("Bearer key-number-three");
  ASSERT_GE(three, 0);
  EXPECT_LT(static_cast<size_t>(three), keys->num_indices());
  EXPECT_NE(keys->tenant(0, ""), keys->tenant(three, ""));  // an index is one key's for ever
}

TEST_F(KeysTest, AFileAtFaultChangesNothing) {
  write("key-number-one\n");
  Result<Keys> keys = Keys::read(path);
  ASSERT_TRUE(keys);
  for (const char* text : {"", "# nothing\n", "key-number-two\nshort\n"}) {
    write(text);
    EXPECT_FALSE(keys->reload()) << text;
    EXPECT_EQ(keys->find("Bearer key-number-one"), 0);
    EXPECT_EQ(keys->find("Bearer key-number-two"), -1);
  }
  unlink(path.c_str());
  EXPECT_FALSE(keys->reload());
  EXPECT_EQ(keys->find("Bearer key-number-one"), 0);
}

TEST_F(KeysTest, NoneAreNeededByDefault) {
  Keys keys;
  EXPECT_FALSE(keys.needed());
  EXPECT_EQ(keys.num_indices(), 1u);
  EXPECT_EQ(keys.find("Bearer key-number-one"), -1);
  EXPECT_EQ(keys.tenant(-1, "a"), keys.tenant(-1, "a"));
}

}  // namespace
}  // namespace sluice
