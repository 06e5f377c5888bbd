#include "tools/route/request_shape.h"

#include <gtest/gtest.h>

#include <string>

namespace sluice {

namespace {

const HashKey kShapeKey = {1, 2};

std::vector<uint64_t> blocks_of(const std::string& body) {
  return shape_blocks(read_shape(body), kShapeKey);
}

}  // namespace

TEST(RequestShape, FindsFieldsOfTheOutermostObject) {
  const RequestShape s = read_shape(
      R"( {"model": "m", "messages": [{"role": "user", "content": "a \"]} b"}], "stream": true,)"
      R"( "user" : "u1", "tools": [], "extra": {"prompt": "no", "stream": false}} )");
  EXPECT_EQ(s.prompt, R"([{"role": "user", "content": "a \"]} b"}])");
  EXPECT_EQ(s.session, "\"u1\"");
  EXPECT_EQ(s.tools, "[]");
  EXPECT_TRUE(s.stream);
  EXPECT_EQ(read_shape(R"({"prompt":"x","stream":false})").prompt, "\"x\"");
  EXPECT_FALSE(read_shape(R"({"prompt":"x","stream":false})").stream);
  EXPECT_EQ(read_shape(R"({"input":[1,2,3]})").prompt, "[1,2,3]");
}

TEST(RequestShape, WhatIsNoJsonEnds) {
  const std::string whole =
      R"({"a":[{"b":"c\\"}],"messages":[{"content":"x\"y"}],"stream":true,"user":"z"})";
  for (size_t n = 0; n <= whole.size(); ++n) {
    read_shape(whole.substr(0, n));
    std::string broken = whole;
    if (n < broken.size()) broken[n] = n % 2 ? '"' : '}';
    read_shape(broken);
  }
  for (const char* text : {"", "{", "[]", "{\"", "{\"a", "{\"a\"", "{\"a\":", "{\"a\":}", "{}}}",
                           "{\"prompt\":\"\\", "null", "{\"prompt\":[[[["})
    EXPECT_TRUE(read_shape(text).prompt.empty()) << text;
}

TEST(RequestShape, OnePromptCanBeSplit) {
  const auto splits = [](std::string_view body) { return can_split(read_shape(body)); };
  EXPECT_TRUE(splits(R"({"prompt":"a"})"));
  EXPECT_TRUE(splits("{\"prompt\":\"a\"} \r\n"));
  EXPECT_TRUE(splits(R"({"prompt":[ 1, 2],"echo":false,"prompt_logprobs":null})"));
  EXPECT_TRUE(splits(R"({"messages":[{"role":"user"}],"kv_transfer_params":null})"));
  for (const char* body :
       {R"({"prompt":["a"]})", R"({"prompt":[[1]]})", R"({"prompt":[]})", R"({})",
        R"({"prompt":"a")", R"({"prompt":"a","echo":true})",
        R"({"prompt":"a","prompt_logprobs":0})", R"({"prompt":"a","kv_transfer_params":{}})",
        R"({"prompt":"a","str\u0065am":true})", R"({"prompt":"a"}})", R"({"prompt":"a"} {})",
        R"({"prompt":"a"},)"})
    EXPECT_FALSE(splits(body)) << body;
}

TEST(RequestShape, FieldsAreReplaced) {
  const std::string_view dropped[] = {"n", "stream"};
  EXPECT_EQ(replace_fields(R"( { "prompt" : "a,\"}" , "n":2,"x":{"n":1},"stream":true } )", dropped,
                           R"("n":1)"),
            R"({"prompt":"a,\"}","x":{"n":1},"n":1})");
  EXPECT_EQ(replace_fields("{}", dropped, R"("n":1)"), R"({"n":1})");
  EXPECT_EQ(find_field(R"({"a":1,"b":{"a":2}})", "b"), R"({"a":2})");
  EXPECT_EQ(find_field(R"({"a":1,"b":{"a":2})", "b"), "");
  EXPECT_EQ(find_field("{}", "b"), "");
}

TEST(RequestShape, EqualBeginningsHaveEqualBlocks) {
  const std::string text(3000, 'a');
  const auto a = blocks_of("{\"prompt\":\"" + text + "bcd\"}");
  const auto b = blocks_of("{\"stream\":true,\"prompt\":\"" + text + "xyz" + text + "\"}");
  ASSERT_EQ(a.size(), 5u);
  ASSERT_GT(b.size(), 10u);
  for (size_t i = 0; i < a.size(); ++i) EXPECT_EQ(a[i], b[i]) << i;
  EXPECT_NE(a[0], a[1]);  // equal bytes, other bytes before them
  // Other tools, other blocks.
  EXPECT_NE(blocks_of("{\"tools\":[1],\"prompt\":\"" + text + "\"}")[0], a[0]);
  EXPECT_EQ(shape_tokens(read_shape("{\"prompt\":\"" + text + "\"}")), 3002 / 4);
  EXPECT_EQ(shape_tokens({}), 1);
}

TEST(RequestShape, TokenIdsAreCounted) {
  std::string ids = "[1";
  for (int i = 1; i < 1000; ++i) ids += "," + std::to_string(10000 + i);  // six bytes each
  const std::string body = "{\"prompt\":" + ids + "]}";
  const RequestShape s = read_shape(body);
  EXPECT_EQ(shape_tokens(s), 1000);
  EXPECT_EQ(shape_block_tokens(s), 85);  // 512 / 6
  EXPECT_EQ(shape_tokens(read_shape(R"({"prompt": [ 7 , 8, 9 ]})")), 3);
  EXPECT_EQ(shape_tokens(read_shape(R"({"input": [[1,2],[3]]})")), 3);
  // Text is not, whatever its commas.
  const RequestShape text = read_shape(R"({"prompt":"1,2,3,4,5,6,7,8"})");
  EXPECT_EQ(shape_tokens(text), 4);
  EXPECT_EQ(shape_block_tokens(text), kShapeBlockTokens);
  EXPECT_EQ(shape_tokens(read_shape(R"({"prompt":["a,b,c,d,e"]})")), 3);
  EXPECT_EQ(shape_tokens(read_shape(R"({"prompt":[]})")), 1);
}

TEST(RequestShape, ManyBlocksAreCut) {
  const std::string text((kMostShapeBlocks + 9) * kShapeBlockBytes, 'a');
  EXPECT_EQ(blocks_of("{\"prompt\":\"" + text + "\"}").size(), kMostShapeBlocks);
  EXPECT_EQ(blocks_of("{\"tools\":\"" + text + "\",\"prompt\":\"" + text + "\"}").size(),
            kMostShapeBlocks);
}

}  // namespace sluice
