#include "core/executor_content.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "core/scheduler_state_fields.h"

namespace sluice {

namespace {

bool listed(const std::vector<bool>& list, BlockId at) {
  return static_cast<size_t>(at) < list.size() && list[static_cast<size_t>(at)];
}

// Cached blocks that continue each other, found by hashing: an index knows a block's hash and
// tokens, not its predecessor.
class CachedChains {
 public:
  void add_block(const PrefixKey& key, std::span<const Token> tokens, BlockId block) {
    auto [at, fresh] = nodes_.try_emplace({key.hash.a, key.hash.b, key.tenant});
    at->second.tokens = tokens;
    at->second.tenant = key.tenant;
    at->second.hash = key.hash;
    at->second.blocks.push_back({0, key.group, block});
  }

  // A list for every end of a chain that has a needed block.
  void list(const NeededBlocks& needed, ExecutorContent& to) {
    link();
    std::set<const Node*> inner;  // of a longer list
    std::vector<const Node*> ends;
    for (const auto& [key, node] : nodes_) {
      const bool wanted = std::ranges::any_of(node.blocks, [&](const HeldBlock& b) {
        return b.block < 0 ? listed(needed.places, -b.block) : listed(needed.blocks, b.block);
      });
      if (!wanted) continue;
      if (node.depth == 0) {
        for (const HeldBlock& b : node.blocks) to.unknown.push_back(b.block);
        continue;
      }
      ends.push_back(&node);
      for (const Node* n = node.parent; n && inner.insert(n).second;) n = n->parent;
    }
    for (const Node* end : ends) {
      if (inner.contains(end)) continue;
      HeldTokens held;
      held.tokens.resize(static_cast<size_t>(end->depth) * end->tokens.size());
      for (const Node* n = end; n; n = n->parent) {
        std::ranges::copy(n->tokens,
                          held.tokens.begin() +
                              static_cast<std::ptrdiff_t>(n->depth - 1) * std::ssize(n->tokens));
        for (HeldBlock b : n->blocks) held.blocks.push_back({n->depth - 1, b.group, b.block});
      }
      to.held.push_back(std::move(held));
    }
  }

 private:
  struct Node {
    std::span<const Token> tokens;
    BlockHash hash;
    TenantId tenant = 0;
    std::vector<HeldBlock> blocks;
    const Node* parent = nullptr;
    int depth = 0;  // from 1; 0: its beginning is not cached
  };

  void link() {
    std::vector<Node*> open;
    for (auto& [key, node] : nodes_) open.push_back(&node);
    std::vector<Node*> level;
    const auto take_children = [&](BlockHash of, TenantId tenant, const Node* parent) {
      std::erase_if(open, [&](Node* n) {
        if (n->tenant != tenant || !(chain_hash(of, n->tokens) == n->hash)) return false;
        n->parent = parent;
        n->depth = parent ? parent->depth + 1 : 1;
        level.push_back(n);
        return true;
      });
    };
    std::vector<TenantId> tenants;
    for (const Node* n : open) tenants.push_back(n->tenant);
    std::ranges::sort(tenants);
    tenants.erase(std::unique(tenants.begin(), tenants.end()), tenants.end());
    for (TenantId t : tenants) take_children(root_hash(t), t, nullptr);
    for (size_t k = 0; k < level.size() && !open.empty(); ++k)
      take_children(level[k]->hash, level[k]->tenant, level[k]);
  }

