// Blocks on their way to other processes and from them, by way of the host tier's places.
#include <algorithm>

#include "core/scheduler.h"

namespace sluice {

// Full blocks of a prompt that another scheduler can use: one position is left to compute.
int Scheduler::num_transferable(const PromptBlocks& p) const {
  auto full = static_cast<int>((p.prompt->size() - 1) / static_cast<size_t>(config_.block_size));
  return std::min(full, static_cast<int>(p.hashes.size()));
}

// Blocks leave in the step that fills them where it can send them, and layers are all of one kind.
void Scheduler::export_to(KvExporter* exporter, bool sends) {
  exporter_.to = exporter;
  sender_.to = sends && layout_.num_groups == 1 && layout_.num_windowed == 0 ? exporter : nullptr;
}

void Scheduler::note_lease(Index i) {
  if (request_of(seqs_[i]).lease != 0) leased_.push_back(i);
}

void Scheduler::export_leased() {
  for (Index i : leased_) export_blocks(seqs_[i]);
  leased_.clear();
}

// Leading blocks of a prompt that may leave: one position stays the other side's to compute.
int Scheduler::num_exportable(const Sequence& s) const {
  return std::min((prompt_len(s) - 1) / config_.block_size,
                  static_cast<int>(request_of(s).block_hashes.size()));
}

// Blocks that the plan being made fills.
void Scheduler::send_leased() {
  if (!config_.prefix_cache) return;
  for (const Draft& d : draft_) {
    // Decodes and a prompt's last token fill no block that leaves.
    if (d.slice.count == 1 && samples(d.slice.want)) continue;
    const Sequence& s = seqs_[d.seq];
    if (request_of(s).lease != 0) send_blocks(s, d.slice);
  }
}

// Their places have no key and one reference: the transfer's, then the exporter's.
void Scheduler::send_blocks(const Sequence& s, const Slice& slice) {
  const LeaseId lease = request_of(s).lease;
  export_blocks(s);  // hits of the prefix cache
  Choices& c = choices_[s.choices];
  if (c.num_exported < slice.pos / config_.block_size) return;  // a step in flight fills some
  const int end = std::min((slice.pos + slice.count) / config_.block_size, num_exportable(s));
  for (; c.num_exported < end; ++c.num_exported) {
    const PlaceId place = blocks_.tiers.reserve();
    if (place == kNullBlock) continue;
    const PlacedBlock block{c.num_exported, 0, place};
    blocks_.moves.add(Transfer::send, s.table.at(layout_, c.num_exported, 0), place);
    exports_.emplace(place, Export{lease, block});
    sender_.to->leaving(lease, block, next_step_);
  }
}

// Offers what is full by now, once each. In window groups only what the prompt's end sees.
void Scheduler::export_blocks(const Sequence& s) {
  Choices& c = choices_[s.choices];
  const int most = num_exportable(s);
  for (; c.num_exported < std::min(s.num_registered, most); ++c.num_exported) {
    for (int g = 0; g < layout_.num_groups; ++g) {
      if (layout_.windowed(g) && c.num_exported < layout_.first_seen(g, most * config_.block_size))
        continue;
      export_block(s, c.num_exported, g);
    }
  }
}

void Scheduler::export_block(const Sequence& s, int index, int group) {
  const Request& r = request_of(s);
  auto at = static_cast<size_t>(index);
  offer_block({r.lease, index, group, PrefixKey{r.block_hashes[at], group, r.tenant},
               block_tokens(s, index), index == 0 ? root_hash(r.tenant) : r.block_hashes[at - 1],
               s.table.at(layout_, index, group)});
}

// A block that host memory has, or has room for; else false.
bool Scheduler::offer_block(const Offer& o) {
  PlaceId place = blocks_.tiers.find_host(o.key, o.tokens);
  bool moving = true;
  if (place != kNullBlock) {
    moving = std::ranges::any_of(blocks_.moves.moving(), [&](const Moving& m) {
      return m.transfer.kind == Transfer::out && m.transfer.to == place;
    });
  } else {
    if (o.block == kNullBlock) return false;
    place = blocks_.tiers.insert(o.key, o.tokens, o.parent);
    if (place == kNullBlock) return false;
    blocks_.moves.add(Transfer::out, o.block, place);
  }
  blocks_.tiers.retain(place);  // the exporter's
  exporter_.to->offered(o.lease);
  exports_.emplace(place, Export{o.lease, {o.index, o.group, place}});
  if (!moving) end_exports(place, true);
  return true;
}

Scheduler::Offer Scheduler::find_offer(const PromptBlocks& p,
                                       int index,
                                       int group,
                                       LeaseId lease) const {
  auto at = static_cast<size_t>(index), size = static_cast<size_t>(config_.block_size);
  Offer o{lease,
          index,
          group,
          {p.hashes[at], group, p.tenant},
          std::span(*p.prompt).subspan(at * size, size),
          index == 0 ? root_hash(p.tenant) : p.hashes[at - 1],
          kNullBlock};
  o.block = blocks_.index.find(o.key, o.tokens);
  return o;
}

// Not of models with windows: how far the prefix goes decides which blocks of a window it needs,
// and whoever asks has made room before it knows.
int Scheduler::export_prefix(const PromptBlocks& p, int first, int most, LeaseId lease) {
  const auto all = static_cast<int>(p.hashes.size());
  if (layout_.num_windowed > 0) return all;
  // Steps behind a failed one may still run, and fill places that were given up.
  if (std::ranges::any_of(flights_, &InFlight::lost)) return all;
  const auto offer_all = [&](int index) {  // in all groups; false: it is not there, or has no place
    for (int g = 0; g < layout_.num_groups; ++g)
      if (!offer_block(find_offer(p, index, g, lease))) return false;
    return true;
  };
  const int end = most < all - first ? first + most : all;
  for (int index = first; index < end; ++index)
    if (!offer_all(index)) return all;
  return end;
}

int Scheduler::num_cached_blocks(const PromptBlocks& p) const {
  int num = 0;
  for (; num < static_cast<int>(p.hashes.size()); ++num) {
    for (int g = 0; g < layout_.num_groups; ++g) {
      if (layout_.windowed(g)) continue;
      const Offer o = find_offer(p, num, g, 0);
      if (o.block == kNullBlock && blocks_.tiers.find(o.key, o.tokens) == kNullBlock) return num;
    }
  }
  return num;
}

// What was to be at this place has come, or is lost.
void Scheduler::end_exports(PlaceId place, bool arrived) {
  const auto [begin, end] = exports_.equal_range(place);
  for (auto e = begin; e != end; ++e) {
    const auto& [lease, block] = e->second;
    const bool taken = arrived && exporter_.to && exporter_.to->exported(lease, block);
    if (!arrived && exporter_.to) exporter_.to->lost(lease, block);
    if (!taken) blocks_.tiers.release(place);
  }
  exports_.erase(begin, end);
}

void Scheduler::reserve_blocks(const PromptBlocks& p, std::vector<PlacedBlock>& out) {
  // A step behind a failed one may still run, and fill places that were given up.
  if (std::ranges::any_of(flights_, &InFlight::lost)) return;
  const int most = num_transferable(p);
  auto size = static_cast<size_t>(config_.block_size);
  for (int index = 0; index < most; ++index) {
    auto at = static_cast<size_t>(index);
    std::span<const Token> tokens = std::span(*p.prompt).subspan(at * size, size);
    for (int g = 0; g < layout_.num_groups; ++g) {
      if (layout_.windowed(g) && index < layout_.first_seen(g, most * config_.block_size)) continue;
      PrefixKey key{p.hashes[at], g, p.tenant};
      if (blocks_.index.find(key, tokens) != kNullBlock ||
          blocks_.tiers.find(key, tokens) != kNullBlock)
        continue;
      PlaceId place = blocks_.tiers.reserve();
      if (place == kNullBlock) return;
      out.push_back({index, g, place});
    }
  }
}

void Scheduler::import_blocks(const PromptBlocks& p, std::span<const PlacedBlock> blocks) {
  auto size = static_cast<size_t>(config_.block_size);
  for (const PlacedBlock& b : blocks) {
    auto at = static_cast<size_t>(b.index);
    blocks_.tiers.adopt(b.place, {p.hashes[at], b.group, p.tenant},
                        std::span(*p.prompt).subspan(at * size, size),
                        b.index == 0 ? root_hash(p.tenant) : p.hashes[at - 1]);
  }
}

void Scheduler::release_places(std::span<const PlacedBlock> blocks) {
  for (const PlacedBlock& b : blocks) blocks_.tiers.release(b.place);
}

}  // namespace sluice
