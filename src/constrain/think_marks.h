// The marks around a model's thinking, as its tokens spell them. Built once per vocabulary and
// pair of marks, immutable after, shared by threads.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/token.h"

namespace sluice::constrain {

class ThinkMarks {
 public:
  // bytes[t]: what token t stands for, control tokens that spell marks included; empty: no text.
  // `ends`: tokens that end a generation. The marks are not empty.
  ThinkMarks(std::string begin,
             std::string end,
             std::span<const std::string_view> bytes,
             std::span<const Token> ends);

  const std::string& begin() const { return begin_; }
  const std::string& end() const { return end_; }
  size_t vocab_size() const { return text_at_.size() - 1; }
  size_t mask_words() const { return (vocab_size() + 31) / 32; }
  std::string_view bytes(Token t) const {
    auto i = static_cast<size_t>(t);
    return std::string_view(text_).substr(text_at_[i], text_at_[i + 1] - text_at_[i]);
  }
  std::span<const Token> ends() const { return ends_; }
  // How many bytes of the end mark a thinking that ends in `tail` has already.
  size_t matched(std::string_view tail) const;
  // Tokens that spell the end mark behind its first `matched` bytes, the longest first in each
  // place. Empty: the vocabulary cannot spell it.
  const std::vector<Token>& closing(size_t matched) const { return closing_[matched]; }
  // Tokens that continue the begin mark behind its first `matched` bytes, and no more than it.
  const std::vector<Token>& opening(size_t matched) const { return opening_[matched]; }
  // Tokens that complete the end mark behind its first `matched` bytes and go on with more than
  // one or two line breaks.
  const std::vector<Token>& overshoot(size_t matched) const { return overshoot_[matched]; }
  // Tokens of one or two line breaks, which may follow the end mark.
  const std::vector<Token>& line_breaks() const { return line_breaks_; }
  // What follows the end mark, if this text completes it behind its first `matched` bytes.
  std::optional<std::string_view> behind_end(size_t matched, std::string_view text) const;

 private:
  std::string begin_, end_;
  std::string text_;
  std::vector<uint32_t> text_at_;
  std::vector<Token> ends_;
  std::vector<std::vector<Token>> closing_, overshoot_;  // by bytes of end_
  std::vector<std::vector<Token>> opening_;              // by bytes of begin_
  std::vector<Token> line_breaks_;
};

bool is_line_breaks(std::string_view text);  // one or two

// What a request asks of the thinking before its answer.
struct Thinking {
  std::shared_ptr<const ThinkMarks> marks;
  bool open = false;            // the prompt's end opened it; else the output may
  std::optional<int> budget{};  // tokens between the marks; none: any number
};

}  // namespace sluice::constrain
