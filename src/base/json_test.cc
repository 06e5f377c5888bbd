// JSON that nobody should send: it is refused or parsed within a bound of memory and time.
#include "base/json.h"

#include <gtest/gtest.h>

#include <cmath>
#include <ctime>
#include <random>
#include <string>

#include "base/keyed_hash.h"

namespace sluice {
namespace {

constexpr size_t kBody = 8u << 20;  // what the server accepts

std::string repeated(const std::string& open, const std::string& item, const std::string& close) {
  std::string out = open;
  while (out.size() + item.size() + close.size() < kBody) out += item;
  out.back() = ' ';  // the last comma
  return out + close;
}

std::string keys(size_t n) {
  std::string out = "{";
  for (size_t i = 0; i < n; ++i) out += (i ? ",\"" : "\"") + std::to_string(i) + "\":0";
  return out + "}";
}

// "" when it parses, else why not.
std::string outcome(const std::string& text, const JsonLimits& limits = kRequestJson) {
  const std::clock_t start = std::clock();  // CPU time: a busy machine changes nothing
  auto v = parse_json(text, limits);
  const double took = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
  EXPECT_LT(took, 5) << text.substr(0, 40);  // 0.05 s at most where this was written
  if (v) return "";
  EXPECT_EQ(v.error().code, 400);
  return v.error().message;
}

TEST(JsonLimits, KeysOfAnObject) {
  EXPECT_EQ(outcome(keys(11'000)), "");
  EXPECT_EQ(outcome(keys(12'000)), "invalid JSON: too many keys in an object");
  EXPECT_EQ(outcome(keys(1'000'000)), "invalid JSON: too many keys in an object");
  EXPECT_EQ(outcome(keys(60'000), {}), "");  // files may: vocabularies, lists of tensors
  // The pairs of all objects count together, and each object for itself.
  std::string object = keys(8000) + ",";
  EXPECT_EQ(outcome("[" + object + object + "1]"), "");
  EXPECT_EQ(outcome("[" + object + object + object + "1]"),
            "invalid JSON: too many keys in an object");
  EXPECT_EQ(outcome(repeated("[", R"({"a":{"b":{"c":1,"d":2}},"e":[]},)", "]")), "");
  // Equal keys count too, and the last one wins.
  EXPECT_EQ(outcome(repeated("{", R"("k":1,)", "}")), "invalid JSON: too many keys in an object");
  EXPECT_EQ(parse_json(R"({"a":1,"a":2})", kRequestJson)->at("a"), 2);
}

TEST(JsonLimits, Values) {
  EXPECT_EQ(outcome(repeated("[", "1,", "]")), "invalid JSON: too many values");
  EXPECT_EQ(outcome(repeated("[", "[],", "]")), "invalid JSON: too many values");
  EXPECT_EQ(outcome(repeated("[", "\"\",", "]")), "invalid JSON: too many values");
  EXPECT_EQ(outcome(repeated("[", "12345,", "]")), "");  // token ids
  JsonLimits three{.max_values = 3};
  EXPECT_EQ(outcome("[1,2]", three), "");
  EXPECT_EQ(outcome("[1,2,3]", three), "invalid JSON: too many values");
}

TEST(JsonLimits, HugeTexts) {
  EXPECT_NE(outcome(std::string(kBody, '[')), "");
  EXPECT_NE(outcome(repeated("", "{\"a\":", "")), "");
  EXPECT_NE(outcome("\"" + std::string(kBody, 'x') + "\xff"), "");  // bad UTF-8 at the end
  EXPECT_NE(outcome("\"" + std::string(kBody, 'x') + "\xff\""), "");
  EXPECT_NE(outcome("\"" + std::string(kBody, 'x') + "\xf0\x9f\""), "");
  EXPECT_NE(outcome("\"" + std::string(kBody, 'x')), "");
  EXPECT_NE(outcome("{\"" + std::string(kBody, 'x') + "\xff\":1}"), "");
  EXPECT_EQ(outcome(repeated("\"", "\\u00e9,", "\"")), "");
  EXPECT_EQ(outcome(repeated("\"", "\\n,", "\"")), "");
  EXPECT_EQ(outcome(std::string(kBody, ' ') + "1"), "");
  EXPECT_EQ(outcome(std::string(kBody, '7')), "");  // a double, inf or not
  EXPECT_EQ(outcome("0." + std::string(kBody, '1')), "");
  outcome("1e" + std::string(kBody, '9'));  // refused, or infinite from Boost 1.83 on
}

TEST(KeyedHash, IsSipHash) {  // of the paper's appendix: key 00..0f, message 00..0e
  HashKey key = {0x0706050403020100, 0x0f0e0d0c0b0a0908};
  std::string message;
  for (char c = 0; c < 15; ++c) message.push_back(c);
  EXPECT_EQ(keyed_hash(key, message), 0xa129ca6149be45e5u);
  EXPECT_EQ(keyed_hash(key, ""), 0x726fdb47dd0e0e31u);
  EXPECT_EQ(KeyedHash()("a"), KeyedHash()("a"));
  EXPECT_NE(KeyedHash()("a"), keyed_hash({}, "a"));
}

TEST(Json, NumbersAreWrittenAsPeopleDo) {
  const json::value v = {{"a", 0.7},
                         {"b", {1.0, -2.5, 1e-30, 1e300, 123456789.25}},
                         {"c", {{"d", 7}, {"e", "x\n\"y"}, {"f", nullptr}, {"g", true}}},
                         {"h", json::array{}},
                         {"i", json::object{}}};
  EXPECT_EQ(plain_json(v), R"({"a":0.7,"b":[1.0,-2.5,1e-30,1e+300,123456789.25],)"
                           R"("c":{"d":7,"e":"x\n\"y","f":null,"g":true},"h":[],"i":{}})");
  EXPECT_EQ(parse_json(plain_json(v)).value(), v);
  for (double d : {0.1, 1.0 / 3, 5e-324, 1.7976931348623157e308, -0.0, 4503599627370497.5}) {
    const json::value back = parse_json(plain_json(json::value(d))).value();
    ASSERT_TRUE(back.is_double()) << plain_json(json::value(d));
    EXPECT_EQ(back.get_double(), d);
  }
}

TEST(Json, EveryNumberIsReadAsTheNearestOne) {
  std::mt19937_64 rng(7);
  for (int k = 0; k < 20'000; ++k) {
    const double d =
        std::ldexp(static_cast<double>(rng() >> 11), static_cast<int>(rng() % 80) - 90);
    ASSERT_EQ(parse_json(plain_json(json::value(d))).value().get_double(), d);
  }
  EXPECT_EQ(parse_json("[1e999]").value().at(0).get_double(), HUGE_VAL);
  EXPECT_EQ(parse_json("[1e-999]").value().at(0).get_double(), 0);
  EXPECT_EQ(parse_json("-0.0").value().get_double(), 0);
}

}  // namespace
}  // namespace sluice
