#include "text/special_tokens.h"

#include <algorithm>

#include "base/check.h"

namespace sluice {

namespace {
constexpr auto kByChar = [](const std::pair<char, uint32_t>& child, char c) {
  return child.first < c;
};
}  // namespace

SpecialTokens::SpecialTokens() : nodes_(1) {}

void SpecialTokens::add(std::string_view text, Token token, bool anywhere) {
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
  nodes_[at].anywhere = anywhere;
}

SpecialTokens::Match SpecialTokens::match(std::string_view text, size_t trusted) const {
  Match best;
  uint32_t at = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto& children = nodes_[at].children;
    auto it = std::lower_bound(children.begin(), children.end(), text[i], kByChar);
    if (it == children.end() || it->first != text[i]) break;
    at = it->second;
    const Node& node = nodes_[at];
    if (node.token != kNoToken && (node.anywhere || i < trusted)) best = {node.token, i + 1};
  }
  return best;
}

}  // namespace sluice
