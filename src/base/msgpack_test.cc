#include "base/msgpack.h"

#include <gtest/gtest.h>

#include "base/str.h"

namespace sluice {
namespace {

std::string packed_hex(auto&& write) {
  std::string out, text;
  MsgpackWriter w(out);
  write(w);
  for (char c : out) text += strf("%02x", static_cast<unsigned>(static_cast<uint8_t>(c)));
  return text;
}

// Expectations are by Python's msgpack 1.2.4: msgpack.packb(value).hex().
TEST(Msgpack, NumbersTakeTheirShortestForm) {
  auto integer = [](int64_t v) { return packed_hex([&](MsgpackWriter& w) { w.integer(v); }); };
  auto natural = [](uint64_t v) { return packed_hex([&](MsgpackWriter& w) { w.natural(v); }); };
  EXPECT_EQ(integer(0), "00");
  EXPECT_EQ(integer(127), "7f");
  EXPECT_EQ(integer(128), "cc80");
  EXPECT_EQ(integer(255), "ccff");
  EXPECT_EQ(integer(256), "cd0100");
  EXPECT_EQ(integer(65535), "cdffff");
  EXPECT_EQ(integer(65536), "ce00010000");
  EXPECT_EQ(integer(4294967295), "ceffffffff");
  EXPECT_EQ(integer(4294967296), "cf0000000100000000");
  EXPECT_EQ(integer(9223372036854775807), "cf7fffffffffffffff");
  EXPECT_EQ(integer(-1), "ff");
  EXPECT_EQ(integer(-32), "e0");
  EXPECT_EQ(integer(-33), "d0df");
  EXPECT_EQ(integer(-128), "d080");
  EXPECT_EQ(integer(-129), "d1ff7f");
  EXPECT_EQ(integer(-32768), "d18000");
  EXPECT_EQ(integer(-32769), "d2ffff7fff");
  EXPECT_EQ(integer(-2147483648), "d280000000");
  EXPECT_EQ(integer(-2147483649), "d3ffffffff7fffffff");
  EXPECT_EQ(integer(INT64_MIN), "d38000000000000000");
  EXPECT_EQ(natural(UINT64_MAX), "cfffffffffffffffff");
  EXPECT_EQ(packed_hex([](MsgpackWriter& w) { w.real(1.5); }), "cb3ff8000000000000");
}

TEST(Msgpack, TextsBytesAndContainersByTheirSizes) {
  auto head = [](auto&& write) { return packed_hex(write).substr(0, 10); };
  EXPECT_EQ(head([](MsgpackWriter& w) { w.text(std::string(0, 'x')); }), "a0");
  EXPECT_EQ(head([](MsgpackWriter& w) { w.text(std::string(31, 'x')); }), "bf78787878");
  EXPECT_EQ(head([](MsgpackWriter& w) { w.text(std::string(32, 'x')); }), "d920787878");
  EXPECT_EQ(head([](MsgpackWriter& w) { w.text(std::string(255, 'x')); }), "d9ff787878");
  EXPECT_EQ(head([](MsgpackWriter& w) { w.text(std::string(256, 'x')); }), "da01007878");
  EXPECT_EQ(head([](MsgpackWriter& w) { w.text(std::string(65535, 'x')); }), "daffff7878");
  EXPECT_EQ(head([](MsgpackWriter& w) { w.text(std::string(65536, 'x')); }), "db00010000");
  EXPECT_EQ(head([](MsgpackWriter& w) { w.bytes(std::string(0, 'x')); }), "c400");
  EXPECT_EQ(head([](MsgpackWriter& w) { w.bytes(std::string(255, 'x')); }), "c4ff787878");
  EXPECT_EQ(head([](MsgpackWriter& w) { w.bytes(std::string(256, 'x')); }), "c501007878");
  EXPECT_EQ(head([](MsgpackWriter& w) { w.bytes(std::string(65536, 'x')); }), "c600010000");
  EXPECT_EQ(head([](MsgpackWriter& w) { w.array(0); }), "90");
  EXPECT_EQ(head([](MsgpackWriter& w) { w.map(0); }), "80");
  EXPECT_EQ(head([](MsgpackWriter& w) { w.array(15); }), "9f");
  EXPECT_EQ(head([](MsgpackWriter& w) { w.map(15); }), "8f");
  EXPECT_EQ(head([](MsgpackWriter& w) { w.array(16); }), "dc0010");
  EXPECT_EQ(head([](MsgpackWriter& w) { w.map(16); }), "de0010");
  EXPECT_EQ(head([](MsgpackWriter& w) { w.array(65535); }), "dcffff");
  EXPECT_EQ(head([](MsgpackWriter& w) { w.map(65535); }), "deffff");
  EXPECT_EQ(head([](MsgpackWriter& w) { w.array(65536); }), "dd00010000");
  EXPECT_EQ(head([](MsgpackWriter& w) { w.map(65536); }), "df00010000");
}

TEST(Msgpack, AMapOfMany) {
  std::string all = packed_hex([](MsgpackWriter& w) {
    w.map(3);
    w.text("a"), w.nil();
    w.text("b"), w.array(2), w.boolean(true), w.boolean(false);
    w.text("c"), w.bytes("xy");
  });
  EXPECT_EQ(all, "83a161c0a16292c3c2a163c4027879");
}

}  // namespace
}  // namespace sluice
