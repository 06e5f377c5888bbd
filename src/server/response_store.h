// Answers of /v1/responses that can be asked for again or continued. Bounded by bytes: past a limit
// the least recently used go first, those of one key before others'. Any thread may call.
#pragma once

#include <atomic>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>

#include "base/keyed_hash.h"

namespace sluice {

inline constexpr size_t kMaxResponseBytes = size_t{64} << 20;

struct StoredResponse {
  int key = -1;        // whose it is
  std::string answer;  // the response object
  // A JSON list of chat messages, the answer's last; no instructions. Empty: too long to be kept.
  std::string conversation;
};

class ResponseStore {
 public:
  // `of_key`: the most that one key may have.
  explicit ResponseStore(size_t of_key, size_t bytes = kMaxResponseBytes)
      : of_key_(of_key), limit_(bytes) {}

  // One that is larger than a key may have is not kept.
  void add(const std::string& id, StoredResponse response);
  // Null: there is none, or it is another key's.
  std::shared_ptr<const StoredResponse> find(std::string_view id, int key);
  bool erase(std::string_view id, int key);
  size_t bytes() const { return bytes_.load(std::memory_order_relaxed); }

 private:
  struct Entry {
    std::string id;
    std::shared_ptr<const StoredResponse> response;
    size_t bytes = 0;
  };
  using Uses = std::list<Entry>;  // the last used first

  void drop(Uses::iterator at);
  Uses::iterator last_of(int key);

  const size_t of_key_, limit_;
  std::mutex mutex_;  // of all below
  Uses uses_;
  std::unordered_map<std::string_view, Uses::iterator, KeyedHash, std::equal_to<>> by_id_;
  std::unordered_map<int, size_t> bytes_by_key_;
  std::atomic<size_t> bytes_{0};
};

}  // namespace sluice
