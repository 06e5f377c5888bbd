#include "tensor/safetensors.h"

#include <gtest/gtest.h>

#include "tensor/safetensors_builder.h"

namespace sluice {
namespace {

using B = SafetensorsBuilder;

Result<std::vector<SafetensorsEntry>> parse(const std::string& file) {
  return parse_safetensors_header({reinterpret_cast<const std::byte*>(file.data()), file.size()});
}

void expect_error(const std::string& file, const std::string& part) {
  auto r = parse(file);
  ASSERT_FALSE(r) << "accepted; expected: " << part;
  EXPECT_NE(r.error().message.find(part), std::string::npos) << r.error().message;
  EXPECT_EQ(r.error().message.find('\n'), std::string::npos);
}

std::string header_of(std::string_view entries, std::string_view data = "") {
  return B::with_header("{" + std::string(entries) + "}", data);
}

TEST(Safetensors, ReadsEveryTypeAndShape) {
  const std::string file = B().tensor("a", "F64", {2}, std::string(16, 'a'))
                               .tensor("b", "BF16", {3, 2}, std::string(12, 'b'))
                               .tensor("empty", "F32", {0, 5}, "")
                               .tensor("scalar", "I64", {}, std::string(8, 's'))
                               .tensor("c", "BOOL", {1, 1, 3}, std::string(3, 'c'))
                               .build();
  auto r = parse(file);
  ASSERT_TRUE(r) << r.error().message;
  ASSERT_EQ(r->size(), 5u);
  size_t at = file.size() - 39;
  for (const auto& [name, bytes] : std::vector<std::pair<std::string, size_t>>{
           {"a", 16}, {"b", 12}, {"empty", 0}, {"scalar", 8}, {"c", 3}}) {
    const auto e =
        std::find_if(r->begin(), r->end(), [&, n = name](const auto& x) { return x.name == n; });
    ASSERT_NE(e, r->end());
    EXPECT_EQ(e->bytes, bytes);
    EXPECT_EQ(e->offset, at);
    at += bytes;
  }
  EXPECT_EQ((*r)[1].shape, (std::vector<int64_t>{3, 2}));
  EXPECT_EQ((*r)[1].type, SafetensorsType::bf16);
  EXPECT_STREQ(type_name(SafetensorsType::boolean), "BOOL");
  EXPECT_EQ(type_bytes(SafetensorsType::u16), 2u);
}

TEST(Safetensors, MetadataAndNoTensors) {
  EXPECT_TRUE(parse(header_of(R"("__metadata__":{"format":"pt"})")));
  EXPECT_TRUE(parse(header_of("")));
  expect_error(header_of(R"("__metadata__":{"format":1})"), "__metadata__");
  expect_error(header_of(R"("__metadata__":[])"), "__metadata__");
}

TEST(Safetensors, RefusesHeadersThatDoNotFit) {
  expect_error("", "too short");
  expect_error("1234567", "too short");
  std::string file = B().tensor("a", "F32", {1}, "1234").build();
  file.resize(file.size() - 1);
  expect_error(file, "tensor 'a' ends at byte 4 of 3: the file is cut short");
  file.resize(20);
  expect_error(file, "go past the end of the file");
  expect_error(std::string(8, '\xff') + "{}", "not a safetensors file");
  expect_error("version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "Git LFS pointer");
  expect_error(B::with_header("", ""), "invalid JSON");
  expect_error(B::with_header("[]", ""), "not a JSON object");
  expect_error(B::with_header("{\"a\":", ""), "invalid JSON");
  expect_error(B::with_header("{\"\xff\":1}", ""), "invalid JSON");
}

TEST(Safetensors, RefusesBadEntries) {
  expect_error(header_of(R"("a":1)"), "tensor 'a' has no dtype");
  expect_error(header_of(R"("a":{"dtype":"F32","shape":[1]})", "1234"), "tensor 'a' has no dtype");
  expect_error(header_of(R"("a":{"dtype":"F32","shape":[1],"data_offsets":[0]})", "1234"),
               "tensor 'a' has no dtype");
  expect_error(header_of(R"("a":{"dtype":"F8_E8M0","shape":[1],"data_offsets":[0,1]})", "1"),
               "tensor 'a' is of type 'F8_E8M0', which is not supported");
  expect_error(header_of(R"("a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]})", "1234"),
               "impossible shape");
  expect_error(header_of(R"("a":{"dtype":"F32","shape":[1.5],"data_offsets":[0,4]})", "1234"),
               "impossible shape");
  expect_error(
      header_of(R"("a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]})"),
      "overflows");
  expect_error(
      header_of(R"("a":{"dtype":"F32","shape":[1,1,1,1,1,1,1,1,1],"data_offsets":[0,4]})", "1234"),
      "more than 8 dimensions");
  expect_error(header_of(R"("a":{"dtype":"F32","shape":[1],"data_offsets":[4,0]})", "1234"),
               "impossible data_offsets");
  expect_error(header_of(R"("a":{"dtype":"F32","shape":[1],"data_offsets":[-4,0]})", "1234"),
               "impossible data_offsets");
  expect_error(
      header_of(R"("a":{"dtype":"F32","shape":[1],"data_offsets":[0,18446744073709551615]})",
                "1234"),
      "impossible data_offsets");
  expect_error(header_of(R"("a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]})", "1234"),
               "tensor 'a' has 4 bytes, but its shape needs 8");
}

TEST(Safetensors, RefusesOverlapsGapsAndDuplicates) {
  const std::string a = R"("a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)";
  expect_error(header_of(a + R"("b":{"dtype":"U8","shape":[4],"data_offsets":[2,6]})", "123456"),
               "tensor 'b' overlaps");
  expect_error(header_of(a + R"("b":{"dtype":"U8","shape":[4],"data_offsets":[0,4]})", "1234"),
               "overlaps");
  expect_error(header_of(a + R"("b":{"dtype":"U8","shape":[2],"data_offsets":[5,7]})", "1234567"),
               "tensor 'b' leaves a gap");
  expect_error(header_of(a + R"("b":{"dtype":"U8","shape":[2],"data_offsets":[4,6]})", "1234567"),
               "1 bytes after the last tensor");
  expect_error(header_of(a + R"("a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]})", "1234"),
               "names a tensor twice");
  // Colons and braces inside names are not structure.
  EXPECT_TRUE(parse(B().tensor("a:{\\\":", "U8", {1}, "1").tensor("b", "U8", {1}, "2").build()));
}

}  // namespace
}  // namespace sluice
