#include "server/keys.h"

#include <sys/stat.h>

#include <bit>
#include <fstream>
#include <random>

#include "base/log.h"
#include "base/str.h"

namespace sluice {

uint64_t keyed_hash(const std::array<uint64_t, 2>& key, std::string_view text) {
  uint64_t v0 = key[0] ^ 0x736f6d6570736575, v1 = key[1] ^ 0x646f72616e646f6d;
  uint64_t v2 = key[0] ^ 0x6c7967656e657261, v3 = key[1] ^ 0x7465646279746573;
  auto rounds = [&](int n) {
    for (int i = 0; i < n; ++i) {
      v0 += v1, v1 = std::rotl(v1, 13) ^ v0, v0 = std::rotl(v0, 32);
      v2 += v3, v3 = std::rotl(v3, 16) ^ v2;
      v0 += v3, v3 = std::rotl(v3, 21) ^ v0;
      v2 += v1, v1 = std::rotl(v1, 17) ^ v2, v2 = std::rotl(v2, 32);
    }
  };
  auto word = [&](uint64_t m) { v3 ^= m, rounds(2), v0 ^= m; };
  uint64_t m = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    m |= uint64_t{static_cast<unsigned char>(text[i])} << 8 * (i % 8);
    if (i % 8 == 7) word(std::exchange(m, 0));
  }
  word(m | uint64_t{text.size() & 0xff} << 56);
  v2 ^= 0xff;
  rounds(4);
  return v0 ^ v1 ^ v2 ^ v3;
}

Keys::Keys() {
  std::random_device random;
  for (uint64_t& s : secret_) s = uint64_t{random()} << 32 | random();
}

Result<Keys> Keys::read(const std::string& path) {
  Keys k;
  std::ifstream in(path);
  if (!in) return Error{400, strf("cannot read the key file %s", quote(path).c_str())};
  struct stat info {};
  if (stat(path.c_str(), &info) == 0 && (info.st_mode & 077) != 0)
    LOG(warn, "the key file can be read by others: chmod 600 %s", path.c_str());
  for (std::string line; std::getline(in, line);) {
    while (!line.empty() && (line.back() == '\r' || line.back() == ' ')) line.pop_back();
    if (line.empty() || line[0] == '#') continue;
    if (line.size() < 8 || line.size() > 256)
      return Error{400, strf("%s: a key must have 8 to 256 characters", quote(path).c_str())};
    k.keys_.push_back(line);
  }
  if (k.keys_.empty()) return Error{400, strf("%s holds no key", quote(path).c_str())};
  return k;
}

int Keys::find(std::string_view authorization) const {
  constexpr std::string_view kBearer = "Bearer ";
  bool bearer = authorization.starts_with(kBearer) || authorization.starts_with("bearer ");
  std::string_view given = bearer ? authorization.substr(kBearer.size()) : std::string_view();
  int found = -1;
  for (size_t i = 0; i < keys_.size(); ++i) {
    const std::string& key = keys_[i];
    size_t differ = key.size() ^ given.size();
    for (size_t at = 0; at < given.size(); ++at)
      differ |= static_cast<unsigned char>(given[at] ^ key[at % key.size()]);
    if (differ == 0) found = static_cast<int>(i);
  }
  return found;
}

uint64_t Keys::tenant(int key, std::string_view salt) const {
  std::string text = key < 0 ? std::string() : keys_[static_cast<size_t>(key)];
  text += '\0';
  text += salt;
  return keyed_hash(secret_, text);
}

}  // namespace sluice
