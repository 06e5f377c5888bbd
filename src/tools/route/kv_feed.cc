#include "tools/route/kv_feed.h"

#include <algorithm>

#include "base/msgpack_reader.h"

namespace sluice {

namespace {

uint8_t tier_bit(std::string_view medium) {
  return medium == "GPU" ? 1 : medium == "CPU" ? 2 : medium == "DISK" ? 4 : 8;
}

struct KvEvent {
  KvUpdate update;
  std::string_view type;
  uint64_t epoch = 0, group = 0;
};

void read_field(MsgpackReader& in, std::string_view key, KvEvent& e) {
  if (key == "type") {
    e.type = in.text();
  } else if (key == "block_hashes") {
    const uint32_t n = in.array();
    for (uint32_t k = 0; k < n && in.ok(); ++k) e.update.hashes.push_back(in.natural());
  } else if (key == "parent_block_hash") {
    if (!in.nil()) e.update.parent = in.natural();
  } else if (key == "token_ids") {
    const uint32_t n = in.array();
    e.update.tokens.reserve(n);
    for (uint32_t k = 0; k < n && in.ok(); ++k)
      e.update.tokens.push_back(static_cast<Token>(in.integer()));
  } else if (key == "medium") {
    if (!in.nil()) e.update.tier = tier_bit(in.text());
  } else if (key == "group_idx") {
    e.group = in.natural();
  } else if (key == "epoch") {
    e.epoch = in.natural();
  } else {
    in.skip();
  }
}

}  // namespace

std::optional<KvMessage> decode_kv_message(std::string_view bytes) {
  MsgpackReader in(bytes);
  KvMessage out;
  if (in.array() < 2) return {};
  in.skip();  // the time
  const uint32_t num = in.array();
  for (uint32_t k = 0; k < num && in.ok(); ++k) {
    KvEvent e;
    const uint32_t fields = in.map();
    for (uint32_t f = 0; f < fields && in.ok(); ++f) read_field(in, in.text(), e);
    out.epoch = e.epoch;
    if (e.type == "BlockStored") {
      e.update.kind = KvUpdate::stored;
      if (e.update.hashes.empty() || e.update.tokens.size() % e.update.hashes.size() != 0)
        return {};
    } else if (e.type == "BlockRemoved") {
      e.update.kind = KvUpdate::removed;
    } else if (e.type != "AllBlocksCleared") {
      continue;  // of a newer worker
    }
    if (e.group == 0) out.updates.push_back(std::move(e.update));
  }
  if (!in.ok()) return {};
  return out;
}

std::vector<KvUpdate> KvFeed::take(uint64_t number, std::string_view bytes) {
  std::optional<KvMessage> m = decode_kv_message(bytes);
  if (!m || m->epoch != epoch_ || number == UINT64_MAX) return {};
  seen_ = std::max(seen_, number + 1);
  if (synced_ && number < next_) return {};  // told before
  const bool all = !m->updates.empty() && m->updates[0].kind == KvUpdate::cleared;
  if (!all && (!synced_ || number != next_)) return {};
  synced_ = true;
  next_ = number + 1;
  return std::move(m->updates);
}

std::optional<uint64_t> KvFeed::missing() const {
  if (!synced_) return 0;
  if (seen_ > next_) return next_;
  return {};
}

}  // namespace sluice
