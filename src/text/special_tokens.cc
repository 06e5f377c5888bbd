#include "text/special_tokens.h"

#include <algorithm>

#include "base/check.h"
#include "text/unicode.h"

namespace sluice {

namespace {

constexpr auto kByChar = [](const std::pair<char, uint32_t>& child, char c) {
  return child.first < c;
};

// The character that ends at `end`; end > 0.
size_t last_char(std::string_view text, size_t end) {
  do {
    --end;
  } while (end > 0 && (static_cast<uint8_t>(text[end]) & 0xC0) == 0x80);
  return end;
}

bool is_single_word(std::string_view text, size_t begin, size_t end) {
  if (begin > 0 && is_word(code_point_at(text, last_char(text, begin)).value)) return false;
  return end == text.size() || !is_word(code_point_at(text, end).value);
}

size_t strip_left(std::string_view text, size_t begin, size_t floor) {
  while (begin > floor) {
    size_t at = last_char(text, begin);
    if (at < floor || code_point_at(text, at).cls != CharClass::space) break;
    begin = at;
  }
  return begin;
}

size_t strip_right(std::string_view text, size_t end) {
  for (CodePoint p = code_point_at(text, end); p.cls == CharClass::space;
       p = code_point_at(text, end)) {
    end += p.size;
  }
  return end;
}

}  // namespace

SpecialTokens::SpecialTokens() : nodes_(1) {}

void SpecialTokens::add(std::string_view text, Token token, Flags flags) {
  CHECK(!text.empty());
  starts_[static_cast<uint8_t>(text[0])] = true;
  uint32_t at = 0;
  for (char c : text) {
    auto& children = nodes_[at].children;
    auto it = std::lower_bound(children.begin(), children.end(), c, kByChar);
    if (it != children.end() && it->first == c) {
      at = it->second;
    } else {
      uint32_t child = static_cast<uint32_t>(nodes_.size());
      children.insert(it, {c, child});
      nodes_.emplace_back();
      at = child;
    }
  }
  if (nodes_[at].token != kNoToken) return;
  nodes_[at].token = token;
  nodes_[at].flags = flags;
}

SpecialTokens::Match SpecialTokens::match(std::string_view text, size_t trusted) const {
  Flags flags;
  return match(text, trusted, flags);
}

SpecialTokens::Match SpecialTokens::match(std::string_view text,
                                          size_t trusted,
                                          Flags& flags) const {
  Match best;
  uint32_t at = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto& children = nodes_[at].children;
    auto it = std::lower_bound(children.begin(), children.end(), text[i], kByChar);
    if (it == children.end() || it->first != text[i]) break;
    at = it->second;
    const Node& node = nodes_[at];
    if (node.token != kNoToken && (node.flags.anywhere || i < trusted)) {
      best = {node.token, i + 1};
      flags = node.flags;
    }
  }
  return best;
}

void SpecialTokens::find_all(std::string_view text, TrustRuns trust, std::vector<Hit>& hits) const {
  hits.clear();
  if (empty()) return;
  size_t pos = 0, taken = 0;  // `taken`: the end of the last hit
  bool trusted = trust.first_trusted;
  for (size_t run_end : trust.ends) {
    while (pos < run_end) {
      if (!starts_[static_cast<uint8_t>(text[pos])]) {
        ++pos;
        continue;
      }
      Flags flags;
      Match m = match(text.substr(pos), trusted ? run_end - pos : 0, flags);
      if (m.token == kNoToken) {
        ++pos;
        continue;
      }
      size_t begin = pos, end = pos + m.size;
      pos = end;
      if (flags.single_word && !is_single_word(text, begin, end)) continue;
      if (flags.lstrip) begin = strip_left(text, begin, taken);
      if (flags.rstrip) end = strip_right(text, end);
      hits.push_back({m.token, begin, end});
      taken = end;
    }
    trusted = !trusted;
  }
}

}  // namespace sluice
