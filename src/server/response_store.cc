#include "server/response_store.h"

#include <utility>

namespace sluice {

void ResponseStore::add(const std::string& id, StoredResponse response) {
  constexpr size_t kOverhead = 512;  // of lists, maps and strings
  const int key = response.key;
  response.answer.shrink_to_fit(), response.conversation.shrink_to_fit();
  const size_t bytes =
      response.answer.size() + response.conversation.size() + id.size() + kOverhead;
  if (bytes > of_key_ || bytes > limit_) return;
  auto kept = std::make_shared<const StoredResponse>(std::move(response));
  std::lock_guard lock(mutex_);
  if (by_id_.contains(id)) return;
  while (bytes_by_key_[key] + bytes > of_key_) drop(last_of(key));
  while (bytes_ + bytes > limit_) drop(std::prev(uses_.end()));
  uses_.push_front({id, std::move(kept), bytes});
  by_id_.emplace(uses_.front().id, uses_.begin());
  bytes_by_key_[key] += bytes;
  bytes_ += bytes;
}

std::shared_ptr<const StoredResponse> ResponseStore::find(std::string_view id, int key) {
  std::lock_guard lock(mutex_);
  auto found = by_id_.find(id);
  if (found == by_id_.end() || found->second->response->key != key) return nullptr;
  uses_.splice(uses_.begin(), uses_, found->second);
  return found->second->response;
}

bool ResponseStore::erase(std::string_view id, int key) {
  std::lock_guard lock(mutex_);
  auto found = by_id_.find(id);
  if (found == by_id_.end() || found->second->response->key != key) return false;
  drop(found->second);
  return true;
}

void ResponseStore::drop(Uses::iterator at) {
  bytes_ -= at->bytes;
  auto of_key = bytes_by_key_.find(at->response->key);
  if ((of_key->second -= at->bytes) == 0) bytes_by_key_.erase(of_key);
  by_id_.erase(at->id);
  uses_.erase(at);
}

// There is one: the key has bytes.
ResponseStore::Uses::iterator ResponseStore::last_of(int key) {
  auto at = std::prev(uses_.end());
  while (at->response->key != key) --at;
  return at;
}

}  // namespace sluice
