#include "tools/chat/line_editor.h"

#include <gtest/gtest.h>

#include "text/unicode.h"
#include "tools/chat/char_width.h"
#include "tools/chat/console.h"

namespace sluice {
namespace {

using Status = LineEditor::Status;

// A terminal as far as the editor uses one: rows of cells, a cursor, the few sequences it writes.
class Screen {
 public:
  explicit Screen(int columns, int rows = 24) : columns_(columns), rows_(rows), cells_(1) {}

  void write(const std::string& bytes) {
    for (size_t i = 0; i < bytes.size();) {
      if (bytes[i] == '\033') {
        i = sequence(bytes, i);
      } else if (bytes[i] == '\r') {
        column_ = 0;
        ++i;
      } else if (bytes[i] == '\n') {
        down();
        ++i;
      } else {
        const size_t n = character_at(bytes, i);
        put(bytes.substr(i, n));
        i += n;
      }
    }
  }

  std::vector<std::string> lines() const {
    std::vector<std::string> out;
    for (const auto& row : cells_) {
      std::string line;
      for (const std::string& c : row) line += c;
      while (line.ends_with(' ')) line.pop_back();
      out.push_back(line);
    }
    while (!out.empty() && out.back().empty()) out.pop_back();
    return out;
  }
  size_t row() const { return row_; }
  int column() const { return column_; }

 private:
  void down() {
    if (++row_ == cells_.size()) cells_.emplace_back();
    if (cells_.size() > static_cast<size_t>(rows_)) {
      cells_.erase(cells_.begin());
      --row_;
    }
  }
  void put(const std::string& c) {
    const int width = character_width(c);
    ASSERT_LE(column_ + width, columns_) << "the editor wraps, not the terminal";
    auto& row = cells_[row_];
    if (row.size() < static_cast<size_t>(column_ + width))
      row.resize(static_cast<size_t>(column_ + width), " ");
    row[static_cast<size_t>(column_)] = c;
    for (int i = 1; i < width; ++i) row[static_cast<size_t>(column_ + i)] = "";
    column_ += width;
  }
  size_t sequence(const std::string& bytes, size_t i) {
    size_t end = i + 2;
    while (bytes[end] < 0x40) ++end;
    const std::string number = bytes.substr(i + 2, end - i - 2);
    const size_t n = number.empty() ? 1 : std::stoul(number);
    switch (bytes[end]) {
      case 'A':
        EXPECT_LE(n, row_) << "above the screen";
        row_ -= std::min(n, row_);
        break;
      case 'C':
        column_ += static_cast<int>(n);
        break;
      case 'H':
        row_ = 0;
        column_ = 0;
        break;
      case 'J':
        if (number == "2") {
          cells_.assign(1, {});
        } else {
          cells_[row_].resize(std::min(cells_[row_].size(), static_cast<size_t>(column_)));
          cells_.resize(row_ + 1);
        }
        break;
      default:
        ADD_FAILURE() << "unknown sequence " << bytes[end];
    }
    return end + 1;
  }

  int columns_, rows_;
  std::vector<std::vector<std::string>> cells_;
  size_t row_ = 0;
  int column_ = 0;
};

struct Typed {
  explicit Typed(int columns = 80, std::vector<std::string> lines = {}, int rows = 24)
      : history(std::move(lines)), editor(input_goes_on), screen(columns, rows) {
    editor.resize(columns, rows);
    screen.write(editor.start("> ", history));
  }
  Status type(std::string_view bytes) {
    Status s = Status::editing;
    for (char c : bytes) {
      s = editor.feed(c);
      if (s != Status::editing) break;
    }
    screen.write(editor.redraw());
    return s;
  }
  const std::string& text() const { return editor.text(); }

