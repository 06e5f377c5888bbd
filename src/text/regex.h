// Regular expressions of tokenizer.json files, with the meaning that Oniguruma (Ruby's syntax, the
// engine those files are written for) gives them. A pattern that repeats one class of characters is
// matched here, by our own tables and in linear time; any other goes to PCRE2, under limits of work
// and time. Immutable, so any thread may use it.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "text/regex_program.h"

namespace sluice {

// A set of characters: those of some categories, white space, and ranges; or all others.
struct CharSet {
  uint32_t categories = 0;  // bit 1 << Category
  bool space = false;       // White_Space
  bool negated = false;
  std::vector<std::pair<char32_t, char32_t>> ranges;  // first and last
  uint64_t ascii[2] = {};                             // members below 0x80; index() makes it

  void index();
  bool has(char32_t c) const { return c < 0x80 ? (ascii[c / 64] >> c % 64 & 1) != 0 : find(c); }
  bool find(char32_t c) const;
};

// A?BC...D{min,max}: classes in a row, the first perhaps optional, the last perhaps repeated,
// perhaps up to the end of a line ($).
struct ClassPattern {
  bool optional_first = false;
  std::vector<CharSet> sets;  // one character each; the last one min to max times
  size_t min = 1, max = 1;
  bool line_end = false;
};

struct TextRange {
  uint32_t begin = 0, end = 0;
};

class Regex {
 public:
  static Result<std::shared_ptr<const Regex>> compile(std::string_view pattern);

  // Replaces `out` by all matches in `text` (valid UTF-8), left to right and apart; empty ones are
  // among them, but none at the end of the match before it. The error (400): the pattern needs more
  // work than is allowed for this text.
  Result<void> find_all(std::string_view text,
                        RegexScratch& scratch,
                        std::vector<TextRange>& out) const;

 private:
  void find_classes(std::string_view text, std::vector<TextRange>& out) const;

  std::string pattern_;  // as the file has it, for messages
  std::unique_ptr<ClassPattern> classes_;
  std::unique_ptr<RegexProgram> program_;  // where classes_ is null
};

// In regex_syntax.cc. nullopt: not of that form.
std::unique_ptr<ClassPattern> parse_class_pattern(std::string_view pattern);
// The same pattern for PCRE2; an error for what means something else there.
Result<std::string> translate_pattern(std::string_view pattern);

}  // namespace sluice
