#include "text/merge.h"

#include <algorithm>
#include <bit>
#include <functional>

#include "base/check.h"

namespace sluice {

namespace {

constexpr uint32_t kNoRank = UINT32_MAX;

uint32_t pair_rank(const PairTable& table, Token left, Token right, MergeScratch& s) {
  ++s.num_lookups;
  const PairTable::Entry* e = table.find(left, right);
  return e != nullptr ? e->rank : kNoRank;
}

void merge_small(const PairTable& table,
                 std::vector<Token>& symbols,
                 std::vector<uint32_t>* sources,
                 MergeScratch& s) {
  size_t n = symbols.size();
  uint32_t ranks[kSmallMerge];
  for (size_t i = 0; i + 1 < n; ++i) ranks[i] = pair_rank(table, symbols[i], symbols[i + 1], s);
  while (n > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < n; ++i) {
      if (ranks[i] < ranks[best]) best = i;
    }
    if (ranks[best] == kNoRank) break;
    symbols[best] = table.find(symbols[best], symbols[best + 1])->merged;
    auto close = [&](auto* v, size_t at) { std::move(v + at + 1, v + n, v + at); };
    close(symbols.data(), best + 1);
    if (sources != nullptr) close(sources->data(), best + 1);
    std::move(ranks + best + 1, ranks + n - 1, ranks + best);
    --n;
    if (best > 0) ranks[best - 1] = pair_rank(table, symbols[best - 1], symbols[best], s);
    if (best + 1 < n) ranks[best] = pair_rank(table, symbols[best], symbols[best + 1], s);
  }
  symbols.resize(n);
  if (sources != nullptr) sources->resize(n);
}

// ranks[i] is always the rank of the pair that begins at i, or kNoRank where i is gone or last, so
// a heap entry is current exactly when its rank equals ranks[i].
void merge_large(const PairTable& table,
                 std::vector<Token>& symbols,
                 std::vector<uint32_t>* sources,
                 MergeScratch& s) {
  const int32_t n = static_cast<int32_t>(symbols.size());
  s.ranks.assign(symbols.size(), kNoRank);
  s.prev.resize(symbols.size());
  s.next.resize(symbols.size());
  s.heap.clear();
  for (int32_t i = 0; i < n; ++i) {
    s.prev[i] = i - 1;
    s.next[i] = i + 1 < n ? i + 1 : -1;
    if (i + 1 < n) s.ranks[i] = pair_rank(table, symbols[i], symbols[i + 1], s);
    if (s.ranks[i] != kNoRank) s.heap.push_back(uint64_t{s.ranks[i]} << 32 | uint32_t(i));
  }
  std::make_heap(s.heap.begin(), s.heap.end(), std::greater<>());
  auto rerank = [&](int32_t i) {
    s.ranks[i] = s.next[i] < 0 ? kNoRank : pair_rank(table, symbols[i], symbols[s.next[i]], s);
    if (s.ranks[i] == kNoRank) return;
    s.heap.push_back(uint64_t{s.ranks[i]} << 32 | uint32_t(i));
    std::push_heap(s.heap.begin(), s.heap.end(), std::greater<>());
  };
  while (!s.heap.empty()) {
    std::pop_heap(s.heap.begin(), s.heap.end(), std::greater<>());
    uint64_t top = s.heap.back();
    s.heap.pop_back();
    ++s.num_pops;
    int32_t i = static_cast<int32_t>(top & UINT32_MAX);
    if (s.ranks[i] != top >> 32) continue;
    int32_t right = s.next[i];
    symbols[i] = table.find(symbols[i], symbols[right])->merged;
    s.ranks[right] = kNoRank;
    s.next[i] = s.next[right];
    if (s.next[i] >= 0) s.prev[s.next[i]] = i;
    rerank(i);
    if (s.prev[i] >= 0) rerank(s.prev[i]);
  }
  size_t out = 0;
  for (int32_t i = n > 0 ? 0 : -1; i >= 0; i = s.next[i]) {
    symbols[out] = symbols[i];
    if (sources != nullptr) (*sources)[out] = (*sources)[i];
    ++out;
  }
  symbols.resize(out);
  if (sources != nullptr) sources->resize(out);
}

}  // namespace

PairTable::PairTable(size_t num_pairs)
    : slots_(std::bit_ceil(num_pairs + num_pairs / 2 + 2)), mask_(slots_.size() - 1) {
  free_ = num_pairs;
}

size_t PairTable::slot_of(Token left, Token right) const {
  uint64_t key = uint64_t(uint32_t(left)) << 32 | uint32_t(right);
  size_t slot = (key * 0x9E3779B97F4A7C15u >> 29) & mask_;
  while (slots_[slot].left != kNoToken &&
         (slots_[slot].left != left || slots_[slot].right != right)) {
    slot = (slot + 1) & mask_;
  }
  return slot;
}

void PairTable::insert(const Entry& e) {
  CHECK(e.left >= 0 && e.right >= 0);
  Entry& slot = slots_[slot_of(e.left, e.right)];
  if (slot.left != kNoToken) return;
  CHECK(free_ > 0);
  --free_;
  slot = e;
}

const PairTable::Entry* PairTable::find(Token left, Token right) const {
  if (left < 0 || right < 0) return nullptr;
  const Entry& slot = slots_[slot_of(left, right)];
  return slot.left != kNoToken ? &slot : nullptr;
}

void merge_pairs(const PairTable& table,
                 std::vector<Token>& symbols,
                 std::vector<uint32_t>* sources,
                 MergeScratch& scratch) {
  if (symbols.size() <= kSmallMerge) {
    merge_small(table, symbols, sources, scratch);
  } else {
    merge_large(table, symbols, sources, scratch);
  }
}

}  // namespace sluice
