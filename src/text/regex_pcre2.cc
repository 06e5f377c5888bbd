#include <algorithm>

#include "base/check.h"
#include "base/str.h"
#include "text/regex_program.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

namespace sluice {

namespace {

constexpr size_t kMaxPattern = 64 << 10;
constexpr uint32_t kMaxNesting = 100;
constexpr size_t kMaxJitCode = 64 << 10;   // compiled size; translating more takes too long
constexpr uint32_t kHeapLimit = 64 << 10;  // KiB
constexpr size_t kJitStack = 1 << 20;

// Backtracks that one attempt may take: some for every character, so that honest patterns pass on
// long runs, and no more, so that the others end.
uint32_t match_limit(size_t text_size) {
  return static_cast<uint32_t>(std::min<size_t>(100'000 + 4 * text_size, 1u << 30));
}

}  // namespace

struct RegexScratch::State {
  pcre2_match_data* data = pcre2_match_data_create(1, nullptr);
  pcre2_match_context* context = pcre2_match_context_create(nullptr);
  pcre2_jit_stack* stack = nullptr;

  State() {
    if (data == nullptr || context == nullptr) throw std::bad_alloc();
    pcre2_set_heap_limit(context, kHeapLimit);
  }
  ~State() {
    pcre2_match_data_free(data);
    pcre2_match_context_free(context);
    if (stack != nullptr) pcre2_jit_stack_free(stack);
  }
};

struct RegexProgram::State {
  pcre2_code* code = nullptr;
  bool jit = false;
  ~State() { pcre2_code_free(code); }
};

RegexScratch::RegexScratch() = default;
RegexScratch::~RegexScratch() = default;
RegexProgram::RegexProgram(std::unique_ptr<State> state) : state_(std::move(state)) {}
RegexProgram::~RegexProgram() = default;

Result<std::unique_ptr<RegexProgram>> RegexProgram::compile(const std::string& pattern) {
  std::unique_ptr<pcre2_compile_context, decltype(&pcre2_compile_context_free)> context(
      pcre2_compile_context_create(nullptr), &pcre2_compile_context_free);
  if (!context) throw std::bad_alloc();
  pcre2_set_max_pattern_length(context.get(), kMaxPattern);
  pcre2_set_parens_nest_limit(context.get(), kMaxNesting);
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  int error = 0;
  PCRE2_SIZE at = 0;
  auto state = std::make_unique<State>();
  state->code = pcre2_compile(
      reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
      PCRE2_UTF | PCRE2_UCP | PCRE2_ANCHORED | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, &error,
      &at, context.get());
  if (state->code == nullptr) {
    char message[200] = {};
    pcre2_get_error_message(error, reinterpret_cast<PCRE2_UCHAR*>(message), sizeof message);
    return Error{400, message};
  }
  size_t size = 0;
  pcre2_pattern_info(state->code, PCRE2_INFO_SIZE, &size);
  state->jit = size <= kMaxJitCode && pcre2_jit_compile(state->code, PCRE2_JIT_COMPLETE) == 0;
  return std::unique_ptr<RegexProgram>(new RegexProgram(std::move(state)));
}

RegexProgram::Outcome RegexProgram::match(std::string_view text,
                                          size_t pos,
                                          RegexScratch& scratch,
                                          size_t& end) const {
  if (!scratch.state_) scratch.state_ = std::make_unique<RegexScratch::State>();
  RegexScratch::State& s = *scratch.state_;
  if (state_->jit && s.stack == nullptr) {
    s.stack = pcre2_jit_stack_create(32 << 10, kJitStack, nullptr);
    pcre2_jit_stack_assign(s.context, nullptr, s.stack);
  }
  pcre2_set_match_limit(s.context, match_limit(text.size()));
  auto run = [&](uint32_t options) {
    return pcre2_match(state_->code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), pos,
                       PCRE2_NO_UTF_CHECK | options, s.data, s.context);
  };
  int rc = run(0);
  // Deep recursion needs more than the stack of compiled code; the interpreter uses the heap.
  if (rc == PCRE2_ERROR_JIT_STACKLIMIT) rc = run(PCRE2_NO_JIT);
  if (rc == PCRE2_ERROR_NOMATCH) return Outcome::none;
  if (rc < 0) return Outcome::too_much;
  const PCRE2_SIZE* found = pcre2_get_ovector_pointer(s.data);
  // \K and lookbehind may report odd places; only a match from here forward counts.
  if (found[0] != pos || found[1] < pos || found[1] > text.size()) return Outcome::none;
  end = found[1];
  return Outcome::match;
}

}  // namespace sluice
