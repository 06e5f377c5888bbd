#include "core/kv_picture.h"

#include <algorithm>
#include <string_view>
#include <utility>

namespace sluice {

namespace {

std::string_view bytes_of(std::span<const Token> tokens) {
  return {reinterpret_cast<const char*>(tokens.data()), tokens.size_bytes()};
}

}  // namespace

KvPicture::KvPicture(size_t num_workers, const HashKey& key) : key_(key), workers_(num_workers) {}

void KvPicture::set_known(size_t worker, bool known) {
  Worker& w = workers_[worker];
  w.known = known;
  if (known) return;
  w.blocks.clear();
  w.names.clear();
  w.unplaced.clear();
}

void KvPicture::apply(size_t worker, const KvUpdate& update) {
  Worker& w = workers_[worker];
  switch (update.kind) {
    case KvUpdate::stored:
      return store(w, update);
    case KvUpdate::removed:
      for (uint64_t hash : update.hashes) remove(w, hash, update.tier);
      return;
    case KvUpdate::cleared:
      w.blocks.clear();
      w.names.clear();
      return;
  }
}

void KvPicture::store(Worker& w, const KvUpdate& update) {
  if (update.hashes.empty()) return;
  const size_t size = update.tokens.size() / update.hashes.size();
  uint64_t parent = update.parent;
  for (size_t k = 0; k < update.hashes.size(); ++k) {
    const uint64_t hash = update.hashes[k];
    if (auto it = w.blocks.find(hash); it != w.blocks.end()) {
      it->second.tiers |= update.tier;
    } else if (w.blocks.size() < kMostBlocks) {
      const auto before = w.blocks.find(parent);
      HashKey chained = key_;
      chained[0] ^= before == w.blocks.end() ? parent : before->second.name;
      const uint64_t name =
          keyed_hash(chained, bytes_of(std::span(update.tokens).subspan(k * size, size)));
      w.blocks.emplace(hash, Block{parent, name, update.tier});
      ++w.names[name];
      if (const Prompt* waits = w.unplaced.find(hash); waits && try_place(w, *waits))
        w.unplaced.erase(hash);
    }
    parent = hash;
  }
}

void KvPicture::remove(Worker& w, uint64_t hash, uint8_t tier) {
  auto it = w.blocks.find(hash);
  if (it == w.blocks.end()) return;
  it->second.tiers &= static_cast<uint8_t>(~tier);
  if (it->second.tiers != 0) return;
  if (auto name = w.names.find(it->second.name); --name->second == 0) w.names.erase(name);
  w.blocks.erase(it);
}

void KvPicture::place(size_t worker, Prompt prompt) {
  Worker& w = workers_[worker];
  if (!w.known || prompt.text.empty() || try_place(w, prompt)) return;
  const uint64_t block = prompt.kv_block;
  w.unplaced.put(block, std::move(prompt));
}

// False: its blocks are not all told yet, or not any more.
bool KvPicture::try_place(Worker& w, const Prompt& prompt) {
  std::vector<uint64_t> names;  // from the last block to the first
  for (uint64_t hash = prompt.kv_block; hash != 0;) {
    auto it = w.blocks.find(hash);
    if (it == w.blocks.end() || names.size() > w.blocks.size()) return false;
    names.push_back(it->second.name);
    hash = it->second.parent;
  }
  const double per_text = prompt.text_share * static_cast<double>(names.size());
  for (size_t i = 0; i < prompt.text.size(); ++i) {
    // The block of tokens in which the block of text ends, or the one before.
    const auto at = static_cast<size_t>(per_text * static_cast<double>(i + 1));
    const size_t block = std::clamp<size_t>(at, 1, names.size());
    places_.put(prompt.text[i], names[names.size() - block]);
  }
  return true;
}

bool KvPicture::cached(size_t worker, uint64_t text) const {
  const uint64_t* name = places_.find(text);
  return name != nullptr && workers_[worker].names.contains(*name);
}

}  // namespace sluice
