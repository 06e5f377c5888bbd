// Fields that ask for too much are refused while the request is read: what is allocated until then
// is bounded by the size of the body, not by the number it names.
#include <string>

#include <gtest/gtest.h>

#include "operator_new.h"
#include "server/openai.h"

namespace sluice {
namespace {

std::string repeated(const std::string& item, int num) {
  std::string out;
  for (int i = 0; i < num; ++i) out += (i > 0 ? "," : "") + item;
  return out;
}

std::string biases(int num) {
  std::string out;
  for (int i = 0; i < num; ++i) out += (i > 0 ? ",\"" : "\"") + std::to_string(i) + "\":1";
  return out;
}

TEST(Refusals, CostNoMoreThanTheBody) {
  const std::string fields[] = {
      "\"n\":1000000000",
      "\"n\":1e9",
      "\"n\":-1",
      "\"best_of\":1000000",
      "\"logprobs\":1000000",
      "\"prompt_logprobs\":2147483647",
      "\"max_tokens\":-5",
      "\"max_tokens\":99999999999999",
      "\"min_tokens\":-1",
      "\"top_k\":1099511627776",
      "\"stop\":[" + repeated("\"a\"", 20'000) + "]",
      "\"stop\":\"" + std::string(200'000, 'x') + "\"",
      "\"logit_bias\":{" + biases(5'000) + "}",
      "\"logit_bias\":{\"4294967296\":1}",
      "\"bad_words\":[" + repeated("\"a\"", 20'000) + "]",
      "\"stop_token_ids\":[" + repeated("1", 20'000) + "]",
      "\"allowed_token_ids\":[" + repeated("1", 1'050'000) + "]",
      "\"prompt\":[" + repeated("\"a\"", 20'000) + "]",
      "\"prompt\":[" + repeated("[1]", 20'000) + "]",
      "\"cache_salt\":\"" + std::string(200'000, 'x') + "\"",
      "\"request_id\":\"" + std::string(200'000, 'x') + "\"",
  };
  {  // the table of fields is made once
    CompletionFields out;
    ASSERT_FALSE(parse_completion(*parse_json("{\"prompt\":\"Once\"}", kRequestJson), {}, out));
  }
  for (const std::string& field : fields) {
    std::string body = "{\"prompt\":\"Once\"," + field + "}";
    alloc::bytes_counted = 0;
    alloc::counting = true;
    Refusal refused = ApiError{};
    {
      Result<json::value> v = parse_json(body, kRequestJson);
      CompletionFields out;
      refused = v ? parse_completion(*v, {}, out)
                  : Refusal(ApiError{v.error().code, v.error().message, "", ""});
    }
    alloc::counting = false;
    const uint64_t allocated = alloc::bytes_counted;
    ASSERT_TRUE(refused) << field.substr(0, 60);
    EXPECT_EQ(refused->status, 400) << field.substr(0, 60);
    EXPECT_LT(refused->message.size(), 400u) << field.substr(0, 60);
    EXPECT_LE(allocated, (size_t{1} << 20) + 64 * body.size()) << field.substr(0, 60);
    if (body.size() < 1000) {
      EXPECT_LE(allocated, size_t{1} << 14) << field;
    }
  }
}

}  // namespace
}  // namespace sluice
