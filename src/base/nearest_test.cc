#include "base/nearest.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace sluice {
namespace {

TEST(Nearest, Distance) {
  EXPECT_EQ(edit_distance("", ""), 0u);
  EXPECT_EQ(edit_distance("abc", ""), 3u);
  EXPECT_EQ(edit_distance("smolm2", "smollm2"), 1u);
  EXPECT_EQ(edit_distance("SmolLM2", "smollm2"), 0u);
  EXPECT_EQ(edit_distance("smlolm2", "smollm2"), 1u);  // neighbours swapped
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3u);
}

TEST(Nearest, OnlyWhatIsNear) {
  std::vector<std::string> known = {"smollm2", "llama.gguf", "qwen2.5-0.5b", "qwen2.5-1.5b"};
  EXPECT_EQ(nearest("smolm2", known), "smollm2");
  EXPECT_EQ(nearest("lama.gguf", known), "llama.gguf");
  EXPECT_EQ(nearest("qwen2.5-15b", known), "qwen2.5-1.5b");
  EXPECT_EQ(nearest("llama", known), "llama.gguf");
  EXPECT_EQ(nearest("qwen", known), "");  // two begin so
  EXPECT_EQ(nearest("mistral", known), "");
  EXPECT_EQ(nearest("", known), "");
  EXPECT_EQ(nearest(std::string(100'000, 'x'), known), "");
}

}  // namespace
}  // namespace sluice
