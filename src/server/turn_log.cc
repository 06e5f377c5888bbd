#include "server/turn_log.h"

#include <algorithm>
#include <utility>

namespace sluice {

namespace {

// No template opens an answer with more tokens than this.
constexpr size_t kMaxOpening = 16;

TurnPart part_at(const FinishedTurn& turn, size_t at) {
  const size_t prompt = turn.prompt->size();
  if (at + kMaxOpening < prompt) return TurnPart::conversation;
  const auto thinking = static_cast<size_t>(turn.num_thinking);
  if (at < prompt + thinking && thinking > 0) return TurnPart::thinking;
  return at < prompt ? TurnPart::opening : TurnPart::answer;
}

}  // namespace

std::vector<Fingerprint> fingerprint_turns(const json::array& messages) {
  std::vector<Fingerprint> out;
  std::string text;
  for (const json::value& m : messages) {
    text += json::serialize(m);
    const Fingerprint f = fingerprint(text);
    out.push_back(f);
    text.assign(reinterpret_cast<const char*>(&f), sizeof f);  // begins the next
  }
  return out;
}

size_t TurnLog::bytes_of(const FinishedTurn& turn) {
  constexpr size_t kOverhead = 256;  // of lists and allocations
  return (turn.prompt->capacity() + turn.output.capacity()) * sizeof(Token) + sizeof turn +
         kOverhead;
}

void TurnLog::add(FinishedTurn turn) {
  turn.output.shrink_to_fit();
  const size_t bytes = bytes_of(turn);
  if (bytes > limit_ / 4) return;
  auto kept = std::make_shared<const FinishedTurn>(std::move(turn));
  std::lock_guard lock(mutex_);
  while (bytes_ + bytes > limit_) {
    const Kept& oldest = turns_.front();
    const auto at = latest_.find({oldest->tenant, oldest->messages});
    if (at != latest_.end() && at->second == oldest) latest_.erase(at);
    bytes_ -= bytes_of(*oldest);
    turns_.pop_front();
  }
  latest_[{kept->tenant, kept->messages}] = kept;
  turns_.push_back(std::move(kept));
  bytes_ += bytes;
}

TurnLog::Kept TurnLog::find(TenantId tenant, std::span<const Fingerprint> messages) const {
  std::lock_guard lock(mutex_);
  for (size_t num = messages.size(); num > 0; --num)
    if (const auto at = latest_.find({tenant, messages[num - 1]}); at != latest_.end())
      return at->second;
  return nullptr;
}

TurnDifference TurnLog::compare(TenantId tenant,
                                std::span<const Fingerprint> messages,
                                std::span<const Token> prompt) const {
  const Kept turn = find(tenant, messages);
  if (!turn) return {};
  const std::vector<Token>& before = *turn->prompt;
  auto same = static_cast<size_t>(std::ranges::mismatch(prompt, before).in1 - prompt.begin());
  if (same == before.size()) {
    const auto rest = prompt.subspan(same);
    same += static_cast<size_t>(std::ranges::mismatch(rest, turn->output).in1 - rest.begin());
  }
  const size_t all = before.size() + turn->output.size();
  TurnDifference out;
  out.after = turn->request;
  out.num_tokens = static_cast<int32_t>(all);
  out.num_same = static_cast<int32_t>(same);
  if (same < std::min(all, prompt.size())) out.part = part_at(*turn, same);
  return out;
}

}  // namespace sluice
