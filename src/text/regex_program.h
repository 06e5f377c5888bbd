// A compiled pattern of the general regular-expression engine: PCRE2 where the build has it
// (regex_pcre2.cc), else a refusal that says so (regex_none.cc).
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"

namespace sluice {

// Room that matching needs, reused between calls; one per encode, not shared.
class RegexScratch {
 public:
  RegexScratch();
  ~RegexScratch();
  RegexScratch(const RegexScratch&) = delete;
  RegexScratch& operator=(const RegexScratch&) = delete;

 private:
  friend class RegexProgram;
  struct State;
  std::unique_ptr<State> state_;
};

class RegexProgram {
 public:
  static Result<std::unique_ptr<RegexProgram>> compile(const std::string& pattern);
  ~RegexProgram();
  RegexProgram(const RegexProgram&) = delete;
  RegexProgram& operator=(const RegexProgram&) = delete;

  enum class Outcome { match, none, too_much };
  // A match that starts exactly at `pos`; `end` is set for a match.
  Outcome match(std::string_view text, size_t pos, RegexScratch& scratch, size_t& end) const;

 private:
  struct State;
  explicit RegexProgram(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace sluice
