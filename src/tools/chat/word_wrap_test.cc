#include "tools/chat/word_wrap.h"

#include <gtest/gtest.h>

#include <vector>

namespace sluice {
namespace {

// What a terminal shows of the bytes: its lines, without styles.
std::vector<std::string> screen(const std::string& bytes) {
  std::vector<std::string> lines(1);
  for (size_t i = 0; i < bytes.size(); ++i) {
    if (bytes[i] == '\n') {
      lines.emplace_back();
    } else if (bytes[i] != '\033') {
      lines.back() += bytes[i];
    } else {
      size_t end = bytes.find_first_of("DKm", i);
      if (bytes[end] == 'D') {
        const auto left = static_cast<size_t>(std::stoi(bytes.substr(i + 2)));
        EXPECT_LE(left, lines.back().size());
        lines.back().resize(lines.back().size() - left);
        EXPECT_EQ(bytes.substr(end + 1, 3), "\033[K");
      }
      i = end;
    }
  }
  return lines;
}

std::string wrapped(std::string_view text, int width, size_t piece) {
  WordWrap w;
  w.set_width(width);
  std::string out;
  for (size_t i = 0; i < text.size(); i += piece) w.text(text.substr(i, piece), out);
  return out;
}

TEST(WordWrap, BreaksBetweenWords) {
  const std::string text = "The quick brown fox jumps over the lazy dog.";
  for (size_t piece : {1, 3, 100}) {
    EXPECT_EQ(screen(wrapped(text, 21, piece)),
              (std::vector<std::string>{"The quick brown fox ", "jumps over the lazy ", "dog."}));
  }
  EXPECT_EQ(screen(wrapped("one two\n\nthree", 40, 2)),
            (std::vector<std::string>{"one two", "", "three"}));
}

TEST(WordWrap, KeepsEveryWordAndTheWidth) {
  uint32_t seed = 5;
  auto draw = [&](uint32_t n) { return (seed = seed * 1664525 + 1013904223, (seed >> 16) % n); };
  for (int round = 0; round < 500; ++round) {
    std::string text;
    for (uint32_t i = 0; i < 40; ++i)
      text += (i > 0 ? " " : "") + std::string(1 + draw(12), static_cast<char>('a' + i % 26));
    std::string joined;
    for (const std::string& line : screen(wrapped(text, 30, 1 + draw(5)))) {
      ASSERT_LE(line.size(), 29u);
      joined += line + (line.ends_with(' ') || joined.empty() ? "" : " ");
    }
    std::string words, got;
    for (char c : text) words += c == ' ' ? "" : std::string(1, c);
    for (char c : joined) got += c == ' ' ? "" : std::string(1, c);
    ASSERT_EQ(got, words);
  }
}

TEST(WordWrap, LongWordsAndWideOnesBreakAtTheEdge) {
  EXPECT_EQ(
      screen(wrapped(std::string(50, 'x'), 21, 7)),
      (std::vector<std::string>{std::string(20, 'x'), std::string(20, 'x'), std::string(10, 'x')}));
  std::string wide;
  for (int i = 0; i < 12; ++i) wide += "\xe6\x97\xa5";  // two columns each
  EXPECT_EQ(screen(wrapped(wide, 22, 1))[0].size(), 30u);
}

TEST(WordWrap, StylesMoveWithTheirWord) {
  WordWrap w;
  w.set_width(21);
  std::string out;
  w.text("sixteen columns ", out);
  w.style("\033[1m", "\033[1m", out);
  w.text("bold", out);
  w.style("\033[0m", "", out);
  w.text("er", out);
  EXPECT_EQ(screen(out), (std::vector<std::string>{"sixteen columns ", "bolder"}));
  EXPECT_NE(out.find("\n\033[1mbold\033[0mer"), std::string::npos) << out;
}

TEST(WordWrap, CodeAndNoWidthPassUnchanged) {
  const std::string line(60, 'y');
  EXPECT_EQ(wrapped("a b " + line, 0, 5), "a b " + line);
  WordWrap w;
  w.set_width(21);
  w.set_breaks(false);
  std::string out;
  w.text("a b " + line + "\n", out);
  EXPECT_EQ(out, "a b " + line + "\n");
}

}  // namespace
}  // namespace sluice
