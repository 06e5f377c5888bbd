#include "net/sse_reader.h"

#include <gtest/gtest.h>

#include <vector>

namespace sluice {
namespace {

std::vector<std::string> read_in_pieces(std::string_view text, size_t first, size_t size) {
  SseReader reader;
  std::vector<std::string> events;
  auto take = [&](std::string_view data) { events.emplace_back(data); };
  EXPECT_TRUE(reader.feed(text.substr(0, first), take));
  for (size_t at = first; at < text.size(); at += size)
    EXPECT_TRUE(reader.feed(text.substr(at, size), take));
  return events;
}

TEST(SseReader, SplitAtEveryByte) {
  const std::string text =
      "\xef\xbb\xbf"
      "data: {\"a\":1}\n\n"
      ": a comment\n\n"
      "event: ping\nid: 7\ndata:no space\r\n\r\n"
      "data: one\ndata: two\ndata\ndata: \n\n"
      "database: another field\n\n"
      "data:  two spaces\r\r"
      "data: [DONE]\n\n";
  const std::vector<std::string> want = {"{\"a\":1}", "no space", "one\ntwo\n\n", " two spaces",
                                         "[DONE]"};
  EXPECT_EQ(read_in_pieces(text, text.size(), 1), want);
  for (size_t at = 0; at < text.size(); ++at) {
    EXPECT_EQ(read_in_pieces(text, at, text.size()), want) << "cut at " << at;
  }
  for (size_t size = 1; size < 9; ++size) EXPECT_EQ(read_in_pieces(text, 0, size), want);
}

TEST(SseReader, UnfinishedEventIsSeen) {
  SseReader reader;
  size_t events = 0;
  auto take = [&](std::string_view) { ++events; };
  EXPECT_FALSE(reader.within_event());
  EXPECT_TRUE(reader.feed("data: a\n", take));
  EXPECT_EQ(events, 0u);
  EXPECT_TRUE(reader.within_event());
  EXPECT_TRUE(reader.feed("\n", take));
  EXPECT_EQ(events, 1u);
  EXPECT_FALSE(reader.within_event());
  EXPECT_TRUE(reader.feed("dat", take));
  EXPECT_TRUE(reader.within_event());
}

TEST(SseReader, EndlessEventIsRefused) {
  SseReader line, lines;
  std::string piece(1 << 20, 'x');
  bool fine = true;
  for (int i = 0; i < 20 && fine; ++i) fine = line.feed(piece, [](std::string_view) {});
  EXPECT_FALSE(fine);
  fine = true;
  for (int i = 0; i < 20 && fine; ++i)
    fine = lines.feed("data: " + piece + "\n", [](std::string_view) {});
  EXPECT_FALSE(fine);
}

}  // namespace
}  // namespace sluice
