#include "base/msgpack_reader.h"

#include <gtest/gtest.h>

#include <string>

#include "base/msgpack.h"

namespace sluice {
namespace {

constexpr int64_t kReaderValues[] = {0,     1,     127,        128,        255,       256,
                                     65535, 65536, 4294967295, 4294967296, INT64_MAX, -1,
                                     -32,   -33,   -128,       -129,       -32769,    INT64_MIN};

std::string written() {
  std::string out;
  MsgpackWriter w(out);
  w.array(3);
  w.map(2);
  w.text("numbers"), w.array(std::size(kReaderValues));
  for (int64_t v : kReaderValues) w.integer(v);
  w.text(std::string(300, 'x')), w.nil();
  w.real(0.5);
  w.natural(UINT64_MAX);
  return out;
}

TEST(MsgpackReader, ReadsWhatTheWriterWrote) {
  const std::string text = written();
  MsgpackReader r(text);
  EXPECT_EQ(r.array(), 3u);
  EXPECT_EQ(r.map(), 2u);
  EXPECT_EQ(r.text(), "numbers");
  EXPECT_EQ(r.array(), std::size(kReaderValues));
  for (int64_t v : kReaderValues) EXPECT_EQ(r.integer(), v);
  EXPECT_EQ(r.text().size(), 300u);
  EXPECT_TRUE(r.nil());
  EXPECT_FALSE(r.nil());
  r.skip();
  EXPECT_EQ(r.natural(), UINT64_MAX);
  EXPECT_TRUE(r.ok() && r.at_end());
  MsgpackReader whole(text);
  whole.skip();
  EXPECT_TRUE(whole.ok() && whole.at_end());
}

TEST(MsgpackReader, WhatIsCutOrWrongFails) {
  const std::string text = written();
  for (size_t size = 0; size < text.size(); ++size) {
    MsgpackReader r(std::string_view(text).substr(0, size));
    r.skip();
    EXPECT_FALSE(r.ok()) << size;
  }
  for (std::string_view bad :
       {"\xdd\xff\xff\xff\xff", "\xdb\xff\xff\xff\xff", "\xc1", "\xd4\1\1"}) {
    MsgpackReader r(bad);
    r.skip();
    EXPECT_FALSE(r.ok());
  }
  MsgpackReader wrong("\xa1x");
  EXPECT_EQ(wrong.natural(), 0u);
  EXPECT_FALSE(wrong.ok());
  EXPECT_EQ(wrong.array(), 0u);
  const std::string nested(100, '\x91');
  MsgpackReader too_deep(nested);
  too_deep.skip();
  EXPECT_FALSE(too_deep.ok());
}

}  // namespace
}  // namespace sluice
