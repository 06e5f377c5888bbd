// Where one sequence stands in what its output must be: thinking, which a budget may end, then an
// answer, which a constraint may hold. Owned by one sequence, used by one thread at a time.
//
// While the output thinks every token is allowed, but for ends where an answer must follow. When
// the budget is used up, only the rest of the end mark is allowed.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/token.h"
#include "constrain/matcher.h"
#include "constrain/think_marks.h"

namespace sluice::constrain {

class OutputMatcher {
 public:
  // Either may be null: no constraint, nothing about thinking.
  OutputMatcher(std::shared_ptr<const Constraint> answer, std::shared_ptr<const Thinking> thinking);

  size_t mask_words() const;
  // As Matcher's.
  Result<void> fill_mask(std::span<uint32_t> bits);
  bool accept(Token token);
  std::vector<Token> forced_tokens(size_t max_tokens);
  const std::string& failure() const;
  void forget_failure();  // of looking ahead

 private:
  enum class Phase : uint8_t {
    before,    // the output may begin with thinking
    thinking,  // within it
    closing,   // the budget is used up
    gap,       // behind the end mark: line breaks may come before the answer
    answer,
    free,  // no constraint: any text
  };
  void begin_thinking(std::string_view first);
  void think(std::string_view text);
  void end_thinking(std::string_view rest);
  void check_budget();
  bool accept_before(Token token);
  bool accept_gap(Token token);

  std::shared_ptr<const Constraint> constraint_;
  std::shared_ptr<const Thinking> thinking_;
  std::optional<Matcher> matcher_;
  Phase phase_ = Phase::answer;
  bool answer_lives_ = true;  // before: the constraint could take the output as it is
  size_t opened_ = 0;         // before: bytes of the begin mark
  int num_thought_ = 0;       // tokens
  std::string tail_;          // thinking: the last bytes, fewer than the end mark has
  std::span<const Token> closing_;
};

}  // namespace sluice::constrain
