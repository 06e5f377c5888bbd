#include "constrain/output_matcher.h"

#include <algorithm>

namespace sluice::constrain {

namespace {

void allow_token(std::span<uint32_t> bits, Token t) {
  bits[static_cast<size_t>(t) / 32] |= 1u << (static_cast<uint32_t>(t) % 32);
}

void forbid_token(std::span<uint32_t> bits, Token t) {
  bits[static_cast<size_t>(t) / 32] &= ~(1u << (static_cast<uint32_t>(t) % 32));
}

void allow_all(std::span<uint32_t> bits, size_t vocab) {
  std::ranges::fill(bits, UINT32_MAX);
  if (vocab % 32 != 0) bits[vocab / 32] = (1u << (vocab % 32)) - 1;
}

const std::string kNoFailure;

}  // namespace

OutputMatcher::OutputMatcher(std::shared_ptr<const Constraint> answer,
                             std::shared_ptr<const Thinking> thinking)
    : constraint_(std::move(answer)), thinking_(std::move(thinking)) {
  if (constraint_) matcher_.emplace(constraint_);
  if (!thinking_) return;
  phase_ = Phase::before;
  if (thinking_->open) begin_thinking("");
}

size_t OutputMatcher::mask_words() const {
  return constraint_ ? constraint_->trie().mask_words() : thinking_->marks->mask_words();
}

const std::string& OutputMatcher::failure() const {
  return matcher_ ? matcher_->failure() : kNoFailure;
}

void OutputMatcher::forget_failure() {
  if (matcher_) matcher_->rollback(0);
}

void OutputMatcher::begin_thinking(std::string_view first) {
  phase_ = Phase::thinking;
  think(first);
  check_budget();
}

void OutputMatcher::think(std::string_view text) {
  const ThinkMarks& marks = *thinking_->marks;
  if (auto rest = marks.behind_end(marks.matched(tail_), text)) return end_thinking(*rest);
  tail_ += text;
  const size_t keep = marks.end().size() - 1;
  if (tail_.size() > keep) tail_.erase(0, tail_.size() - keep);
}

// `rest`: what the token that completed the end mark has behind it. Masks see to it that it is
// nothing but line breaks where a constraint follows.
void OutputMatcher::end_thinking(std::string_view rest) {
  phase_ = !constraint_ ? Phase::free : rest.empty() ? Phase::gap : Phase::answer;
  // The constraint may have followed the begin mark as if that was the answer.
  if (constraint_ && !thinking_->open) matcher_.emplace(constraint_);
}

void OutputMatcher::check_budget() {
  if (phase_ != Phase::thinking || !thinking_->budget || num_thought_ < *thinking_->budget) return;
  const ThinkMarks& marks = *thinking_->marks;
  closing_ = marks.closing(0);
  // One token that spells the mark is what the model was trained on, whatever came before it.
  if (closing_.size() != 1) {
    const std::vector<Token>& rest = marks.closing(marks.matched(tail_));
    if (!rest.empty()) closing_ = rest;
  }
  phase_ = Phase::closing;
}

Result<void> OutputMatcher::fill_mask(std::span<uint32_t> bits) {
  if (phase_ == Phase::answer) return matcher_->fill_mask(bits);
  const ThinkMarks& marks = *thinking_->marks;
  if (phase_ == Phase::closing) {
    std::ranges::fill(bits, 0u);
    if (!closing_.empty()) allow_token(bits, closing_.front());
    return {};
  }
  if (!constraint_) {
    allow_all(bits, marks.vocab_size());
    return {};
  }
  if (phase_ == Phase::thinking) {
    allow_all(bits, marks.vocab_size());
    for (Token t : marks.ends()) forbid_token(bits, t);
    for (Token t : marks.overshoot(marks.matched(tail_))) forbid_token(bits, t);
    return {};
  }
  std::ranges::fill(bits, 0u);
  if (phase_ == Phase::gap || answer_lives_) {
    if (Result<void> filled = matcher_->fill_mask(bits); !filled) return filled;
  }
  for (Token t : phase_ == Phase::gap ? marks.line_breaks() : marks.opening(opened_))
    allow_token(bits, t);
  return {};
}

bool OutputMatcher::accept(Token token) {
  switch (phase_) {
    case Phase::answer:
      return matcher_->accept(token);
    case Phase::gap:
      return accept_gap(token);
    case Phase::before:
      return accept_before(token);
    case Phase::thinking:
      ++num_thought_;
      think(thinking_->marks->bytes(token));
      check_budget();
      return true;
    case Phase::closing:
      if (closing_.empty() || token != closing_.front()) return false;
      closing_ = closing_.subspan(1);
      if (closing_.empty()) end_thinking("");
      return true;
    case Phase::free:
      return true;
  }
  return false;
}

// The output as it is may still become the begin mark, or the answer, or either.
bool OutputMatcher::accept_before(Token token) {
  const ThinkMarks& marks = *thinking_->marks;
  if (constraint_) answer_lives_ = answer_lives_ && matcher_->accept(token);
  std::string_view text = marks.bytes(token);
  // Models may write white space first.
  if (opened_ == 0 && (!constraint_ || (answer_lives_ && !text.empty()))) {
    size_t first = text.find_first_not_of(" \n\r\t");
    if (first == text.npos) return true;
    text.remove_prefix(first);
  }
  std::string_view left = std::string_view(marks.begin()).substr(opened_);
  if (text.starts_with(left)) {
    begin_thinking(text.substr(left.size()));
    return true;
  }
  if (!text.empty() && left.starts_with(text)) {
    opened_ += text.size();
    return true;
  }
  phase_ = constraint_ ? Phase::answer : Phase::free;
  return !constraint_ || answer_lives_;
}

bool OutputMatcher::accept_gap(Token token) {
  phase_ = Phase::answer;
  return matcher_->accept(token) || is_line_breaks(thinking_->marks->bytes(token));
}

std::vector<Token> OutputMatcher::forced_tokens(size_t max_tokens) {
  if (phase_ == Phase::answer) return matcher_->forced_tokens(max_tokens);
  if (phase_ != Phase::closing) return {};
  auto num = static_cast<ptrdiff_t>(std::min(max_tokens, closing_.size()));
  return {closing_.begin(), closing_.begin() + num};
}

}  // namespace sluice::constrain
