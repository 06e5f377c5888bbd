#include "server/batch_store.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace sluice {
namespace {

namespace fs = std::filesystem;

struct BatchStoreTest : testing::Test {
  BatchStoreTest()
      : dir(fs::temp_directory_path() / ("batch-store-" + std::to_string(::getpid()))) {
    fs::remove_all(dir);
  }
  ~BatchStoreTest() override { fs::remove_all(dir); }

  std::unique_ptr<BatchStore> open(BatchLimits limits = {}) const {
    auto store = BatchStore::open(dir, limits);
    EXPECT_TRUE(store) << store.error().message;
    return std::move(*store);
  }
  static FileRecord file(const std::string& id, const std::string& owner = "a") {
    FileRecord f;
    f.id = id, f.owner = owner, f.filename = "x", f.purpose = "batch";
    f.created_at = 5, f.expires_at = 10;
    return f;
  }
  static BatchRecord batch(const std::string& id, int64_t created = 1) {
    BatchRecord b;
    b.id = id, b.owner = "a", b.endpoint = "/v1/completions", b.input_file = "file-1";
    b.output_file = "file-2", b.error_file = "file-3", b.created_at = created;
    return b;
  }
  fs::path dir;
};

TEST_F(BatchStoreTest, OutlivesTheProcess) {
  BatchRecord b = batch("batch_1");
  b.metadata = json::object{{"k", "v"}};
  b.become(BatchStatus::in_progress, 7);
  b.problem = "p", b.problem_code = "c", b.total = 9;
  {
    auto store = open();
    ASSERT_TRUE(store->add_file(file("file-1"), "content"));
    ASSERT_TRUE(store->add_batch(b));
    EXPECT_FALSE(BatchStore::open(dir, {}));  // one process at a time
  }
  std::ofstream(dir / "files" / "temp-1") << "half";
  std::ofstream(dir / "files" / "file-9") << "no record";
  std::ofstream(dir / "files" / "thesis.txt") << "somebody's own";
  std::ofstream(dir / "batches" / "temp-notes") << "likewise";
  fs::copy_file(dir / "files" / "file-1.json", dir / "files" / "file-8.json");  // no content, id
  auto store = open();
  const auto f = store->file("file-1", "a");
  ASSERT_TRUE(f);
  EXPECT_EQ(f->bytes, 7u);
  EXPECT_FALSE(store->file("file-1", "b"));
  EXPECT_EQ(store->files("a").size(), 1u);
  EXPECT_FALSE(fs::exists(dir / "files" / "temp-1"));
  EXPECT_FALSE(fs::exists(dir / "files" / "file-9"));
  EXPECT_TRUE(fs::exists(dir / "files" / "thesis.txt"));
  EXPECT_TRUE(fs::exists(dir / "batches" / "temp-notes"));
  const auto again = store->batch("batch_1", "a");
  ASSERT_TRUE(again);
  EXPECT_EQ(stored_text(*again), stored_text(b));
  EXPECT_EQ(plain_json(batch_json(*again)), plain_json(batch_json(b)));
}

TEST_F(BatchStoreTest, IsBounded) {
  auto store = open({.bytes = 100, .files = 8, .batches = 8, .shared = true});
  EXPECT_EQ(store->add_file(file("file-0"), std::string(26, 'x')).error().code, 413);
  ASSERT_TRUE(store->add_file(file("file-1"), std::string(10, 'x')));
  ASSERT_TRUE(store->add_file(file("file-2"), std::string(10, 'x')));
  EXPECT_EQ(store->add_file(file("file-3"), "x").error().code, 429);  // a quarter of eight
  ASSERT_TRUE(store->add_file(file("file-3", "b"), std::string(25, 'x')));
  EXPECT_FALSE(store->reserve(56));
  ASSERT_TRUE(store->reserve(55));
  EXPECT_EQ(store->add_file(file("file-4", "c"), "x").error().code, 413);
  store->unreserve(55);
  EXPECT_TRUE(store->add_file(file("file-4", "c"), "x"));
  EXPECT_TRUE(store->erase_file("file-1", "a"));
  EXPECT_EQ(store->erase_file("file-1", "a").error().code, 404);
  EXPECT_TRUE(store->add_file(file("file-5"), "x"));
}

TEST_F(BatchStoreTest, OldBatchesAreForgotten) {
  auto store = open({.batches = 2});
  ASSERT_TRUE(store->add_batch(batch("batch_1", 1)));
  ASSERT_TRUE(store->add_batch(batch("batch_2", 2)));
  EXPECT_EQ(store->add_batch(batch("batch_3", 3)).error().code, 429);
  BatchRecord over = batch("batch_2", 2);
  over.become(BatchStatus::completed, 5);
  ASSERT_TRUE(store->update(over));
  EXPECT_TRUE(store->add_batch(batch("batch_3", 3)));
  EXPECT_FALSE(store->batch("batch_2", "a"));
  EXPECT_EQ(store->unfinished().size(), 2u);
}

TEST_F(BatchStoreTest, AnUpdateDoesNotUndoACancellation) {
  auto store = open();
  BatchRecord b = batch("batch_1");
  ASSERT_TRUE(store->add_batch(b));
  EXPECT_EQ(store->cancel("batch_1", "b", 3).error().code, 404);
  ASSERT_TRUE(store->cancel("batch_1", "a", 3));
  b.become(BatchStatus::in_progress, 4);
  ASSERT_TRUE(store->update(b));
  EXPECT_TRUE(store->cancelling("batch_1"));
  b.become(BatchStatus::cancelled, 5);
  ASSERT_TRUE(store->update(b));
  EXPECT_FALSE(store->cancelling("batch_1"));
  EXPECT_EQ(store->cancel("batch_1", "a", 6).error().code, 409);
  EXPECT_EQ(batch_json(*store->batch("batch_1", "a"))["cancelling_at"], 3);
}

TEST_F(BatchStoreTest, FilesExpireUnlessABatchNeedsThem) {
  auto store = open();
  ASSERT_TRUE(store->add_file(file("file-1"), "x"));
  BatchRecord b = batch("batch_1");
  ASSERT_TRUE(store->add_batch(b));
  EXPECT_EQ(store->erase_file("file-1", "a").error().code, 409);
  store->expire(10);
  EXPECT_TRUE(store->file("file-1", "a"));
  b.become(BatchStatus::failed, 6);
  ASSERT_TRUE(store->update(b));
  store->expire(9);
  EXPECT_TRUE(store->file("file-1", "a"));
  store->expire(10);
  EXPECT_FALSE(store->file("file-1", "a"));
}

TEST(BatchRecord, BadTextIsRefused) {
  const std::string good = stored_text(BatchStoreTest::batch("batch_1"));
  EXPECT_TRUE(stored_batch(good));
  for (size_t n = 0; n < good.size(); ++n) EXPECT_FALSE(stored_batch(good.substr(0, n)));
  for (const char* bad : {"{}", "[]", "1"}) {
    EXPECT_FALSE(stored_batch(bad));
    EXPECT_FALSE(stored_file(bad));
  }
}

}  // namespace
}  // namespace sluice
