// The build without PCRE2: only patterns that need no general engine are known.
#include "text/regex_program.h"

#include "base/check.h"

namespace sluice {

struct RegexScratch::State {};
struct RegexProgram::State {};

RegexScratch::RegexScratch() = default;
RegexScratch::~RegexScratch() = default;
RegexProgram::RegexProgram(std::unique_ptr<State> state) : state_(std::move(state)) {}
RegexProgram::~RegexProgram() = default;

Result<std::unique_ptr<RegexProgram>> RegexProgram::compile(const std::string&) {
  return Error{400, "this build has no PCRE2; install libpcre2-dev and build again"};
}

RegexProgram::Outcome RegexProgram::match(std::string_view, size_t, RegexScratch&, size_t&) const {
  CHECK(false);
  return Outcome::none;
}

}  // namespace sluice
