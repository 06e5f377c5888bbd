#include "tools/terminal.h"

#include <gtest/gtest.h>

namespace sluice {
namespace {

TEST(Terminal, BreaksLinesAtSpaces) {
  EXPECT_EQ(broken_lines("one two three", 0), "one two three");
  EXPECT_EQ(broken_lines("one two three", 7), "one two\nthree");
  EXPECT_EQ(broken_lines("one two three", 6), "one\ntwo\nthree");
  EXPECT_EQ(broken_lines("unbreakable a", 4), "unbreakable\na");
  EXPECT_EQ(broken_lines("", 10), "");
}

}  // namespace
}  // namespace sluice
