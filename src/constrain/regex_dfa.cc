#include "constrain/regex_dfa.h"

#include <algorithm>
#include <span>
#include <utility>

#include "constrain/code_points.h"

namespace sluice::constrain {

RegexDfa::RegexDfa(const ConstraintLimits& limits, WorkBudget& compile_budget)
    : max_states_(limits.max_regex_states),
      pool_(compile_budget, limits.max_regex_nodes),
      chunks_(limits.max_regex_states / kChunk + 1) {
  plain_char_ = CodeSpeller(pool_).one_of(
      {{0x20, 0x21}, {0x23, 0x5B}, {0x5D, 0x2027}, {0x202A, 0x10FFFF}}, Spelling::utf8);
  intern(RegexPool::kEmpty);
  for (auto& next : row(kDead).next) next.store(kDead + 1);
}

RegexDfa::~RegexDfa() {
  for (auto& chunk : chunks_) {
    Chunk* c = chunk.load();
    if (!c) continue;
    for (auto& r : c->rows) delete r.load();
    delete c;
  }
}

DfaState RegexDfa::intern(RegexId r) {
  auto [at, is_new] = states_.try_emplace(r, num_states_);
  if (!is_new) return at->second;
  if (num_states_ >= max_states_) {
    states_.erase(at);
    return kFailed;
  }
  auto made = std::make_unique<Row>();
  made->node = r;
  made->nullable = pool_.nullable(r);
  made->continues = r != RegexPool::kEmpty && r != RegexPool::kEps;
  std::atomic<Chunk*>& chunk = chunks_[num_states_ / kChunk];
  if (!chunk.load()) chunk.store(new Chunk, std::memory_order_release);
  chunk.load()->rows[num_states_ % kChunk].store(made.release(), std::memory_order_release);
  return num_states_++;
}

DfaState RegexDfa::start(RegexId r, WorkBudget& budget) {
  std::lock_guard lock(mutex_);
  pool_.set_budget(budget);
  if (pool_.is_empty(r)) return pool_.failed() ? kFailed : kDead;
  return intern(r);
}

DfaState RegexDfa::make_step(DfaState s, uint8_t byte, WorkBudget& budget) {
  std::lock_guard lock(mutex_);
  pool_.set_budget(budget);
  Row& from = row(s);
  RegexPool::Span span = pool_.same_derivative(from.node, byte);
  RegexId d = pool_.derivative(from.node, byte);
  if (d != RegexPool::kEmpty && pool_.is_empty(d)) d = RegexPool::kEmpty;
  if (pool_.failed()) return kFailed;
  DfaState next = intern(d);
  if (next == kFailed) return kFailed;
  for (int b = span.lo; b <= span.hi; ++b) {
    from.next[static_cast<size_t>(b)].store(next + 1, std::memory_order_release);
  }
  return next;
}

size_t RegexDfa::memory_bytes() {
  constexpr size_t kMapNode = 48;
  size_t bytes = chunks_.size() * sizeof(chunks_[0]);
  {
    std::lock_guard lock(mutex_);
    bytes += pool_.memory_bytes() + num_states_ * (sizeof(Row) + kMapNode) +
             (num_states_ / kChunk + 1) * sizeof(Chunk) +
             (covers_.size() + single_.size() + finite_.size()) * kMapNode;
  }
  return bytes;
}

int RegexDfa::only_byte(DfaState s, WorkBudget& budget) {
  Row& r = row(s);
  int known = r.only.load(std::memory_order_relaxed);
  if (known != -2) return known;
  int only = kManyBytes;
  for (int b = 0; b < 256; ++b) {
    DfaState next = step(s, static_cast<uint8_t>(b), budget);
    if (next == kFailed) return kManyBytes;
    if (next == kDead) continue;
    if (only != kManyBytes) {
      only = kManyBytes;
      break;
    }
    only = b;
  }
  r.only.store(only, std::memory_order_relaxed);
  return only;
}

bool RegexDfa::more_than(DfaState s, uint32_t n, WorkBudget& budget) {
  std::lock_guard lock(mutex_);
  pool_.set_budget(budget);
  return pool_.count(row(s).node, n + 1) > n && !pool_.failed();
}

bool RegexDfa::covers_plain(RegexId x) {
  auto [at, is_new] = covers_.try_emplace(x, false);
  if (is_new) at->second = pool_.is_empty(pool_.minus(plain_char_, x)) && !pool_.failed();
  return at->second;
}

bool RegexDfa::one_plain(RegexId x) {
  auto [at, is_new] = single_.try_emplace(x, false);
  if (is_new) {
    RegexId two = pool_.concat({plain_char_, plain_char_, pool_.star(plain_char_)});
    at->second = pool_.is_empty(pool_.all_of({x, two})) && !pool_.failed();
  }
  return at->second;
}

bool RegexDfa::finite(RegexId r, int depth) {
  using Kind = RegexPool::Kind;
  if (depth > 200) return false;
  const RegexPool::Part p = pool_.part(r);
  if (p.kind == Kind::eps || p.kind == Kind::bytes || p.kind == Kind::empty) return true;
  if (p.kind == Kind::complement || p.kind == Kind::mod) return false;
  if (p.kind == Kind::repeat) return p.max != RegexPool::kInf && finite(p.a, depth + 1);
  if (auto found = finite_.find(r); found != finite_.end()) return found->second;
  bool all = true;
  if (p.kind == Kind::concat) {
    RegexId at = r;
    while (all && pool_.part(at).kind == Kind::concat) {
      all = finite(pool_.part(at).a, depth + 1);
      at = pool_.part(at).b;
    }
    all = all && finite(at, depth + 1);
  } else {
    for (uint32_t i = 0; all && i < p.b; ++i) all = finite(pool_.list(p)[i], depth + 1);
  }
  return finite_[r] = all;
}

// A plain character may be the first of r. True in doubt.
bool RegexDfa::starts_plain(RegexId r) {
  RegexPool::Part p = pool_.part(r);
  if (p.kind == RegexPool::Kind::concat) p = pool_.part(p.a);
  if (p.kind != RegexPool::Kind::bytes) return true;
  ByteSet set = pool_.set(p);
  for (int b = 0x20; b < 256; ++b) {
    if (b != '"' && b != '\\' && set.has(static_cast<uint8_t>(b))) return true;
  }
  return false;
}

RegexDfa::Slice RegexDfa::slice(RegexId r, int depth) {
  using Kind = RegexPool::Kind;
  Slice out;
  if (depth > 20) return out;
  const RegexPool::Part p = pool_.part(r);
  if (p.kind == Kind::concat && pool_.part(p.a).kind == Kind::repeat) {
    const RegexPool::Part loop = pool_.part(p.a);
    bool closed = !pool_.nullable(p.b) && !starts_plain(p.b);
    out.quiet = closed;
    if (covers_plain(loop.a)) {
      out.chars = loop.max;
      out.absorbs = loop.max == RegexPool::kInf;
      out.tight = closed && one_plain(loop.a);
    }
  } else if (p.kind == Kind::concat) {
    Slice first = slice(p.a, depth + 1);
    out.quiet = !pool_.nullable(p.b) && !starts_plain(p.b);
    if (first.absorbs) out.chars = RegexPool::kInf, out.absorbs = true;
  } else if (p.kind == Kind::repeat && covers_plain(p.a)) {
    out.chars = p.max;
    out.absorbs = p.max == RegexPool::kInf;
  } else if (p.kind == Kind::any_of) {
    out.quiet = out.absorbs = true;
    for (uint32_t i = 0; i < p.b; ++i) {
      Slice one = slice(pool_.list(p)[i], depth + 1);
      out.quiet &= one.quiet;
      out.absorbs &= one.absorbs;
      out.chars = std::max(out.chars, one.chars);
    }
  } else if (p.kind == Kind::all_of) {
    // Without a finite set of strings, an infinite language is still infinite.
    bool absorbs = true, any = false;
    for (uint32_t i = 0; i < p.b; ++i) {
      RegexId x = pool_.list(p)[i];
      const RegexPool::Part q = pool_.part(x);
      if (q.kind == Kind::complement && finite(q.a, 0)) continue;
      Slice one = slice(x, depth + 1);
      absorbs &= one.absorbs;
      any |= one.absorbs;
      out.quiet |= one.quiet;
    }
    if (absorbs && any) out.chars = RegexPool::kInf, out.absorbs = true;
  }
  return out;
}

std::shared_ptr<const StateMask> RegexDfa::mask(DfaState s,
                                                const VocabTrie& trie,
                                                WorkBudget& budget) {
  Row& r = row(s);
  {
    std::lock_guard lock(masks_mutex_);
    if (auto known = r.mask.lock()) return known;
  }
  Fingerprint expression;
  {
    std::lock_guard lock(mutex_);
    pool_.set_budget(budget);
    expression = pool_.fingerprint(r.node, trie.longest());
    if (pool_.failed()) return nullptr;
  }
  std::shared_ptr<const StateMask> found = trie.masks().find(expression);
  if (!found) {
    found = make_mask(s, trie, budget);
    if (!found) return nullptr;
    found = trie.masks().keep(expression, std::move(found));
  }
  std::lock_guard lock(masks_mutex_);
  r.mask = found;
  return found;
}

namespace {

// The children of these nodes, sorted by their byte.
Tails tails_behind(const VocabTrie& trie, std::span<const uint32_t> exits) {
  const auto& nodes = trie.nodes();
  Tails out;
  for (uint32_t exit : exits) {
    for (uint32_t i = exit + 1; i < nodes[exit].end; i = nodes[i].end)
      out.firsts.push_back({nodes[i].byte, i});
  }
  std::ranges::stable_sort(out.firsts, {}, &Tails::First::byte);
  return out;
}

}  // namespace

std::shared_ptr<const StateMask> RegexDfa::make_mask(DfaState s,
                                                     const VocabTrie& trie,
                                                     WorkBudget& budget) {
  auto out = std::make_shared<StateMask>();
  out->bits.assign(trie.mask_words(), 0);
  Slice plain;
  {
    std::lock_guard lock(mutex_);
    pool_.set_budget(budget);
    plain = slice(row(s).node, 0);
    if (pool_.failed()) return nullptr;
  }
  uint32_t begin = 0;
  if (plain.quiet && (plain.chars == RegexPool::kInf || plain.tight)) {
    trie.add_plain(plain.chars, out->bits);
    begin = trie.plain_end();
  }
  const auto& nodes = trie.nodes();
  uint32_t end = static_cast<uint32_t>(nodes.size());
  struct Level {
    uint32_t end;
    DfaState state;
    const Row* row;
  };
  std::vector<Level> levels{{end, s, &row(s)}};
  std::vector<uint32_t> exits;
  size_t visited = 0;
  for (uint32_t i = begin; i < end;) {
    while (levels.back().end <= i) levels.pop_back();
    const VocabTrie::Entry& node = nodes[i];
    uint32_t known = levels.back().row->next[node.byte].load(std::memory_order_acquire);
    DfaState next = known != 0 ? known - 1 : make_step(levels.back().state, node.byte, budget);
    if (next == kFailed) return nullptr;
    ++visited;
    if (next == kDead) {
      i = node.end;
      continue;
    }
    for (Token t = node.token; t != kNoToken; t = trie.same(t)) {
      out->bits[static_cast<size_t>(t) / 32] |= 1u << (t % 32);
    }
    const Row& r = row(next);
    bool inner = node.end > i + 1;
    if (r.nullable && inner) exits.push_back(i);
    if (inner && r.continues) {
      levels.push_back({node.end, next, &r});
      ++i;
    } else {
      i = node.end;
    }
  }
  if (!budget.spend(visited / 16)) return nullptr;
  if (exits.empty()) return out;
  out->tails = trie.masks().find_tails(exits);
  if (!out->tails) {
    out->tails = std::make_shared<const Tails>(tails_behind(trie, exits));
    trie.masks().keep_tails(exits, out->tails);
  }
  if (!budget.spend(out->tails->firsts.size() / 4)) return nullptr;
  return out;
}

}  // namespace sluice::constrain