  std::map<std::tuple<uint64_t, uint64_t, TenantId>, Node> nodes_;
};

}  // namespace

Result<ExecutorContent> SchedulerState::content(const Scheduler& s, const NeededBlocks& needed) {
  if (s.config_.mapped()) return Error{422, "its blocks are pages behind slots"};
  if (s.config_.tiers.disk > 0) return Error{422, "it may hold blocks on disk"};
  ExecutorContent out;
  for (Index i : s.running_) {
    const Sequence& x = s.seqs_[i];
    if (x.pooling == Pooling::mean && x.computed > 0)
      return Error{422, "a prompt that is pooled is half done in it"};
    if (x.computed > s.known_len(x)) return Error{400, "a sequence has more positions than tokens"};
    open_row(s, x, out.rows);
    HeldTokens held;
    s.append_tokens(x, 0, x.computed, held.tokens);
    const int rows = std::min(s.layout_.blocks_for(x.computed), x.table.num_rows(s.layout_));
    for (int k = 0; k < rows; ++k) {
      for (int g = 0; g < s.layout_.num_groups; ++g) {
        const BlockId b = x.table.at(s.layout_, k, g);
        if (b != kNullBlock) held.blocks.push_back({k, g, b});
      }
    }
    if (!held.tokens.empty()) out.held.push_back(std::move(held));
  }
  for (Index i = 0; i < s.away_.size(); ++i) {
    if (auto ok = add_swapped(s, i, out); !ok) return ok.error();
  }
  if (s.config_.prefix_cache) {
    CachedChains chains;
    const TierCache& tiers = s.blocks_.tiers;
    for (BlockId b = 1; b <= s.blocks_.pool.total(); ++b) {
      if (s.blocks_.pool.cached(b))
        chains.add_block(s.blocks_.index.key(b), s.blocks_.index.tokens(b), b);
    }
    for (PlaceId p = s.config_.tiers.swap + 1; p <= s.config_.tiers.memory(); ++p) {
      if (tiers.cached(p)) chains.add_block(tiers.key(p), tiers.tokens(p), -p);
    }
    chains.list(needed, out);
  }
  std::ranges::sort(out.held, {}, &HeldTokens::tokens);
  return out;
}

// A preempted sequence's blocks in host memory.
Result<void> SchedulerState::add_swapped(const Scheduler& s, Index i, ExecutorContent& out) {
  const auto& away = s.away_[i];
  if (s.seqs_[i].phase == Phase::free || away.positions == 0) return {};
  if (away.positions > s.known_len(s.seqs_[i]))
    return Error{400, "a sequence has more positions than tokens"};
  HeldTokens held;
  s.append_tokens(s.seqs_[i], 0, away.positions, held.tokens);
  for (size_t k = 0; k < away.places.size(); ++k) {
    const auto at = static_cast<int>(k);
    if (away.places[k] != kNullBlock)
      held.blocks.push_back(
          {at / s.layout_.num_groups, at % s.layout_.num_groups, -away.places[k]});
  }
  out.held.push_back(std::move(held));
  return {};
}

// Drops transfers whose target has its content from content(): all that go out, and those that
// come in for a running sequence. Any other that comes in may still become a cached prefix.
void SchedulerState::keep_needed(const Scheduler& s, StepPlan& plan) {
  std::set<BlockId> held;
  for (Index i : s.running_) {
    const std::span<const BlockId> blocks = s.seqs_[i].table.blocks();
    held.insert(blocks.begin(), blocks.end());
  }
  std::erase_if(plan.transfers, [&](const Transfer& t) {
    if (t.kind == Transfer::out) return true;
    return t.kind == Transfer::in && (s.blocks_.tiers.is_swap(t.from) || held.contains(t.to));
  });
}

// As Scheduler::start does.
void SchedulerState::open_row(const Scheduler& s, const Sequence& x, StepPlan& out) {
  RowOp op;
  op.id = x.id;
  op.slot = x.slot;
  op.epoch = x.epoch;
  op.num_prompt = static_cast<uint32_t>(x.num_prompt);
  op.pooling = x.pooling;
  op.sampling = static_cast<uint32_t>(out.sampling.size());
  const SamplingSpec& spec = *s.choices_[x.choices].request->sampling;
  out.sampling.push_back(spec);
  op.history_at = static_cast<uint32_t>(out.tokens.size());
  const int from = spec.repetition_penalty != 1 ? 0 : x.num_prompt;
  op.num_history = static_cast<uint32_t>(s.known_len(x) - from);
  op.num_history_prompt = static_cast<uint32_t>(x.num_prompt - from);
  s.append_tokens(x, from, s.known_len(x), out.tokens);
  out.rows.push_back(op);
  for (int k = 0; k < x.table.ready(); ++k) {
    for (int g = 0; g < s.layout_.num_groups; ++g)
      out.edits.push_back(
          {x.slot, static_cast<uint32_t>(k), x.table.at(s.layout_, k, g), static_cast<uint8_t>(g)});
  }
}

Token SchedulerState::known(const Scheduler& s, Slot slot, uint32_t epoch, int pos) {
  for (Index i : s.running_) {
    const Sequence& x = s.seqs_[i];
    if (x.slot != slot || x.epoch != epoch) continue;
    return pos >= 0 && pos < s.known_len(x) ? s.token_at(x, pos) : kNoToken;
  }
  return kNoToken;
}

Result<ExecutorContent> content_of(const Scheduler& scheduler, const NeededBlocks& needed) {
  return SchedulerState::content(scheduler, needed);
}

void keep_needed_transfers(const Scheduler& scheduler, StepPlan& plan) {
  SchedulerState::keep_needed(scheduler, plan);
}

Token known_token(const Scheduler& scheduler, Slot slot, uint32_t epoch, int pos) {
  return SchedulerState::known(scheduler, slot, epoch, pos);
}

}  // namespace sluice
