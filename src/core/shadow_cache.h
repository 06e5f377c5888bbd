// A KV cache that computes nothing, for tests of the scheduler: it runs plans one after the other
// and knows of every block and group what was written where. Each query must find all that it sees,
// in its own group, of its own sequence; what is free is overwritten. One thread.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include <gtest/gtest.h>

#include "base/random.h"
#include "core/fake_executor.h"
#include "core/scheduler.h"

namespace sluice {

inline uint64_t mixed_words(uint64_t a, uint64_t b) {
  uint64_t x = (a ^ (b + 0x9E3779B97F4A7C15u)) * 0xD1B54A32D192ED03u;
  return x ^ (x >> 29);
}

// Runs plans one after the other; what a position's K and V depend on is a hash of all tokens
// before.
class ShadowCache {
 public:
  ShadowCache(const SchedulerConfig& c, const std::map<RequestId, Request>& requests)
      : config_(c),
        requests_(requests),
        groups_(c.group_windows.size()),
        rows_(static_cast<size_t>(c.max_len / c.block_size + 1)),
        tables_(static_cast<size_t>(c.max_seqs) * groups_ * rows_, kNullBlock),
        mapped_(static_cast<size_t>(c.max_seqs)),
        content_(num_ids(c) * static_cast<size_t>(c.block_size)),
        places_(static_cast<size_t>((c.tiers.total() + 1) * c.block_size), kPoison) {}

  // Memory is mapped when a step is launched. What was not mapped before holds anything.
  void map(const StepPlan& plan) {
    for (const PageOp& op : plan.pages) {
      int before = mapped_[op.slot], now = static_cast<int>(op.num_pages);
      mapped_[op.slot] = now;
      for (size_t g = 0; g < groups_ && config_.mapped(); ++g) {
        for (int64_t k = 0; k < config_.pages.slot_blocks; ++k) {
          int page = config_.pages.pages_for(k + 1);
          if (page > std::min(before, now))
            std::fill_n(slot_block(op.slot, g, k), config_.block_size, kPoison);
        }
      }
    }
    int sum = 0;
    for (int m : mapped_) sum += m;
    EXPECT_LE(sum, config_.mapped() ? config_.num_pages() : 0) << "more pages than there are";
  }

  StepResult run(const StepPlan& plan) {
    for (const RowOp& op : plan.rows) {
      if (op.kind == RowOp::open) ids_[op.slot] = op.id;
    }
    for (const TableEdit& e : plan.edits) table(e.slot, e.group)[e.index] = e.block;
    for (const Transfer& t : plan.transfers) {
      if (!from_disk(t) && t.kind != Transfer::send) move(t);
    }
    for (const Slice& s : plan.slices) {
      for (int p = s.pos; p < s.pos + s.count; ++p) write(s, p);
    }
    for (const Transfer& t : plan.transfers) {
      if (t.kind == Transfer::send) move(t);
    }
    for (const Slice& s : plan.slices) {
      for (int p = s.pos; p < s.pos + s.count; ++p) read(s, p);
    }
    StepResult result;
    auto draw = [&](const StepPlan&, const Slice& s) {
      return sample(ids_.at(s.slot), s.pos + s.count);
    };
    FakeExecutor::answer(plan, draw, result);
    if (config_.tiers.disk > 0) use_disk(plan, result);
    return result;
  }

  // The step failed: what its transfers should have filled holds anything.
  void lose(const std::vector<Transfer>& transfers) {
    for (const Transfer& t : transfers)
      std::fill_n(goes_out(t) ? place(t.to) : block(t.to), config_.block_size, kPoison);
  }

  // Overwrites what free blocks hold: a query that still sees one finds no value it expects.
  void poison(const Scheduler& scheduler) {
    if (config_.mapped()) return;  // map() does
    uses_.resize(static_cast<size_t>(config_.num_blocks));
    scheduler.block_uses(uses_);
    for (size_t k = 0; k < uses_.size(); ++k) {
      if (uses_[k] == BlockUse::free)
        std::fill_n(block(static_cast<BlockId>(k + 1)), config_.block_size, kPoison);
    }
  }

  // A block of a request's prompt comes from elsewhere, or should be in its place.
  void fill_place(RequestId id, const PlacedBlock& b) {
    for_positions(id, b, [](uint64_t& at, uint64_t value) { at = value; });
  }
  void check_place(RequestId id, const PlacedBlock& b) {
    for_positions(id, b, [&](uint64_t& at, uint64_t value) {
      EXPECT_EQ(at, value) << "block " << b.index << " of request " << id << " in group "
                           << b.group;
    });
  }
  void poison_place(PlaceId p) { std::fill_n(place(p), config_.block_size, kPoison); }

  // The token at a position of a sequence: of the prompt, or what was drawn there.
  Token token(SeqId id, int pos) const {
    const Request& r = requests_.at(id.req);
    auto at = static_cast<size_t>(pos);
    return at < r.prompt->size() ? (*r.prompt)[at] : sample(id, pos);
  }

