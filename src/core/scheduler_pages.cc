// Sequences with memory mapped page by page (allocator=virtual). A slot's addresses hold the
// longest sequence; its pages are mapped for what is known, and grow with the output. A slot whose
// sequence has ended keeps its pages for the next one, until others need them.
#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.h"
#include "core/scheduler.h"

namespace sluice {

SlotBlocks Scheduler::slot_blocks(Slot slot, int taken_rows) const {
  return SlotBlocks(slot, layout_.num_groups, config_.pages.slot_blocks, taken_rows);
}

// Pages of the sequence's first positions, at most of all that it may have.
int Scheduler::pages_of(const Sequence& s, int64_t positions) const {
  positions = std::min<int64_t>(positions, prompt_len(s) + s.max_new);
  return config_.pages.pages_for(blocks_for(static_cast<int>(positions)));
}

// Pages that stay unused when `s` starts. As kept_free(): who was preempted waits until it and all
// that run can grow by more and more tokens.
int Scheduler::kept_pages(const Sequence& s) const {
  if (config_.admission == Admission::reserve_max || running_.empty()) return 0;
  auto share = config_.watermark * static_cast<float>(pages_.total());
  int64_t kept = static_cast<int64_t>(std::ceil(share));
  static constexpr int64_t kGrowth[] = {0, 64, 512, INT32_MAX};  // by number of preemptions
  int64_t tokens = kGrowth[std::min(s.timing.num_preemptions, kMaxPreemptions)];
  if (tokens > 0) {
    int64_t growth = pages_of(s, known_len(s) + tokens) - pages_of(s, known_len(s));
    for (Index i : running_) {
      const Sequence& other = seqs_[i];
      growth += pages_of(other, known_len(other) + tokens) - pages_.used(other.slot);
    }
    kept = std::max(kept, growth);
  }
  return static_cast<int>(std::min<int64_t>(kept, INT32_MAX));
}

bool Scheduler::has_pages_for(const Sequence& s) const {
  return pages_.available() - pages_of(s, known_len(s)) >= kept_pages(s);
}

// Chooses the slot that start() will take. Takes nothing on failure.
bool Scheduler::claim_pages(Index i) {
  Sequence& s = seqs_[i];
  int most = pages_of(s, prompt_len(s) + s.max_new);
  bool reserves = config_.admission == Admission::reserve_max;
  if (reserves && reserved_ + most > pages_.total()) return false;
  if (!has_pages_for(s)) return false;
  int pages = pages_of(s, known_len(s));
  std::swap(free_slots_[pages_.best(free_slots_, reserves ? most : pages)], free_slots_.back());
  s.slot = free_slots_.back();
  pages_.grow(s.slot, pages);
  if (reserves) reserved_ += s.reserved = most;
  s.num_registered = 0;
  SlotBlocks blocks = slot_blocks(s.slot, 0);
  s.table.claim(layout_, blocks, blocks_for(known_len(s)), 0, 0);
  return true;
}

// A row for the next position of a decode. Without a page for it, the last sequence in order of
// service is preempted; if that is this one, it goes back to the queue itself.
bool Scheduler::grow_pages(Index i) {
  Sequence& s = seqs_[i];
  int pages = config_.pages.pages_for(s.table.ready() + 1);
  while (pages - pages_.used(s.slot) > pages_.available()) {
    // Pages that a launched step still uses are on their way: sit this step out.
    if (!pending_slots_.empty()) {
      decode_blocked_ = true;
      return false;
    }
    Index victim = last_unplanned();
    CHECK(victim != kNone);
    preempt(victim);
    if (victim == i) return false;
  }
  pages_.grow(s.slot, std::max(pages, pages_.used(s.slot)));
  SlotBlocks blocks = slot_blocks(s.slot, s.table.ready());
  CHECK(s.table.grow(layout_, blocks, s.planned, {}));
  return true;
}

// The slot and its pages are free when no step in flight uses them.
void Scheduler::release_pages(Index i) {
  Sequence& s = seqs_[i];
  s.table.release([](BlockId) {}, [](BlockId) {});
  reserved_ -= std::exchange(s.reserved, 0);
  if (s.in_flight > 0) {
    pending_slots_.push_back({next_step_ - 1, s.slot});
  } else {
    pages_.release(s.slot);
    free_slots_.push_back(s.slot);
  }
}

void Scheduler::release_slots(uint64_t step) {
  std::erase_if(pending_slots_, [&](const PendingSlot& p) {
    if (p.step > step) return false;
    pages_.release(p.slot);
    free_slots_.push_back(p.slot);
    return true;
  });
}

// Physical pages have no order: as many blocks of each use, one use after the other.
void Scheduler::page_uses(std::span<BlockUse> out) const {
  int owned = 0, pending = 0;
  for (Index i : running_) owned += seqs_[i].table.ready() * layout_.num_groups;
  for (const PendingSlot& p : pending_slots_) pending += blocks_in_pages(pages_.used(p.slot));
  int mapped = blocks_in_pages(pages_.num_used() + pages_.num_kept());
  size_t at = 0;
  auto mark = [&](int count, BlockUse use) {
    size_t num = std::min(static_cast<size_t>(std::max(count, 0)), out.size() - at);
    std::ranges::fill(out.subspan(at, num), use);
    at += num;
  };
  mark(owned, BlockUse::owned);
  mark(pending, BlockUse::pending);
  mark(mapped - owned - pending, BlockUse::reserved);
  mark(INT32_MAX, BlockUse::free);
}

// In pages.
BlockCounts Scheduler::count_pages() const {
  BlockCounts c;
  c.total = pages_.total();
  c.free = pages_.num_free();
  c.cached = pages_.num_kept();
  int mapped = 0;
  for (int slot = 0; slot < config_.max_seqs; ++slot) {
    auto at = static_cast<Slot>(slot);
    CHECK(pages_.used(at) <= pages_.mapped(at));
    mapped += pages_.mapped(at);
  }
  CHECK(mapped + c.free == c.total && c.free >= 0);
  for (Index i : running_) {
    const Sequence& s = seqs_[i];
    c.owned += pages_.used(s.slot);
    CHECK(config_.pages.pages_for(s.table.ready()) <= pages_.used(s.slot));
    const std::vector<BlockId>& blocks = s.table.blocks();
    SlotBlocks all = slot_blocks(s.slot, 0);
    auto taken = s.table.ready() * layout_.num_groups;
    for (int k = 0; k < static_cast<int>(blocks.size()); ++k)
      CHECK(blocks[static_cast<size_t>(k)] == (k < taken ? all.at(k) : kNullBlock));
  }
  for (const PendingSlot& p : pending_slots_) c.pending += pages_.used(p.slot);
  for (Slot slot : free_slots_) CHECK(pages_.used(slot) == 0);
  return c;
}

}  // namespace sluice
