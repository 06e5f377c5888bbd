#include "constrain/think_marks.h"

#include <algorithm>

namespace sluice::constrain {

bool is_line_breaks(std::string_view text) { return text == "\n" || text == "\n\n"; }

ThinkMarks::ThinkMarks(std::string begin,
                       std::string end,
                       std::span<const std::string_view> bytes,
                       std::span<const Token> ends)
    : begin_(std::move(begin)),
      end_(std::move(end)),
      ends_(ends.begin(), ends.end()),
      closing_(end_.size()),
      overshoot_(end_.size()),
      opening_(begin_.size()) {
  text_at_.reserve(bytes.size() + 1);
  text_at_.push_back(0);
  std::vector<std::vector<Token>> parts(end_.size());  // tokens that stand at a place of end_
  for (size_t i = 0; i < bytes.size(); ++i) {
    const auto t = static_cast<Token>(i);
    std::string_view text = bytes[i];
    text_ += text;
    text_at_.push_back(static_cast<uint32_t>(text_.size()));
    if (text.empty()) continue;
    if (is_line_breaks(text)) line_breaks_.push_back(t);
    for (size_t k = 0; k < begin_.size(); ++k) {
      if (std::string_view(begin_).substr(k).starts_with(text)) opening_[k].push_back(t);
    }
    for (size_t k = 0; k < end_.size(); ++k) {
      if (std::string_view(end_).substr(k).starts_with(text)) parts[k].push_back(t);
    }
    if (text.find(end_.back()) >= text.size() - 1) continue;  // nothing behind the mark's end
    for (size_t k = 0; k < end_.size(); ++k) {
      std::optional<std::string_view> rest = behind_end(k, text);
      if (rest && !rest->empty() && !is_line_breaks(*rest)) overshoot_[k].push_back(t);
    }
  }
  for (size_t k = end_.size(); k-- > 0;) {
    std::ranges::stable_sort(parts[k], std::greater<>(),
                             [&](Token t) { return this->bytes(t).size(); });
    for (Token t : parts[k]) {
      size_t next = k + this->bytes(t).size();
      if (next < end_.size() && closing_[next].empty()) continue;
      closing_[k] = {t};
      if (next < end_.size())
        closing_[k].insert(closing_[k].end(), closing_[next].begin(), closing_[next].end());
      break;
    }
  }
}

size_t ThinkMarks::matched(std::string_view tail) const {
  for (size_t n = std::min(tail.size(), end_.size() - 1); n > 0; --n) {
    if (tail.ends_with(std::string_view(end_).substr(0, n))) return n;
  }
  return 0;
}

std::optional<std::string_view> ThinkMarks::behind_end(size_t matched,
                                                       std::string_view text) const {
  std::string all = end_.substr(0, matched) + std::string(text);
  size_t at = all.find(end_);
  if (at == std::string::npos) return {};
  return text.substr(at + end_.size() - matched);
}

}  // namespace sluice::constrain
