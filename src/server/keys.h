// API keys: who may ask, and whose prefix cache a request may share.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace sluice {

// SipHash-2-4 (Aumasson, Bernstein 2012): without the key nobody can make two texts collide.
uint64_t keyed_hash(const std::array<uint64_t, 2>& key, std::string_view text);

class Keys {
 public:
  // One key per line; empty lines and lines that begin with # are skipped.
  static Result<Keys> read(const std::string& path);
  Keys();  // no key is needed

  bool needed() const { return !keys_.empty(); }
  // The key's index from the value of the Authorization header ("Bearer KEY"), -1: none of ours.
  // Takes the same time for any key of that length, right or wrong.
  int find(std::string_view authorization) const;
  // Prefixes are shared only within a tenant: a key and a salt of the request's.
  uint64_t tenant(int key, std::string_view salt) const;
  size_t size() const { return keys_.size(); }

 private:
  std::vector<std::string> keys_;
  std::array<uint64_t, 2> secret_{};
};

}  // namespace sluice
