// The last turns of conversations: which one a chat goes on from, and where the new prompt parts
// from what that turn computed. Chat templates write earlier turns differently than they were
// generated (thinking left out, calls written anew, today's date), and then the prefix cache ends
// there. Only explains; nothing is computed by it. Bounded by bytes, the oldest go first. Any
// thread may call.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/json.h"
#include "base/keyed_hash.h"
#include "base/named.h"
#include "core/request.h"

namespace sluice {

// Where a prompt first differs from the turn it goes on from.
enum class TurnPart : uint8_t {
  none,          // nowhere: it has all of that turn, or is the beginning of it
  conversation,  // what came before the answer
  opening,       // the words of the template that opened the answer
  thinking,
  answer,
};

inline constexpr NamedValue<TurnPart> kTurnParts[] = {{"conversation", TurnPart::conversation},
                                                      {"opening", TurnPart::opening},
                                                      {"thinking", TurnPart::thinking},
                                                      {"answer", TurnPart::answer}};

struct TurnDifference {
  RequestId after = 0;                   // the turn's request; 0: none is known
  int32_t num_tokens = 0, num_same = 0;  // of that turn, prompt and output; of both, from the start
  TurnPart part = TurnPart::none;
};

// Of each beginning of a list of messages: the first one, the first two, and so on.
std::vector<Fingerprint> fingerprint_turns(const json::array& messages);

struct FinishedTurn {
  TenantId tenant = 0;
  RequestId request = 0;
  size_t num_messages = 0;
  Fingerprint messages;
  std::shared_ptr<const std::vector<Token>> prompt;
  std::vector<Token> output;
  int num_thinking = 0;  // of the output's tokens, the first ones
};

inline constexpr size_t kMaxTurnBytes = size_t{8} << 20;

class TurnLog {
 public:
  explicit TurnLog(size_t bytes = kMaxTurnBytes) : limit_(bytes) {}

  // One that would take more than a quarter of the memory is not kept.
  void add(FinishedTurn turn);
  // The turn whose messages `messages` begins with: the one with the most, then the latest.
  TurnDifference compare(TenantId tenant,
                         std::span<const Fingerprint> messages,
                         std::span<const Token> prompt) const;

 private:
  using Kept = std::shared_ptr<const FinishedTurn>;
  struct Key {
    TenantId tenant = 0;
    Fingerprint messages;
    bool operator==(const Key&) const = default;
  };
  struct KeyHash {
    size_t operator()(const Key& k) const { return FingerprintHash()(k.messages); }
  };
  static size_t bytes_of(const FinishedTurn& turn);
  Kept find(TenantId tenant, std::span<const Fingerprint> messages) const;

  const size_t limit_;
  mutable std::mutex mutex_;  // of all below
  std::deque<Kept> turns_;    // the latest last
  std::unordered_map<Key, Kept, KeyHash> latest_;
  size_t bytes_ = 0;
};

}  // namespace sluice
