#include <algorithm>
#include <limits>

#include "base/check.h"
#include "exec/sampler.h"

namespace sluice {

namespace {

constexpr float kMinusInf = -std::numeric_limits<float>::infinity();
constexpr size_t kMinTable = 256;

bool has(std::span<const float> logits, Token t) {
  return t >= 0 && static_cast<size_t>(t) < logits.size();
}

bool in_mask(std::span<const uint32_t> mask, size_t t) {
  return t / 32 < mask.size() && (mask[t / 32] >> (t % 32) & 1) != 0;
}

}  // namespace

void RowState::open(const SamplingSpec& spec, std::span<const Token> history, size_t num_prompt) {
  CHECK(num_prompt <= history.size());
  for (const std::vector<Token>& bad : spec.bad_sequences)
    CHECK(!bad.empty() && bad.size() <= kMaxBadSequence);
  spec_ = spec;
  mask_ = {};
  num_generated_ = 0;
  penalised_ =
      spec_.repetition_penalty != 1 || spec_.frequency_penalty != 0 || spec_.presence_penalty != 0;
  allowed_.assign(spec_.allowed.begin(), spec_.allowed.end());
  std::sort(allowed_.begin(), allowed_.end());
  allowed_.erase(std::unique(allowed_.begin(), allowed_.end()), allowed_.end());
  tail_.clear();
  seen_.clear();
  std::fill(table_.begin(), table_.end(), -1);
  if (penalised_ && spec_.repetition_penalty != 1) {
    for (Token t : history.first(num_prompt)) seen(t);
  }
  for (Token t : history.subspan(num_prompt)) add(t);
}

void RowState::add(Token token) {
  ++num_generated_;
  if (penalised_) ++seen(token).num_generated;
  if (!spec_.bad_sequences.empty()) {
    if (tail_.size() == kMaxBadSequence) tail_.erase(tail_.begin());
    tail_.push_back(token);
  }
}

RowState::Seen& RowState::seen(Token token) {
  if (2 * (seen_.size() + 1) > table_.size()) grow();
  size_t mask = table_.size() - 1;
  size_t at = (static_cast<uint32_t>(token) * 0x9E3779B1u >> 7) & mask;
  for (; table_[at] >= 0; at = (at + 1) & mask) {
    Seen& s = seen_[static_cast<size_t>(table_[at])];
    if (s.token == token) return s;
  }
  table_[at] = static_cast<int32_t>(seen_.size());
  return seen_.emplace_back(Seen{token, 0});
}

void RowState::grow() {
  size_t size = std::max(kMinTable, 2 * table_.size());
  table_.assign(size, -1);
  seen_.reserve(size / 2);
  for (size_t i = 0; i < seen_.size(); ++i) {
    size_t at = (static_cast<uint32_t>(seen_[i].token) * 0x9E3779B1u >> 7) & (size - 1);
    while (table_[at] >= 0) at = (at + 1) & (size - 1);
    table_[at] = static_cast<int32_t>(i);
  }
}

bool RowState::adjusts() const {
  return penalised_ || !mask_.empty() || !spec_.allowed.empty() || !spec_.logit_bias.empty() ||
         !spec_.bad_sequences.empty() ||
         (num_generated_ < spec_.min_tokens && !spec_.banned_until_min.empty());
}

void RowState::adjust(std::span<float> logits) const {
  apply_masks(logits);
  for (auto [t, bias] : spec_.logit_bias) {
    if (has(logits, t)) logits[static_cast<size_t>(t)] += bias;
  }
  if (penalised_) apply_penalties(logits);
}

void RowState::apply_masks(std::span<float> logits) const {
  for (size_t at = 0; at < logits.size() && !mask_.empty(); at += 32) {
    uint32_t word = at / 32 < mask_.size() ? mask_[at / 32] : 0;
    if (word == ~uint32_t{0}) continue;
    size_t num = std::min<size_t>(32, logits.size() - at);
    for (size_t k = 0; k < num; ++k) logits[at + k] = word >> k & 1 ? logits[at + k] : kMinusInf;
  }
  if (!spec_.allowed.empty()) {
    auto rest = logits.begin();
    for (Token t : allowed_) {
      if (!has(logits, t)) continue;
      auto at = logits.begin() + t;
      std::fill(rest, at, kMinusInf);
      rest = at + 1;
    }
    std::fill(rest, logits.end(), kMinusInf);
  }
  if (bans_ends(static_cast<int>(logits.size()))) {
    for (Token t : spec_.banned_until_min) {
      if (has(logits, t)) logits[static_cast<size_t>(t)] = kMinusInf;
    }
  }
  for (const std::vector<Token>& bad : spec_.bad_sequences) {
    Token t = bad.back();
    if (has(logits, t) && is_bad(t)) logits[static_cast<size_t>(t)] = kMinusInf;
  }
}

bool RowState::is_bad(Token token) const {
  return std::any_of(spec_.bad_sequences.begin(), spec_.bad_sequences.end(), [&](const auto& bad) {
    size_t before = bad.size() - 1;
    return bad.back() == token && before <= tail_.size() &&
           std::equal(bad.begin(), bad.end() - 1, tail_.end() - static_cast<ptrdiff_t>(before));
  });
}

void RowState::apply_penalties(std::span<float> logits) const {
  float repetition = spec_.repetition_penalty;
  for (const Seen& s : seen_) {
    if (!has(logits, s.token)) continue;
    float& x = logits[static_cast<size_t>(s.token)];
    if (repetition != 1) x = x > 0 ? x / repetition : x * repetition;
    if (s.num_generated > 0) {
      x -= spec_.frequency_penalty * static_cast<float>(s.num_generated);
      x -= spec_.presence_penalty;
    }
  }
}

// A constraint wins over min_tokens: where nothing but banned ids is left of it, they may end the
// output.
bool RowState::bans_ends(int vocab) const {
  if (num_generated_ >= spec_.min_tokens || spec_.banned_until_min.empty()) return false;
  return mask_.empty() || first_allowed(vocab, true) != kNoToken;
}

Token RowState::first_allowed(int vocab, bool ban_ends) const {
  const std::vector<Token>& ends = spec_.banned_until_min;
  for (Token t = 0; t < vocab; ++t) {
    auto at = static_cast<size_t>(t);
    if (!mask_.empty() && t % 32 == 0 && (at / 32 >= mask_.size() || mask_[at / 32] == 0)) {
      t += 31;
      continue;
    }
    if (!mask_.empty() && !in_mask(mask_, at)) continue;
    if (!allowed_.empty() && !std::binary_search(allowed_.begin(), allowed_.end(), t)) continue;
    if (ban_ends && std::find(ends.begin(), ends.end(), t) != ends.end()) continue;
    if (!is_bad(t)) return t;
  }
  return kNoToken;
}

Token RowState::lowest_allowed(int vocab) const {
  Token token = first_allowed(vocab, bans_ends(vocab));
  return token == kNoToken && mask_.empty() ? 0 : token;
}

}  // namespace sluice