  std::vector<std::string> history;
  LineEditor editor;
  Screen screen;
};

using Lines = std::vector<std::string>;

TEST(LineEditor, TypingAndEnter) {
  Typed t;
  EXPECT_EQ(t.type("hello"), Status::editing);
  EXPECT_EQ(t.screen.lines(), Lines{"> hello"});
  EXPECT_EQ(t.screen.column(), 7);
  EXPECT_EQ(t.type("\r"), Status::done);
  EXPECT_EQ(t.text(), "hello");
}

TEST(LineEditor, MovesAndErases) {
  struct Case {
    const char *keys, *text;
    size_t cursor;
  };
  const Case cases[] = {
      {"ab\x02X", "aXb", 2},                        // Ctrl-B
      {"ab\x01X", "Xab", 1},                        // Ctrl-A
      {"ab\x01\x05X", "abX", 3},                    // Ctrl-E
      {"ab\x01\x06X", "aXb", 2},                    // Ctrl-F
      {"abc\x7f", "ab", 2},                         // Backspace
      {"abc\x02\x04", "ab", 2},                     // Ctrl-D deletes
      {"one two\x17", "one ", 4},                   // Ctrl-W
      {"one two  \x17", "one ", 4},                 //
      {"one two\x01\x0b", "", 0},                   // Ctrl-K
      {"one two\x15", "", 0},                       // Ctrl-U
      {"one\x15\x19\x19", "oneone", 6},             // Ctrl-Y
      {"ab\033[DX", "aXb", 2},                      // Left
      {"ab\033[D\033[D\033[CX", "aXb", 2},          // Right
      {"ab\033[HX", "Xab", 1},                      // Home
      {"ab\033OHX\033OFY", "XabY", 4},              // Home, End, as some terminals send them
      {"ab\033[1~X\033[4~Y", "XabY", 4},            //
      {"abc\033[H\033[3~", "bc", 0},                // Delete
      {"one two\033bX", "one Xtwo", 5},             // Alt-B
      {"one two\033[1;5DX", "one Xtwo", 5},         // Ctrl-Left
      {"one two\x01\033fX", "oneX two", 4},         // Alt-F
      {"one two\x01\033[1;5CX", "oneX two", 4},     //
      {"one two\x01\033d", " two", 0},              // Alt-D
      {"one.two\033\x7f", "one.", 4},               // Alt-Backspace
      {"a\033[99;99zb", "ab", 2},                   // an unknown sequence is no text
      {"\xc3\xa9\xe4\xb8\xad\x7f", "\xc3\xa9", 2},  // é中
      {"e\xcc\x81x\x02\x7f", "x", 0},               // e and its accent are one character
      {"\xf0\x9f\x91\xa9\xe2\x80\x8d\xf0\x9f\x9a\x80\x7f", "", 0},  // woman, joiner, rocket
      {"\xff\xc3(x", "\xef\xbf\xbd(x", 5},                          // ill-formed bytes
  };
  for (const Case& c : cases) {
    Typed t;
    t.type(c.keys);
    EXPECT_EQ(t.text(), c.text) << c.keys;
    EXPECT_EQ(t.editor.cursor(), c.cursor) << c.keys;
    std::string line = "> " + t.text();
    while (line.ends_with(' ')) line.pop_back();
    EXPECT_EQ(t.screen.lines(), Lines{line}) << c.keys;
  }
}

TEST(LineEditor, WrapsByWidth) {
  Typed t(10);
  t.type("12345678");
  EXPECT_EQ(t.screen.lines(), (Lines{"> 12345678"}));
  EXPECT_EQ(t.screen.row(), 1u);  // the next character's place
  EXPECT_EQ(t.screen.column(), 0);
  t.type("9");
  EXPECT_EQ(t.screen.lines(), (Lines{"> 12345678", "9"}));
  t.type("\x01");
  EXPECT_EQ(t.screen.row(), 0u);
  EXPECT_EQ(t.screen.column(), 2);
  // A wide character that does not fit goes to the next row whole.
  Typed wide(7);
  wide.type("\xe4\xb8\xad\xe4\xb8\xad\xe4\xb8\xad");
  EXPECT_EQ(wide.screen.lines(), (Lines{"> \xe4\xb8\xad\xe4\xb8\xad", "\xe4\xb8\xad"}));
  wide.type("\x02");
  EXPECT_EQ(wide.screen.row(), 1u);
  EXPECT_EQ(wide.screen.column(), 0);
}

TEST(LineEditor, FullRowsBeforeALineEnd) {
  Typed t(6);
  t.type("\033[200~1234\nx\033[201~");
  EXPECT_EQ(t.screen.lines(), (Lines{"> 1234", "  x"}));
  t.type("\x10\x05");
  EXPECT_EQ(t.screen.lines(), (Lines{"> 1234", "  x"}));
  EXPECT_EQ(t.screen.row(), 0u);
}

TEST(LineEditor, ShrinksAndGrowsWithoutTraces) {
  Typed t(10);
  t.type("123456789012345678901234567890");
  t.type("\x15");
  EXPECT_EQ(t.screen.lines(), Lines{">"});
  t.type("x");
  EXPECT_EQ(t.screen.lines(), Lines{"> x"});
}

TEST(LineEditor, TallerThanTheScreen) {
  Typed t(10, {}, 4);
  t.type("\033[200~a\nb\nc\nd\ne\nf\033[201~");
  EXPECT_EQ(t.screen.lines(), (Lines{"  c", "  d", "  e", "  f"}));
  for (int i = 0; i < 5; ++i) t.type("\033[A");
  EXPECT_EQ(t.screen.lines(), (Lines{"> a", "  b", "  c", "  d"}));
  EXPECT_EQ(t.text(), "a\nb\nc\nd\ne\nf");
}

TEST(LineEditor, SeveralLines) {
  Typed t;
  EXPECT_EQ(t.type("one\\\rtwo"), Status::editing);
  EXPECT_EQ(t.screen.lines(), (Lines{"> one", "  two"}));
  EXPECT_EQ(t.type("\r"), Status::done);
  EXPECT_EQ(t.text(), "one\ntwo");
  Typed q;
  EXPECT_EQ(q.type("\"\"\"a\rb\\\r\r"), Status::editing);
  EXPECT_EQ(q.type("\"\"\"\r"), Status::done);
  EXPECT_EQ(unquoted_input(q.text()), "a\nb\\\n");
  Typed u;
  u.type("one\033\rtwo\033[AX");  // Alt-Enter; Up stays within the text
  EXPECT_EQ(u.text(), "oneX\ntwo");
  u.type("\x05\x0b");  // Ctrl-K at a line's end joins
  EXPECT_EQ(u.text(), "oneXtwo");
}

TEST(LineEditor, PasteKeepsLinesAndNothingElse) {
  Typed t;
  t.type("<");
  EXPECT_EQ(t.type("\033[200~a\r\nb\rc\\\n\033[31m\x03\x04\033[201~"), Status::editing);
  t.type(">");
  EXPECT_EQ(t.text(), "<a\nb\nc\\\n[31m>");
}

TEST(LineEditor, History) {
  Typed t(80, {"first", "second"});
  t.type("draft\033[A");
  EXPECT_EQ(t.text(), "second");
  t.type("\x10");  // Ctrl-P
  EXPECT_EQ(t.text(), "first");
  t.type("\033[A");
  EXPECT_EQ(t.text(), "first");
  t.type("\x0e\033[B");
  EXPECT_EQ(t.text(), "draft");
  EXPECT_EQ(t.screen.lines(), Lines{"> draft"});
}

TEST(LineEditor, Search) {
  Typed t(80, {"an apple", "a pear", "another apple"});
  t.type(
      "x\x12"
      "app");
  EXPECT_EQ(t.text(), "another apple");
  EXPECT_EQ(t.screen.lines(), Lines{"(search) app: another apple"});
  t.type("\x12");
  EXPECT_EQ(t.text(), "an apple");
  t.type("\x12");
  EXPECT_EQ(t.screen.lines(), Lines{"(not found) app: an apple"});
  t.type("\x07");  // Ctrl-G: as before
  EXPECT_EQ(t.text(), "x");
  t.type("\x12pear\x01");  // any other key ends the search and acts
  EXPECT_FALSE(t.editor.searching());
  EXPECT_EQ(t.text(), "a pear");
  EXPECT_EQ(t.editor.cursor(), 0u);
  Typed u(80, {"an apple"});
  EXPECT_EQ(u.type("\x12"
                   "app\r"),
            Status::done);
  EXPECT_EQ(u.text(), "an apple");
}

TEST(LineEditor, WaysOut) {
  Typed t;
  EXPECT_EQ(t.type("\x04"), Status::end);
  EXPECT_EQ(t.type("\x03"), Status::interrupted);
  EXPECT_EQ(t.type("ab\x04"), Status::editing);
  EXPECT_EQ(t.type("\x1a"), Status::suspend);
  EXPECT_EQ(t.type("\x03"), Status::interrupted);
  t.screen.write(t.editor.leave());
  EXPECT_EQ(t.screen.row(), 1u);
  EXPECT_EQ(t.screen.column(), 0);
}

TEST(LineEditor, ClearScreen) {
  Typed t;
  t.type("ab\x0c");
  EXPECT_EQ(t.screen.lines(), Lines{"> ab"});
  EXPECT_EQ(t.screen.row(), 0u);
}

TEST(LineEditor, RandomKeysKeepTextAndScreenWhole) {
  const std::string keys[] = {"a",        " ",
                              "\xc3\xa9", "\xe4\xb8\xad",
                              "\xcc\x81", "\x7f",
                              "\x04",     "\x01",
                              "\x05",     "\x02",
                              "\x06",     "\x0b",
                              "\x15",     "\x17",
                              "\x19",     "\033[A",
                              "\033[B",   "\033[C",
                              "\033[D",   "\033b",
                              "\033f",    "\033d",
                              "\x12",     "\x07",
                              "\033\r",   "\033[200~x\ny\033[201~",
                              "\t"};
  uint32_t seed = 1;
  for (int round = 0; round < 50; ++round) {
    Typed t(11 + round % 7, {"one", "two\nlines", "\xe4\xb8\xad\xe4\xb8\xad"}, 5 + round % 20);
    for (int i = 0; i < 200; ++i) {
      seed = seed * 1664525 + 1013904223;
      t.type(keys[(seed >> 16) % std::size(keys)]);
      ASSERT_LE(t.editor.cursor(), t.text().size());
      for (const std::string& line : t.screen.lines()) ASSERT_EQ(line.find('\n'), line.npos);
    }
  }
}

TEST(LineEditor, LongWordsTakeNoLongTime) {
  Typed t;
  const std::string word(300'000, 'x');
  t.type("\033[200~" + word + " " + word + "\033[201~");
  t.type("\033b\033b\033f");
  EXPECT_EQ(t.editor.cursor(), word.size());
  t.type("\x17");
  EXPECT_EQ(t.text(), " " + word);
}

TEST(CharWidth, BothWaysAgree) {
  const char32_t some[] = {'a', 0x301, 0x200D, 0x1F600, 0x4E2D, 0xFE0F, '\n', 0x1F3FB};
  uint32_t seed = 3;
  for (int round = 0; round < 2000; ++round) {
    std::string text;
    for (int i = 0; i < 12; ++i) {
      seed = seed * 1664525 + 1013904223;
      append_utf8(text, some[(seed >> 16) % std::size(some)]);
    }
    for (size_t at = 0; at < text.size();) {
      const size_t next = at + character_at(text, at);
      ASSERT_EQ(character_before(text, next), at);
      at = next;
    }
  }
}

TEST(CharWidth, Widths) {
  EXPECT_EQ(char_width('a'), 1);
  EXPECT_EQ(char_width(0x301), 0);
  EXPECT_EQ(char_width(0x4E2D), 2);
  EXPECT_EQ(char_width(0xAC00), 2);
  EXPECT_EQ(char_width(0x1F600), 2);
  EXPECT_EQ(char_width(0xFF9E), 1);
  EXPECT_EQ(char_width(0x200D), 0);
  EXPECT_EQ(character_width("\xe2\x9d\xa4\xef\xb8\x8f"), 2);  // heart as emoji
}

}  // namespace
}  // namespace sluice
