#include "tools/chat/markdown.h"

#include <gtest/gtest.h>

namespace sluice {
namespace {

// Style sequences as <1> (bold), <0> (off), ...
std::string shown(const std::string& bytes) {
  std::string out;
  for (size_t i = 0; i < bytes.size(); ++i) {
    if (bytes[i] != '\033') {
      out += bytes[i];
      continue;
    }
    const size_t end = bytes.find('m', i);
    out += "<" + bytes.substr(i + 2, end - i - 2) + ">";
    i = end;
  }
  return out;
}

std::string without_styles(const std::string& bytes) {
  std::string out;
  for (size_t i = 0; i < bytes.size(); ++i) {
    if (bytes[i] == '\033') {
      i = bytes.find('m', i);
    } else {
      out += bytes[i];
    }
  }
  return out;
}

std::string render(std::string_view text, size_t piece = 1000) {
  MarkdownStream m(true);
  std::string out;
  for (size_t i = 0; i < text.size(); i += piece) out += m.feed(text.substr(i, piece));
  return out + m.finish();
}

TEST(Markdown, Styles) {
  struct Case {
    const char *text, *want;
  };
  const Case cases[] = {
      {"plain text\n", "plain text\n"},
      {"a **b** c", "a <1;2>**<0><1>b<0><2>**<0> c"},
      {"a *b* c", "a <2;3>*<0><3>b<0><2>*<0> c"},
      {"`x*y*`", "<2;36>`<0><36>x*y*<0><2>`<0>"},
      {"# Title\nx", "<1># Title<0>\nx"},
      {"- item", "<2>-<0> item"},
      {"12. item", "<2>12.<0> item"},
      {"```py\nx = **1**\n```\ny", "<2>```py<0>\n<36>x = **1**<0>\n<2>```<0>\ny"},
      {"snake_case_name", "snake_case_name"},
      {"2 * 3 * 4", "2 * 3 * 4"},
      {"**open\nnext", "<1;2>**<0><1>open<0>\nnext"},  // styles end with the line
      {"#hashtag", "#hashtag"},
      {"1.5 is a number", "1.5 is a number"},
      {"-5", "-5"},
  };
  for (const Case& c : cases) EXPECT_EQ(shown(render(c.text)), c.want) << c.text;
}

TEST(Markdown, TextStaysAndPiecesDoNotMatter) {
  const std::string alphabet = "ab *_`#->~1.)\n\n\xc3";
  uint32_t seed = 7;
  auto draw = [&](size_t n) {
    seed = seed * 1664525 + 1013904223;
    return (seed >> 16) % n;
  };
  for (int round = 0; round < 3000; ++round) {
    std::string text;
    const size_t size = draw(60);
    for (size_t i = 0; i < size; ++i) text += alphabet[draw(alphabet.size())];
    const std::string whole = render(text);
    ASSERT_EQ(without_styles(whole), text);
    ASSERT_EQ(whole, render(text, 1)) << text;
    ASSERT_EQ(whole, render(text, 3)) << text;
  }
}

TEST(Markdown, HoldsLittleBack) {
  MarkdownStream m(true);
  EXPECT_EQ(m.feed("A word"), "A word");
  EXPECT_EQ(without_styles(m.feed(" and **")), " and ");
  EXPECT_EQ(without_styles(m.feed("b")), "**b");
  EXPECT_EQ(without_styles(m.feed("\n1")), "\n");
  EXPECT_EQ(without_styles(m.feed("x")), "1x");
}

TEST(Markdown, WithoutColourNothingChanges) {
  MarkdownStream m(false);
  EXPECT_EQ(m.feed("**b** `c`\n\033[31m"), "**b** `c`\n\033[31m");
  EXPECT_EQ(m.finish(), "");
}

TEST(Markdown, TheModelCannotDriveTheTerminal) {
  EXPECT_EQ(render("a\033[31mb\r\ac\x7f"),
            "a\xe2\x90\x9b[31mb\xe2\x90\x8d\xe2\x90\x87"
            "c\xe2\x90\xa1");
}

}  // namespace
}  // namespace sluice
