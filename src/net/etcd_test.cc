#include "net/etcd.h"

#include <gtest/gtest.h>

namespace sluice {
namespace {

TEST(Etcd, Base64) {
  const std::pair<const char*, const char*> cases[] = {{"", ""},
                                                       {"f", "Zg=="},
                                                       {"fo", "Zm8="},
                                                       {"foo", "Zm9v"},
                                                       {"foob", "Zm9vYg=="},
                                                       {"fooba", "Zm9vYmE="},
                                                       {"foobar", "Zm9vYmFy"},
                                                       {"\xff\xfe\xfd", "//79"}};
  for (const auto& [plain, text] : cases) {
    EXPECT_EQ(to_base64(plain), text);
    EXPECT_EQ(from_base64(text).value(), plain);
  }
  for (const char* bad : {"Z", "Zm9vY", "Z-==", "Zg ="}) EXPECT_FALSE(from_base64(bad)) << bad;
}

TEST(Etcd, BodiesAreThoseOfTheGateway) {
  EXPECT_EQ(etcd_range("a/", 64), R"({"key":"YS8=","range_end":"YTA=","limit":64})");
  EXPECT_EQ(etcd_range("a\xff", 1), R"({"key":"Yf8=","range_end":"Yg==","limit":1})");
  EXPECT_EQ(etcd_get("a/"), R"({"key":"YS8="})");
  EXPECT_EQ(etcd_put("k", "v", 7587), R"({"key":"aw==","value":"dg==","lease":"7587"})");
  EXPECT_EQ(etcd_grant(10), R"({"TTL":"10"})");
  EXPECT_EQ(etcd_lease(-3), R"({"ID":"-3"})");
}

TEST(Etcd, Answers) {
  const auto values = etcd_values(
      R"({"header":{"revision":"4"},"kvs":[{"key":"YQ==","value":"Zm9v","lease":"1"},{"key":"Yg=="}],"count":"2"})");
  ASSERT_TRUE(values);
  EXPECT_EQ(*values, std::vector<std::string>{"foo"});
  EXPECT_TRUE(etcd_values(R"({"header":{}})").value().empty());
  for (const char* bad : {"", "[]", "{}", R"({"error":"x","code":14})", R"({"header":{},"kvs":7})",
                          R"({"header":{},"kvs":[{"value":"?"}]})"})
    EXPECT_FALSE(etcd_values(bad)) << bad;

  EtcdLease l = etcd_granted(R"({"header":{},"ID":"7587864094","TTL":"10"})").value();
  EXPECT_EQ(l.id, 7587864094);
  EXPECT_EQ(l.seconds, 10);
  l = etcd_granted(R"({"result":{"header":{},"ID":"75","TTL":"9"}})").value();
  EXPECT_EQ(l.id, 75);
  EXPECT_EQ(l.seconds, 9);
  EXPECT_EQ(etcd_granted(R"({"result":{"header":{},"ID":"75"}})").value().seconds, 0);  // over
  EXPECT_FALSE(etcd_granted(R"({"error":"etcdserver: no leader"})"));
}

}  // namespace
}  // namespace sluice
