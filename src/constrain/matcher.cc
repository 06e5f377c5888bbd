#include "constrain/matcher.h"

#include <algorithm>
#include <cstring>

#include "base/str.h"

namespace sluice::constrain {

namespace {

void set_bit(std::span<uint32_t> bits, Token t) {
  bits[static_cast<size_t>(t) / 32] |= 1u << (t % 32);
}

}  // namespace

size_t Matcher::CellHash::operator()(const Cell& c) const {
  uint64_t h = static_cast<uint64_t>(c.kind);
  for (uint64_t v : {c.x, c.a, c.b, c.c, c.d, c.parent}) {
    h = (h ^ v) * 0x9e3779b97f4a7c15ull;
    h ^= h >> 29;
  }
  return h;
}

Matcher::Matcher(std::shared_ptr<const Constraint> constraint)
    : constraint_(std::move(constraint)), budget_(constraint_->limits().max_step_work) {
  cells_.push_back({.kind = Kind::bottom});
  seen({});
  begin_set();
  enter(constraint_->rules().root, kEnd, 0);
  history_.push_back(end_set());
}

bool Matcher::fail(const char* limit) {
  if (failure_.empty()) {
    failure_ = strf("the constraint exceeds its limit of %s for one step", limit);
  }
  return false;
}

Matcher::CellId Matcher::cell(const Cell& c) {
  auto [at, is_new] = cell_index_.try_emplace(c, static_cast<CellId>(cells_.size()));
  if (is_new) {
    cells_.push_back(c);
    if (!budget_.spend(2)) fail("work");
  }
  return at->second;
}

Matcher::StateId Matcher::state(StateSet set) {
  std::sort(set.tops.begin(), set.tops.end());
  set.tops.erase(std::unique(set.tops.begin(), set.tops.end()), set.tops.end());
  std::string key(reinterpret_cast<const char*>(set.tops.data()), set.tops.size() * 4);
  key += static_cast<char>(set.can_end);
  auto [at, is_new] = state_index_.try_emplace(key, static_cast<StateId>(states_.size()));
  if (is_new) {
    text_bytes_ += 2 * key.size();
    states_.push_back(std::move(set));
  }
  return at->second;
}

uint32_t Matcher::seen(Seen s) {
  std::string key(reinterpret_cast<const char*>(s.bits.data()), s.bits.size() * 8);
  for (const std::string& e : s.extras) key += e, key += '\0';
  key += strf("%u,%u,%d", s.count, s.required, s.unknown);
  auto [at, is_new] = seen_index_.try_emplace(key, static_cast<uint32_t>(seen_.size()));
  if (is_new) {
    text_bytes_ += 2 * key.size();
    seen_.push_back(std::move(s));
  }
  return at->second;
}

void Matcher::begin_set() {
  building_ = {};
  visited_.clear();
}

Matcher::StateId Matcher::end_set() {
  if (building_.tops.size() > constraint_->limits().max_threads) fail("parses at once");
  budget_.spend(1 + building_.tops.size());
  return state(std::move(building_));
}

Matcher::StateId Matcher::step(StateId s, uint8_t byte) {
  uint64_t key = uint64_t{s} << 9 | uint64_t{walking_} << 8 | byte;
  if (auto found = steps_.find(key); found != steps_.end()) return found->second;
  begin_set();
  std::vector<CellId> tops = states_[s].tops;
  for (CellId top : tops) {
    if (!ok()) break;
    step_top(cells_[top], byte);
  }
  StateId next = end_set();
  if (ok()) steps_.emplace(key, next);
  return next;
}

// False: no parse goes on with this byte. Most bytes that a walk through the vocabulary comes to
// are such, and cost no state.
bool Matcher::may_take(StateId s, uint8_t byte) const {
  for (CellId top : states_[s].tops) {
    const Cell& c = cells_[top];
    if (c.kind != Kind::key) {
      if (!constraint_->dfa().known_dead(c.x, byte)) return true;
      continue;
    }
    for (auto [b, child] : constraint_->rules().objects[c.x].keys[c.a].children) {
      if (b == byte) return true;
    }
  }
  return false;
}

Matcher::StateId Matcher::after(CellId parent) {
  uint64_t key = uint64_t{parent} << 1 | uint64_t{walking_};
  if (auto found = afters_.find(key); found != afters_.end()) return found->second;
  begin_set();
  resume(parent, 0);
  StateId next = end_set();
  if (ok()) afters_.emplace(key, next);
  return next;
}

bool Matcher::accept(Token token) {
  const VocabTrie& trie = constraint_->trie();
  if (ended_ || !ok() || token < 0 || static_cast<size_t>(token) >= trie.vocab_size()) return false;
  if (trie.is_end(token)) {
    if (!can_end()) return false;
    ended_ = true;
    history_.push_back(history_.back());
    return true;
  }
  std::string_view bytes = trie.bytes(token);
  return !bytes.empty() && accept_bytes(bytes);
}

bool Matcher::accept_bytes(std::string_view bytes) {
  if (ended_ || !ok()) return false;
  budget_.refill(constraint_->limits().max_step_work + 2000 * bytes.size());
  if (memory_bytes() > compact_at_) compact();
  StateId s = history_.back();
  for (char c : bytes) {
    s = step(s, static_cast<uint8_t>(c));
    if (!ok()) return false;
    if (states_[s].tops.empty() && !states_[s].can_end) return false;
  }
  history_.push_back(s);
  return true;
}

void Matcher::rollback(size_t n) {
  CHECK(n < history_.size());
  if (n > 0) ended_ = false;
  history_.resize(history_.size() - n);
  failure_.clear();
}

size_t Matcher::memory_bytes() const {
  return cells_.size() * 100 + states_.size() * 120 + steps_.size() * 40 + texts_.size() * 8 +
         seen_.size() * 150 + afters_.size() * 40 + history_.size() * 4 + text_bytes_;
}

std::string Matcher::text_of(uint32_t text) const {
  std::string out;
  for (; text != 0; text = texts_[text - 1].before) {
    out += static_cast<char>(texts_[text - 1].byte);
  }
  std::reverse(out.begin(), out.end());
  return out;
}

// Keeps what the states of the history need.
void Matcher::compact() {
  std::vector<Cell> old_cells = std::move(cells_);
  std::vector<StateSet> old_states = std::move(states_);
  std::vector<Seen> old_seen = std::move(seen_);
  std::vector<TextNode> old_texts = std::move(texts_);
  cells_.clear(), cell_index_.clear(), states_.clear(), state_index_.clear(), seen_.clear();
  seen_index_.clear(), texts_.clear(), steps_.clear(), afters_.clear();
  text_bytes_ = 0;
  mask_state_ = UINT32_MAX;
  cells_.push_back({.kind = Kind::bottom});
  seen({});
  std::unordered_map<CellId, CellId> moved{{kEnd, kEnd}};
  std::unordered_map<uint32_t, uint32_t> moved_texts{{0, 0}};
  auto move_text = [&](uint32_t text) {
    std::vector<uint32_t> chain;
    while (!moved_texts.count(text)) chain.push_back(text), text = old_texts[text - 1].before;
    uint32_t at = moved_texts[text];
    for (size_t i = chain.size(); i-- > 0;) {
      texts_.push_back({at, old_texts[chain[i] - 1].byte});
      at = moved_texts[chain[i]] = static_cast<uint32_t>(texts_.size());
    }
    return at;
  };
  auto move_cell = [&](CellId id) {
    std::vector<CellId> chain;
    for (; !moved.count(id); id = old_cells[id].parent) chain.push_back(id);
    CellId below = moved[id];
    for (size_t i = chain.size(); i-- > 0;) {
      Cell c = old_cells[chain[i]];
      c.parent = below;
      if (c.kind == Kind::object) c.b = seen(old_seen[c.b]);
      if (c.kind == Kind::extra && c.b != kUnknownText) c.b = move_text(c.b);
      below = moved[chain[i]] = cell(c);
    }
    return below;
  };
  std::unordered_map<StateId, StateId> moved_states;
  for (StateId& s : history_) {
    auto [at, is_new] = moved_states.try_emplace(s, 0);
    if (is_new) {
      StateSet set = old_states[s];
      for (CellId& top : set.tops) top = move_cell(top);
      at->second = state(std::move(set));
    }
    s = at->second;
  }
  size_t now = memory_bytes();
  if (now > constraint_->limits().max_matcher_bytes) fail("memory");
  compact_at_ = std::max(size_t{8} << 20, 2 * now);
}

int Matcher::only_byte_of(const Cell& c) {
  RegexDfa& dfa = constraint_->dfa();
  if (c.kind == Kind::lex || c.kind == Kind::extra) return dfa.only_byte(c.x, budget_);
  const ObjectRule& rule = constraint_->rules().objects[c.x];
  const Seen& s = seen_[cells_[c.parent].b];
  int only = RegexDfa::kManyBytes;
  for (auto [byte, child] : rule.keys[c.a].children) {
    const ObjectRule::KeyNode& node = rule.keys[child];
    if (!has_open_key(rule, s, node.first, node.last)) continue;
    if (only >= 0) return RegexDfa::kManyBytes;
    only = byte;
  }
  return only;
}

int Matcher::only_byte(StateId s) {
  const StateSet& set = states_[s];
  if (set.can_end || set.tops.empty() || set.tops.size() > 16) return RegexDfa::kManyBytes;
  int only = RegexDfa::kManyBytes;
  for (CellId top : set.tops) {
    int one = only_byte_of(cells_[top]);
    if (one < 0 || (only >= 0 && only != one)) return RegexDfa::kManyBytes;
    only = one;
  }
  return only;
}

// The longest token of what must follow, if no allowed token goes beyond it.
Token Matcher::longest_forced(StateId s) {
  const auto& nodes = constraint_->trie().nodes();
  // Plain tokens and others are two tries; both are followed.
  struct Place {
    uint32_t begin, end;
  };
  uint32_t plain_end = constraint_->trie().plain_end();
  Place places[2] = {{0, plain_end}, {plain_end, static_cast<uint32_t>(nodes.size())}};
  Token longest = kNoToken;
  while (ok()) {
    if (places[0].begin >= places[0].end && places[1].begin >= places[1].end) return longest;
    int byte = only_byte(s);
    if (byte < 0) return kNoToken;  // a token may go on in more than one way
    for (Place& p : places) {
      uint32_t at = p.begin;
      while (at < p.end && nodes[at].byte != byte) at = nodes[at].end;
      if (at >= p.end) {
        p.end = p.begin;
        continue;
      }
      if (nodes[at].token != kNoToken) longest = nodes[at].token;
      p = {at + 1, nodes[at].end};
    }
    s = step(s, static_cast<uint8_t>(byte));
    if (ok() && states_[s].tops.empty()) {
      bool more = places[0].begin < places[0].end || places[1].begin < places[1].end;
      return more && !states_[s].can_end ? kNoToken : longest;
    }
  }
  return kNoToken;
}

Forced Matcher::forced(size_t max_tokens) {
  Forced out;
  if (ended_ || !ok()) return out;
  budget_.refill(constraint_->limits().max_step_work);
  walking_ = true;
  StateId s = history_.back();
  for (int byte; out.bytes.size() < 4096 && ok() && (byte = only_byte(s)) >= 0;) {
    out.bytes += static_cast<char>(byte);
    s = step(s, static_cast<uint8_t>(byte));
  }
  walking_ = false;
  out.tokens = forced_tokens(max_tokens);
  return out;
}

std::vector<Token> Matcher::forced_tokens(size_t max_tokens) {
  std::vector<Token> out;
  if (ended_ || !ok()) return out;
  budget_.refill(constraint_->limits().max_step_work);
  walking_ = true;
  StateId s = history_.back();
  while (out.size() < max_tokens && ok()) {
    Token t = longest_forced(s);
    if (t == kNoToken) break;
    out.push_back(t);
    for (char c : constraint_->trie().bytes(t)) s = step(s, static_cast<uint8_t>(c));
  }
  walking_ = false;
  return out;
}

Result<void> Matcher::fill_mask(std::span<uint32_t> bits) {
  const VocabTrie& trie = constraint_->trie();
  CHECK(bits.size() >= trie.mask_words());
  std::fill(bits.begin(), bits.end(), 0);
  if (!ok()) return Error{400, failure_};
  if (ended_) {
    for (Token t : trie.ends()) set_bit(bits, t);
    return {};
  }
  budget_.refill(constraint_->limits().max_step_work);
  if (memory_bytes() > compact_at_) compact();
  StateId s = history_.back();
  if (s != mask_state_) {
    walking_ = true;
    mask_.assign(trie.mask_words(), 0);
    Token only = longest_forced(s);
    if (only != kNoToken) {
      set_bit(mask_, only);
    } else {
      std::vector<CellId> tops = states_[s].tops;
      for (CellId top : tops) {
        if (ok()) fill_top(top, mask_);
      }
    }
    if (states_[s].can_end) {
      for (Token t : trie.ends()) set_bit(mask_, t);
    }
    walking_ = false;
    if (!ok()) return Error{400, failure_};
    mask_state_ = s;
  }
  std::copy(mask_.begin(), mask_.end(), bits.begin());
  return {};
}

void Matcher::fill_top(CellId top, std::span<uint32_t> bits) {
  Cell c = cells_[top];
  bool limited = false;  // few keys are left: each is tried
  if (c.kind == Kind::extra && c.d != 0) {
    const Cell& object = cells_[c.parent];
    limited = constraint_->rules().objects[object.x].extras[c.a].finite;
  }
  if (c.kind == Kind::key || limited) {
    const size_t end = constraint_->trie().nodes().size();
    return walk(state({{top}, false}), 0, static_cast<uint32_t>(end), bits);
  }
  auto mask = constraint_->dfa().mask(c.x, constraint_->trie(), budget_);
  if (!mask) {
    fail("work");
    return;
  }
  if (c.kind == Kind::lex) {
    for (size_t i = 0; i < mask->bits.size(); ++i) bits[i] |= mask->bits[i];
    if (c.parent != kEnd && mask->tails) fill_tails(*mask->tails, after(c.parent), bits);
    return;
  }
  std::vector<uint32_t> own = mask->bits;
  if (mask->tails) {
    begin_set();
    resume_extra(c, 0);
    fill_tails(*mask->tails, end_set(), own);
  }
  if (c.d != 0) drop_duplicates(c, own);
  for (size_t i = 0; i < own.size(); ++i) bits[i] |= own[i];
}

// Clears the tokens that would end the key as one that the object has already.
void Matcher::drop_duplicates(const Cell& top, std::span<uint32_t> bits) const {
  const VocabTrie& trie = constraint_->trie();
  const auto& nodes = trie.nodes();
  const Seen& s = seen_[cells_[top.parent].b];
  for (uint32_t k = top.d >> 16; k < (top.d & 0xFFFF); ++k) {
    std::string_view rest = std::string_view(s.extras[k]).substr(top.c);
    // With a quote at its end it is spelled by no plain token.
    uint32_t begin = trie.plain_end(), end = static_cast<uint32_t>(nodes.size());
    uint32_t at = end;
    for (char byte : rest) {
      for (at = begin; at < end && nodes[at].byte != static_cast<uint8_t>(byte);)
        at = nodes[at].end;
      if (at >= end) break;
      begin = at + 1, end = nodes[at].end;
    }
    if (rest.empty() || at + 1 != begin) continue;
    for (uint32_t i = at; i < nodes[at].end; ++i) {
      for (Token t = nodes[i].token; t != kNoToken; t = trie.same(t)) {
        bits[static_cast<size_t>(t) / 32] &= ~(1u << (t % 32));
      }
    }
  }
}

void Matcher::fill_tails(const Tails& tails, StateId from, std::span<uint32_t> bits) {
  const auto& nodes = constraint_->trie().nodes();
  StateId next = 0;
  int byte = -1;  // of `next`
  bool goes_on = false;
  for (const Tails::First& first : tails.firsts) {
    if (!ok()) return;
    if (first.byte != byte) {
      byte = first.byte;
      goes_on = may_take(from, first.byte);
      if (goes_on) next = step(from, first.byte);
      goes_on = goes_on && (!states_[next].tops.empty() || states_[next].can_end);
    }
    if (!goes_on) continue;
    add_tokens(first.node, bits);
    if (!states_[next].tops.empty()) walk(next, first.node + 1, nodes[first.node].end, bits);
  }
}

void Matcher::add_tokens(uint32_t node, std::span<uint32_t> bits) const {
  const VocabTrie& trie = constraint_->trie();
  for (Token t = trie.nodes()[node].token; t != kNoToken; t = trie.same(t)) set_bit(bits, t);
}

void Matcher::walk(StateId from, uint32_t begin, uint32_t end, std::span<uint32_t> bits) {
  const auto& nodes = constraint_->trie().nodes();
  struct Level {
    uint32_t end;
    StateId state;
  };
  if (begin == end) return;
  std::vector<Level> levels{{end, from}};
  for (uint32_t i = begin; i < end && ok();) {
    while (levels.back().end <= i) levels.pop_back();
    const VocabTrie::Entry& node = nodes[i];
    if (!may_take(levels.back().state, node.byte)) {
      i = node.end;
      continue;
    }
    StateId next = step(levels.back().state, node.byte);
    const StateSet& set = states_[next];
    if (set.tops.empty() && !set.can_end) {
      i = node.end;
      continue;
    }
    add_tokens(i, bits);
    if (set.tops.empty()) {
      i = node.end;
    } else {
      levels.push_back({node.end, next});
      ++i;
    }
  }
}

}  // namespace sluice::constrain
