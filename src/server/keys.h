// API keys: who may ask, and whose prefix cache a request may share. Any thread.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/keyed_hash.h"
#include "base/result.h"

namespace sluice {

class Keys {
 public:
  // One key per line; empty lines and lines that begin with # are skipped.
  static Result<Keys> read(const std::string& path);
  Keys();  // no key is needed
  ~Keys();
  Keys(Keys&&) noexcept;
  Keys& operator=(Keys&&) noexcept;

  // Reads the file again. A key that was removed is not found from now on; its index stays its own,
  // for requests that run and should it come back. After an error the keys are as they were.
  struct Reload {
    size_t num_keys = 0, num_new = 0, num_removed = 0;
  };
  Result<Reload> reload();  // one thread at a time

  bool needed() const;
  // The key's index from the value of the Authorization header ("Bearer KEY"), or where that is
  // empty from X-Api-Key's (KEY); -1: none of ours. Takes the same time for any key of that length,
  // right or wrong.
  int find(std::string_view authorization, std::string_view api_key = {}) const;
  // Prefixes are shared only within a tenant: a key and a salt of the request's.
  uint64_t tenant(int key, std::string_view salt) const;
  // A name for the key that lasts across restarts and gives nothing of it away; empty: no key.
  std::string owner(int key) const;
  // Back: the index of a valid key, -1 for the empty name where no key is needed; nothing: there is
  // no such key any more.
  std::optional<int> find_owner(std::string_view owner) const;
  // Makes tenants last across restarts: before any of them is asked for.
  void set_secret(const std::array<uint64_t, 2>& secret);
  // Indices are below this, now and after any reload.
  size_t num_indices() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace sluice
