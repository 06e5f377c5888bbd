// A bounded map from 64-bit keys that drops what was used least recently. Iterates in no order
// that anybody sees. Keys should be hashes already. One thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <unordered_map>
#include <utility>

namespace sluice {

template <typename V>
class LruMap {
 public:
  explicit LruMap(size_t capacity) : capacity_(capacity > 0 ? capacity : 1) {}

  // Null where it is not; does not count as a use.
  const V* find(uint64_t key) const {
    auto it = at_.find(key);
    return it == at_.end() ? nullptr : &it->second->second;
  }
  void put(uint64_t key, V value) {
    if (auto it = at_.find(key); it != at_.end()) {
      it->second->second = std::move(value);
      used_.splice(used_.begin(), used_, it->second);
      return;
    }
    used_.emplace_front(key, std::move(value));
    at_.emplace(key, used_.begin());
    if (at_.size() <= capacity_) return;
    at_.erase(used_.back().first);
    used_.pop_back();
  }
  void erase(uint64_t key) {
    auto it = at_.find(key);
    if (it == at_.end()) return;
    used_.erase(it->second);
    at_.erase(it);
  }
  void clear() {
    at_.clear();
    used_.clear();
  }
  size_t size() const { return at_.size(); }

 private:
  using Entry = std::pair<uint64_t, V>;
  size_t capacity_;
  std::list<Entry> used_;  // the latest first
  std::unordered_map<uint64_t, typename std::list<Entry>::iterator> at_;
};

}  // namespace sluice
