#include "server/response_store.h"

#include <gtest/gtest.h>

namespace sluice {
namespace {

StoredResponse stored(int key, size_t bytes) {
  return {key, std::string(bytes / 2, 'a'), std::string(bytes / 2, 'c')};
}

TEST(ResponseStore, EntriesBelongToTheirKey) {
  ResponseStore store(1 << 20);
  store.add("resp_1", {3, "answer", "talk"});
  EXPECT_EQ(store.find("resp_1", 4), nullptr);
  EXPECT_FALSE(store.erase("resp_1", 4));
  ASSERT_TRUE(store.find("resp_1", 3));
  EXPECT_EQ(store.find("resp_1", 3)->answer, "answer");
  EXPECT_GT(store.bytes(), 10U);
  EXPECT_TRUE(store.erase("resp_1", 3));
  EXPECT_EQ(store.find("resp_1", 3), nullptr);
  EXPECT_FALSE(store.erase("resp_1", 3));
  EXPECT_EQ(store.bytes(), 0U);
}

TEST(ResponseStore, TheLeastRecentlyUsedGoFirst) {
  ResponseStore store(100'000, 100'000);
  for (int i = 0; i < 3; ++i) store.add("r" + std::to_string(i), stored(-1, 30'000));
  EXPECT_TRUE(store.find("r0", -1));
  store.add("r3", stored(-1, 30'000));
  EXPECT_FALSE(store.find("r1", -1));
  EXPECT_TRUE(store.find("r0", -1) && store.find("r2", -1) && store.find("r3", -1));
  EXPECT_LE(store.bytes(), 100'000U);
  store.add("large", stored(-1, 200'000));
  EXPECT_FALSE(store.find("large", -1));
  EXPECT_TRUE(store.find("r0", -1));
}

TEST(ResponseStore, AKeyPushesOutItsOwn) {
  ResponseStore store(50'000, 100'000);
  store.add("other", stored(1, 30'000));
  for (int i = 0; i < 5; ++i) store.add("r" + std::to_string(i), stored(2, 20'000));
  EXPECT_TRUE(store.find("other", 1));
  EXPECT_TRUE(store.find("r4", 2) && store.find("r3", 2));
  EXPECT_FALSE(store.find("r2", 2));
}

}  // namespace
}  // namespace sluice