 private:
  // Few tokens, and the same for many sequences: outputs meet in the prefix cache too.
  static Token sample(SeqId id, int pos) {
    return static_cast<Token>(mixed_words(id.req % 3 + id.choice % 2, static_cast<uint64_t>(pos)) %
                              2);
  }
  BlockId* table(Slot slot, size_t group) {
    return tables_.data() + (slot * groups_ + group) * rows_;
  }
  static size_t num_ids(const SchedulerConfig& c) {
    if (!c.mapped()) return static_cast<size_t>(c.num_blocks) + 1;
    return (static_cast<size_t>(c.max_seqs) * c.group_windows.size() + 1) *
           static_cast<size_t>(c.pages.slot_blocks);
  }
  uint64_t* slot_block(Slot slot, size_t group, int64_t index) {
    auto first = static_cast<int64_t>(slot * groups_ + group + 1) * config_.pages.slot_blocks;
    return block(static_cast<BlockId>(first + index));
  }
  // The block of a position: from the slot's table, or where its addresses are.
  uint64_t* at(Slot slot, size_t group, int pos) {
    int index = pos / config_.block_size;
    if (!config_.mapped()) return block(table(slot, group)[index]);
    EXPECT_LE(config_.pages.pages_for(index + 1), mapped_[slot]) << "position " << pos;
    return slot_block(slot, group, index);
  }
  uint64_t* block(BlockId b) {
    return content_.data() + static_cast<ptrdiff_t>(b) * config_.block_size;
  }
  uint64_t expected(SeqId id, int pos, size_t group) {
    std::vector<uint64_t>& h = prefix_[id];
    while (static_cast<int>(h.size()) <= pos) {
      uint64_t before = h.empty() ? requests_.at(id.req).tenant + 1 : h.back();
      h.push_back(
          mixed_words(before, static_cast<uint64_t>(token(id, static_cast<int>(h.size()))) + 100));
    }
    return mixed_words(h[static_cast<size_t>(pos)], group);
  }
  void move(const Transfer& t) {
    uint64_t* from = t.kind == Transfer::in ? place(t.from) : block(t.from);
    uint64_t* to = goes_out(t) ? place(t.to) : block(t.to);
    std::copy_n(from, config_.block_size, to);
  }
  static bool goes_out(const Transfer& t) {
    return t.kind == Transfer::out || t.kind == Transfer::send;
  }
  bool from_disk(const Transfer& t) const {
    return t.kind == Transfer::in && t.from > config_.tiers.memory();
  }
  // Blocks come from disk some steps later; some are lost on their way there or back.
  void use_disk(const StepPlan& plan, StepResult& result) {
    std::erase_if(reads_, [&](const Transfer& t) { return t.id < plan.oldest; });
    auto lost = [&](const Transfer& t) {
      std::erase(result.transfers, t.id);
      result.lost.push_back(t.id);
    };
    for (const Transfer& t : plan.transfers) {
      bool disk = from_disk(t) || (t.kind == Transfer::out && t.to > config_.tiers.memory());
      ASSERT_EQ(t.key != kNoKey, disk);
      if (!disk) continue;
      ASSERT_EQ(plan.keys[static_cast<size_t>(t.key)].num_tokens,
                static_cast<uint32_t>(config_.block_size));
      if (from_disk(t)) {
        std::erase(result.transfers, t.id);
        reads_.push_back(t);
      } else if (luck() % 8 == 0) {
        std::fill_n(place(t.to), config_.block_size, kPoison);
        unwritten_.insert(t.to);
        lost(t);
      } else {
        unwritten_.erase(t.to);
      }
    }
    std::erase_if(reads_, [&](const Transfer& t) {
      if (luck() % 3 != 0) return false;
      // A read that was planned before its place's write was known to be lost finds another key.
      if (luck() % 8 == 0 || unwritten_.contains(t.from)) return lost(t), true;
      move(t);
      result.transfers.push_back(t.id);
      return true;
    });
  }
  void for_positions(RequestId id, const PlacedBlock& b, auto&& use) {
    for (int k = 0; k < config_.block_size; ++k)
      use(place(b.place)[k],
          expected({id, 0}, b.index * config_.block_size + k, static_cast<size_t>(b.group)));
  }
  uint64_t luck() { return mix_bits(++num_drawn_); }
  uint64_t* place(PlaceId p) {
    EXPECT_LE(p, config_.tiers.total());
    return places_.data() + static_cast<ptrdiff_t>(p) * config_.block_size;
  }
  void write(const Slice& s, int pos) {
    for (size_t g = 0; g < groups_; ++g) {
      if (!config_.mapped()) {
        ASSERT_NE(table(s.slot, g)[pos / config_.block_size], kNullBlock)
            << "position " << pos << " has no block in group " << g;
      }
      at(s.slot, g, pos)[pos % config_.block_size] = expected(ids_.at(s.slot), pos, g);
    }
  }
  void read(const Slice& s, int pos) {
    for (size_t g = 0; g < groups_; ++g) {
      int window = config_.group_windows[g];
      for (int p = window == 0 ? 0 : std::max(0, pos - window + 1); p <= pos; ++p) {
        ASSERT_EQ(at(s.slot, g, p)[p % config_.block_size], expected(ids_.at(s.slot), p, g))
            << "a query at " << pos << " of request " << ids_.at(s.slot).req << " sees " << p
            << " in group " << g;
      }
    }
  }

  static constexpr uint64_t kPoison = 0xDEADBEEFDEADBEEF;

  const SchedulerConfig& config_;
  const std::map<RequestId, Request>& requests_;
  size_t groups_, rows_;
  std::vector<BlockUse> uses_;
  std::vector<BlockId> tables_;  // [slots, groups, rows_]
  std::vector<int> mapped_;      // pages, by slot
  std::vector<uint64_t> content_, places_;
  std::map<Slot, SeqId> ids_;
  std::map<SeqId, std::vector<uint64_t>> prefix_;
  std::vector<Transfer> reads_;  // on their way from disk
  std::set<PlaceId> unwritten_;  // on disk: the last write was lost
  uint64_t num_drawn_ = 0;
};

}  // namespace sluice
