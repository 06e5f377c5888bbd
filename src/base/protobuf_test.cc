#include "base/protobuf.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/random.h"

namespace sluice {
namespace {

// As Google's library writes them.
TEST(Protobuf, KnownBytes) {
  std::string out;
  ProtoWriter w(out);
  w.varint(1, 150);
  w.bytes(2, "testing");
  w.real(3, 1.0f);
  w.real64(4, -2.0);
  w.packed(16, std::vector<uint32_t>{3, 270, 86942});
  EXPECT_EQ(out, std::string("\x08\x96\x01"
                             "\x12\x07testing"
                             "\x1d\x00\x00\x80\x3f"
                             "\x21\x00\x00\x00\x00\x00\x00\x00\xc0"
                             "\x82\x01\x06\x03\x8e\x02\x9e\xa7\x05",
                             35));
}

TEST(Protobuf, RoundTrip) {
  std::string out;
  ProtoWriter w(out);
  w.varint(1, UINT64_MAX);
  w.bytes(5, "");
  w.real(536870911, -0.5f);
  w.packed(7, std::vector<float>{0.25f, -1e30f});
  ProtoReader r(out);
  ProtoField f;
  ASSERT_TRUE(r.next(f));
  EXPECT_EQ(f.value, UINT64_MAX);
  ASSERT_TRUE(r.next(f));
  EXPECT_EQ(f.number, 5u);
  EXPECT_TRUE(f.bytes.empty());
  ASSERT_TRUE(r.next(f));
  EXPECT_EQ(f.number, 536870911u);
  EXPECT_EQ(f.as_float(), -0.5f);
  ASSERT_TRUE(r.next(f));
  EXPECT_EQ(f.bytes.size(), 8u);
  EXPECT_FALSE(r.next(f));
  EXPECT_TRUE(r.ok());
}

TEST(Protobuf, WhatIsNoMessage) {
  for (std::string_view bad :
       {std::string_view("\x08", 1), std::string_view("\x12\x05xy", 4), std::string_view("\x00", 1),
        std::string_view("\x0b", 1), std::string_view("\x1d\x00\x00", 3),
        std::string_view("\x21\x00", 2), std::string_view("\x0f\x01", 2),
        std::string_view("\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", 11),
        std::string_view("\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02", 11)}) {
    ProtoReader r(bad);
    ProtoField f;
    while (r.next(f)) {
    }
    EXPECT_FALSE(r.ok()) << testing::PrintToString(bad);
  }
}

// Any bytes: it ends, and fields lie within them.
TEST(Protobuf, AnyBytes) {
  for (uint64_t i = 0; i < 20'000; ++i) {
    std::string bytes;
    for (uint64_t k = 0; k < 1 + i % 40; ++k)
      bytes += static_cast<char>(mix_bits(i << 8 | k) % (i % 2 ? 256 : 40));
    ProtoReader r(bytes);
    ProtoField f;
    size_t num = 0;
    for (; r.next(f); ++num) {
      if (f.bytes.empty()) continue;
      ASSERT_GE(f.bytes.data(), bytes.data());
      ASSERT_LE(f.bytes.data() + f.bytes.size(), bytes.data() + bytes.size());
    }
    ASSERT_LE(num, bytes.size());
  }
}

}  // namespace
}  // namespace sluice
