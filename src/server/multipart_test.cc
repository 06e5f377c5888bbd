#include "server/multipart.h"

#include <gtest/gtest.h>

namespace sluice {
namespace {

constexpr const char* kType = "multipart/form-data; boundary=XX";

std::string form_part(const std::string& disposition, const std::string& data) {
  return "--XX\r\nContent-Disposition: " + disposition + "\r\n\r\n" + data + "\r\n";
}

TEST(Form, PartsAreReadAsTheyAre) {
  const std::string data = "{\"a\":1}\r\n\r\n--X\r\n";
  const std::string body =
      form_part("form-data; name=\"purpose\"", "batch") +
      form_part("form-data; name=\"file\"; filename=\"a \\\"b\\\".jsonl\"", data) + "--XX--\r\n";
  for (const char* type : {kType, "Multipart/Form-Data;boundary=\"XX\""}) {
    EXPECT_TRUE(is_form(type));
    auto parts = parse_form(type, body);
    ASSERT_TRUE(parts) << parts.error().message;
    ASSERT_EQ(parts->size(), 2u);
    EXPECT_EQ((*parts)[0].name, "purpose");
    EXPECT_EQ((*parts)[0].data, "batch");
    EXPECT_EQ((*parts)[1].filename, "a \"b\".jsonl");
    EXPECT_EQ((*parts)[1].data, data);
  }
  EXPECT_FALSE(is_form("application/json"));
}

TEST(Form, SaysWhatIsWrong) {
  const std::string one = form_part("form-data; name=\"a\"", "1");
  auto error = [](const char* type, const std::string& body) {
    auto parts = parse_form(type, body);
    return parts ? std::string() : parts.error().message;
  };
  EXPECT_EQ(error(kType, one + "--XX--"), "");
  EXPECT_NE(error("multipart/form-data", one + "--XX--").find("boundary"), std::string::npos);
  EXPECT_NE(error("multipart/form-data; boundary=\"a b\"", "--a b--").find("boundary"),
            std::string::npos);
  EXPECT_NE(error(kType, "x" + one + "--XX--").find("begin"), std::string::npos);
  EXPECT_NE(error(kType, one).find("no end"), std::string::npos);
  EXPECT_NE(error(kType, "").find("begin"), std::string::npos);
  EXPECT_NE(error(kType, one + one + "--XX--").find("twice"), std::string::npos);
  EXPECT_NE(error(kType, one + "--XX--trailing").find("no end"), std::string::npos);
  EXPECT_NE(error(kType, form_part("form-data", "1") + "--XX--").find("name"), std::string::npos);
  EXPECT_NE(error(kType, "--XX\r\nContent-Type: text/plain\r\n\r\n1\r\n--XX--").find("Disposition"),
            std::string::npos);
  EXPECT_NE(error(kType,
                  "--XX\r\nContent-Transfer-Encoding: base64\r\nContent-Disposition: form-data; "
                  "name=a\r\n\r\n1\r\n--XX--")
                .find("Encoding"),
            std::string::npos);
  std::string many;
  for (int i = 0; i < 17; ++i) many += form_part("form-data; name=p" + std::to_string(i), "");
  EXPECT_NE(error(kType, many + "--XX--").find("16"), std::string::npos);
}

// Every beginning of a form is refused, none reads out of its bounds.
TEST(Form, ABeginningIsNoForm) {
  const std::string body = form_part("form-data; name=\"a\"; filename=\"b\"", "data") + "--XX--";
  for (size_t n = 0; n < body.size(); ++n)
    EXPECT_FALSE(parse_form(kType, std::string_view(body).substr(0, n))) << n;
}

}  // namespace
}  // namespace sluice
