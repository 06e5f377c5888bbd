#include "server/keys.h"

#include <sys/stat.h>

#include <fstream>
#include <map>
#include <mutex>
#include <random>
#include <utility>

#include "base/log.h"
#include "base/sha.h"
#include "base/str.h"

namespace sluice {

namespace {

constexpr size_t kMaxIndices = 16'384;

std::string owner_of(const std::string& key) {
  Sha256 hash;
  hash.update("sluice owner\n");
  hash.update(key);
  return hash.hex().substr(0, 32);
}

Result<std::vector<std::string>> read_lines(const std::string& path) {
  std::ifstream in(path);
  if (!in) return Error{400, strf("cannot read the key file %s", quote(path).c_str())};
  struct stat info {};
  if (stat(path.c_str(), &info) == 0 && (info.st_mode & 077) != 0)
    LOG(warn, "the key file can be read by others: chmod 600 %s", path.c_str());
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) {
    while (!line.empty() && (line.back() == '\r' || line.back() == ' ')) line.pop_back();
    if (line.empty() || line[0] == '#') continue;
    if (line.size() < 8 || line.size() > 256)
      return Error{400, strf("%s: a key must have 8 to 256 characters", quote(path).c_str())};
    lines.push_back(std::move(line));
  }
  if (in.bad()) return Error{400, strf("cannot read the key file %s", quote(path).c_str())};
  if (lines.empty()) return Error{400, strf("%s holds no key", quote(path).c_str())};
  return lines;
}

}  // namespace

struct Keys::State {
  struct Key {
    std::string text;
    bool valid = false;
    std::string owner;
  };
  std::string path;
  std::array<uint64_t, 2> secret{};
  mutable std::mutex mutex;
  std::vector<Key> keys;  // of mutex; by index
};

Keys::Keys() : state_(std::make_unique<State>()) {
  std::random_device random;
  for (uint64_t& s : state_->secret) s = uint64_t{random()} << 32 | random();
}
Keys::~Keys() = default;
Keys::Keys(Keys&&) noexcept = default;
Keys& Keys::operator=(Keys&&) noexcept = default;

Result<Keys> Keys::read(const std::string& path) {
  Keys k;
  k.state_->path = path;
  if (auto read = k.reload(); !read) return read.error();
  return k;
}

Result<Keys::Reload> Keys::reload() {
  Result<std::vector<std::string>> lines = read_lines(state_->path);
  if (!lines) return lines.error();
  std::vector<State::Key> next = state_->keys;  // which only this thread changes
  std::map<std::string, size_t> indices;
  for (size_t i = 0; i < next.size(); ++i) {
    next[i].valid = false;
    indices[next[i].text] = i;
  }
  for (const std::string& line : *lines) {
    auto [it, added] = indices.try_emplace(line, next.size());
    if (added) next.push_back({line, false, owner_of(line)});
    next[it->second].valid = true;
  }
  if (next.size() > kMaxIndices)
    return Error{400, strf("%s: more than %zu keys, removed ones included: start the server anew",
                           quote(state_->path).c_str(), kMaxIndices)};
  Reload r;
  for (size_t i = 0; i < next.size(); ++i) {
    bool before = i < state_->keys.size() && state_->keys[i].valid;
    r.num_keys += next[i].valid;
    r.num_new += next[i].valid && !before;
    r.num_removed += before && !next[i].valid;
  }
  std::lock_guard lock(state_->mutex);
  state_->keys = std::move(next);
  return r;
}

bool Keys::needed() const { return !state_->path.empty(); }
size_t Keys::num_indices() const { return needed() ? kMaxIndices : 1; }

int Keys::find(std::string_view authorization, std::string_view api_key) const {
  constexpr std::string_view kBearer = "Bearer ";
  bool bearer = authorization.starts_with(kBearer) || authorization.starts_with("bearer ");
  std::string_view given = bearer                  ? authorization.substr(kBearer.size())
                           : authorization.empty() ? api_key
                                                   : std::string_view();
  int found = -1;
  std::lock_guard lock(state_->mutex);
  for (size_t i = 0; i < state_->keys.size(); ++i) {
    const auto& [key, valid, name] = state_->keys[i];
    size_t differ = key.size() ^ given.size();
    for (size_t at = 0; at < given.size(); ++at)
      differ |= static_cast<unsigned char>(given[at] ^ key[at % key.size()]);
    if (differ == 0 && valid) found = static_cast<int>(i);
  }
  return found;
}

std::string Keys::owner(int key) const {
  if (key < 0) return "";
  std::lock_guard lock(state_->mutex);
  return state_->keys[static_cast<size_t>(key)].owner;
}

std::optional<int> Keys::find_owner(std::string_view owner) const {
  if (owner.empty() && !needed()) return -1;
  std::lock_guard lock(state_->mutex);
  for (size_t i = 0; i < state_->keys.size(); ++i)
    if (state_->keys[i].valid && state_->keys[i].owner == owner) return static_cast<int>(i);
  return std::nullopt;
}

void Keys::set_secret(const std::array<uint64_t, 2>& secret) { state_->secret = secret; }

uint64_t Keys::tenant(int key, std::string_view salt) const {
  std::string text;
  if (key >= 0) {
    std::lock_guard lock(state_->mutex);
    text = state_->keys[static_cast<size_t>(key)].text;
  }
  text += '\0';
  text += salt;
  return keyed_hash(state_->secret, text);
}

}  // namespace sluice
