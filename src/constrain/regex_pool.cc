#include "constrain/regex_pool.h"

#include <algorithm>
#include <bit>
#include <string>

namespace sluice::constrain {

namespace {

uint64_t mix(uint64_t h, uint64_t v) {
  h ^= v + 0x9e3779b97f4a7c15ull + (h << 6) + (h >> 2);
  return h * 0xff51afd7ed558ccdull;
}

}  // namespace

RegexPool::RegexPool(WorkBudget& budget, uint32_t max_nodes)
    : budget_(&budget), max_nodes_(max_nodes) {
  parts_.push_back({Kind::empty, false, false, 0, 0, 0, 0});
  parts_.push_back({Kind::eps, true, false, 0, 0, 0, 0});
  parts_.push_back({Kind::complement, true, false, kEmpty, 0, 0, 0});
  emptiness_ = {1, -1, -1};
}

RegexId RegexPool::intern(const Part& part) {
  if (!budget_->spend(1)) return kEmpty;
  uint64_t h = mix(static_cast<uint64_t>(part.kind), (uint64_t{part.min} << 32) | part.max);
  bool is_list = part.kind == Kind::any_of || part.kind == Kind::all_of;
  if (part.kind == Kind::bytes) {
    for (uint64_t w : sets_[part.a].words) h = mix(h, w);
  } else if (is_list) {
    for (uint32_t i = 0; i < part.b; ++i) h = mix(h, lists_[part.a + i]);
  } else {
    h = mix(h, (uint64_t{part.a} << 32) | part.b);
  }
  auto [at, end] = index_.equal_range(h);
  for (; at != end; ++at) {
    const Part& other = parts_[at->second];
    if (other.kind != part.kind || other.min != part.min || other.max != part.max) continue;
    if (part.kind == Kind::bytes) {
      if (sets_[other.a] == sets_[part.a]) return at->second;
    } else if (is_list) {
      if (other.b == part.b && std::equal(lists_.begin() + part.a, lists_.begin() + part.a + part.b,
                                          lists_.begin() + other.a)) {
        return at->second;
      }
    } else if (other.a == part.a && other.b == part.b) {
      return at->second;
    }
  }
  if (parts_.size() >= max_nodes_ || lists_.size() > size_t{8} * max_nodes_) {
    full_ = true;
    return kEmpty;
  }
  RegexId id = static_cast<RegexId>(parts_.size());
  parts_.push_back(part);
  emptiness_.push_back(part.boolean ? 0 : -1);
  index_.emplace(h, id);
  return id;
}

RegexId RegexPool::bytes(const ByteSet& set) {
  if (set.empty()) return kEmpty;
  sets_.push_back(set);
  size_t before = parts_.size();
  RegexId id =
      intern({Kind::bytes, false, false, static_cast<uint32_t>(sets_.size() - 1), 0, 0, 0});
  if (parts_.size() == before) sets_.pop_back();
  return id;
}

RegexId RegexPool::literal(std::string_view text, RegexId tail) {
  for (size_t i = text.size(); i-- > 0 && tail != kEmpty;) {
    const uint8_t b = static_cast<uint8_t>(text[i]);
    if (bytes_[b] == kEmpty) bytes_[b] = range(b, b);
    tail = concat(bytes_[b], tail);
  }
  return tail;
}

RegexId RegexPool::concat(RegexId a, RegexId b) {
  if (a == kEmpty || b == kEmpty) return kEmpty;
  if (a == kEps) return b;
  if (b == kEps) return a;
  // To the right: the front of a chain is found without recursion.
  std::vector<RegexId> front;
  while (parts_[a].kind == Kind::concat) {
    front.push_back(parts_[a].a);
    a = parts_[a].b;
  }
  auto join = [&](RegexId x, RegexId y) {
    if (x == kAll && y == kAll) return kAll;
    return intern({Kind::concat, parts_[x].nullable && parts_[y].nullable,
                   parts_[x].boolean || parts_[y].boolean, x, y, 0, 0});
  };
  RegexId r = join(a, b);
  for (size_t i = front.size(); i-- > 0;) r = join(front[i], r);
  return r;
}

RegexId RegexPool::concat(std::initializer_list<RegexId> parts) {
  RegexId r = kEps;
  for (auto at = std::rbegin(parts); at != std::rend(parts); ++at) r = concat(*at, r);
  return r;
}

RegexId RegexPool::intern_list(Kind kind, const std::vector<RegexId>& parts) {
  bool nullable = kind == Kind::all_of, boolean = kind == Kind::all_of;
  for (RegexId p : parts) {
    if (kind == Kind::all_of) nullable = nullable && parts_[p].nullable;
    if (kind == Kind::any_of) nullable = nullable || parts_[p].nullable;
    boolean = boolean || parts_[p].boolean;
  }
  budget_->spend(parts.size());
  uint32_t first = static_cast<uint32_t>(lists_.size());
  lists_.insert(lists_.end(), parts.begin(), parts.end());
  size_t before = parts_.size();
  RegexId id = intern({kind, nullable, boolean, first, static_cast<uint32_t>(parts.size()), 0, 0});
  if (parts_.size() == before) lists_.resize(first);
  return id;
}

RegexId RegexPool::any_of(std::vector<RegexId> parts) {
  ByteSet single;
  std::vector<RegexId> flat;
  for (size_t i = 0; i < parts.size(); ++i) {
    const Part p = parts_[parts[i]];
    if (p.kind == Kind::empty) continue;
    if (parts[i] == kAll) return kAll;
    if (p.kind == Kind::any_of) {
      for (uint32_t k = 0; k < p.b; ++k) parts.push_back(lists_[p.a + k]);
    } else if (p.kind == Kind::bytes) {
      for (int w = 0; w < 4; ++w) single.words[w] |= sets_[p.a].words[w];
    } else {
      flat.push_back(parts[i]);
    }
  }
  if (!single.empty()) flat.push_back(bytes(single));
  std::sort(flat.begin(), flat.end());
  flat.erase(std::unique(flat.begin(), flat.end()), flat.end());
  // The empty string adds nothing beside another nullable part.
  if (flat.size() > 1 && flat[0] == kEps &&
      std::any_of(flat.begin() + 1, flat.end(), [&](RegexId p) { return parts_[p].nullable; })) {
    flat.erase(flat.begin());
  }
  if (flat.empty()) return kEmpty;
  if (flat.size() == 1) return flat[0];
  if (flat.size() == 2 && flat[0] == kEps && parts_[flat[1]].kind == Kind::bytes) {
    return repeat(flat[1], 0, 1);
  }
  return intern_list(Kind::any_of, flat);
}

RegexId RegexPool::all_of(std::vector<RegexId> parts) {
  std::vector<RegexId> flat;
  ByteSet single = ByteSet::range(0, 255);
  bool has_set = false;
  for (size_t i = 0; i < parts.size(); ++i) {
    const Part p = parts_[parts[i]];
    if (p.kind == Kind::empty) return kEmpty;
    if (parts[i] == kAll) continue;
    if (p.kind == Kind::all_of) {
      for (uint32_t k = 0; k < p.b; ++k) parts.push_back(lists_[p.a + k]);
    } else if (p.kind == Kind::bytes) {
      has_set = true;
      for (int w = 0; w < 4; ++w) single.words[w] &= sets_[p.a].words[w];
    } else {
      flat.push_back(parts[i]);
    }
  }
  if (has_set) {
    if (single.empty()) return kEmpty;
    flat.push_back(bytes(single));
  }
  std::sort(flat.begin(), flat.end());
  flat.erase(std::unique(flat.begin(), flat.end()), flat.end());
  if (flat.empty()) return kAll;
  if (flat.size() == 1) return flat[0];
  if (flat[0] == kEps) {
    bool all = std::all_of(flat.begin(), flat.end(), [&](RegexId p) { return parts_[p].nullable; });
    return all ? kEps : kEmpty;
  }
  for (RegexId p : flat) {
    if (parts_[p].kind == Kind::complement &&
        std::binary_search(flat.begin(), flat.end(), parts_[p].a)) {
      return kEmpty;
    }
  }
  return intern_list(Kind::all_of, flat);
}

RegexId RegexPool::complement(RegexId a) {
  if (a == kEmpty) return kAll;
  if (parts_[a].kind == Kind::complement) return parts_[a].a;
  return intern({Kind::complement, !parts_[a].nullable, true, a, 0, 0, 0});
}

RegexId RegexPool::repeat(RegexId a, uint32_t min, uint32_t max) {
  if (max < min) return kEmpty;
  if (max == 0 || a == kEps) return kEps;
  if (a == kEmpty) return min == 0 ? kEps : kEmpty;
  if (a == kAll) return kAll;
  if (min == 1 && max == 1) return a;
  if (parts_[a].nullable) min = 0;
  const Part& p = parts_[a];
  if (p.kind == Kind::repeat && p.min == 0 && p.max == kInf) return a;
  if (p.kind == Kind::repeat && max == kInf && p.min <= 1 && min <= 1) {
    return repeat(p.a, p.min * min, kInf);
  }
  return intern({Kind::repeat, min == 0 || p.nullable, p.boolean, a, 0, min, max});
}

RegexId RegexPool::multiple(uint32_t modulus, uint32_t rest) {
  return intern({Kind::mod, rest == 0, false, 0, 0, modulus, rest});
}

RegexId RegexPool::derivative(RegexId r, uint8_t byte) {
  if (!budget_->spend(1)) return kEmpty;
  const Part p = parts_[r];
  switch (p.kind) {
    case Kind::empty:
    case Kind::eps:
      return kEmpty;
    case Kind::bytes:
      return sets_[p.a].has(byte) ? kEps : kEmpty;
    case Kind::mod: {
      if (byte < '0' || byte > '9') return kEmpty;
      uint64_t rest = (uint64_t{p.max} * 10 + (byte - '0')) % p.min;
      return multiple(p.min, static_cast<uint32_t>(rest));
    }
    case Kind::concat: {
      // A chain of nullable parts is followed without recursion into its tail.
      std::vector<RegexId> options;
      RegexId at = r;
      while (true) {
        const Part q = parts_[at];
        if (q.kind != Kind::concat) {
          options.push_back(derivative(at, byte));
          break;
        }
        options.push_back(concat(derivative(q.a, byte), q.b));
        if (!parts_[q.a].nullable || budget_->spent()) break;
        at = q.b;
      }
      return options.size() == 1 ? options[0] : any_of(std::move(options));
    }
    case Kind::repeat: {
      RegexId d = derivative(p.a, byte);
      if (d == kEmpty) return kEmpty;
      uint32_t min = p.min == 0 ? 0 : p.min - 1;
      return concat(d, repeat(p.a, min, p.max == kInf ? kInf : p.max - 1));
    }
    case Kind::any_of:
    case Kind::all_of:
    case Kind::complement:
      break;
  }
  uint64_t key = uint64_t{r} << 8 | byte;
  if (auto found = derived_.find(key); found != derived_.end()) return found->second;
  RegexId d;
  if (p.kind == Kind::complement) {
    d = complement(derivative(p.a, byte));
  } else {
    std::vector<RegexId> parts;
    for (uint32_t i = 0; i < p.b; ++i) {
      RegexId q = derivative(lists_[p.a + i], byte);
      if (q == kEmpty && p.kind == Kind::all_of) {
        parts = {kEmpty};
        break;
      }
      if (q != kEmpty) parts.push_back(q);
    }
    d = p.kind == Kind::any_of ? any_of(std::move(parts)) : all_of(std::move(parts));
  }
  if (derived_.size() < max_nodes_ && !budget_->spent()) derived_.emplace(key, d);
  return d;
}

// Marks in `out` each byte that may have another derivative than the byte before it.
void RegexPool::boundaries(RegexId r, ByteSet& out, int depth) {
  if (depth > 10'000 || !budget_->spend(1)) return;
  const Part p = parts_[r];
  switch (p.kind) {
    case Kind::empty:
    case Kind::eps:
      return;
    case Kind::bytes: {
      const ByteSet& s = sets_[p.a];
      uint64_t carry = 0;  // byte -1 counts as absent; byte 0 is a boundary anyway
      for (int w = 0; w < 4; ++w) {
        uint64_t previous = (s.words[w] << 1) | carry;
        carry = s.words[w] >> 63;
        out.words[w] |= s.words[w] ^ previous;
      }
      return;
    }
    case Kind::mod:
      for (int b = '0'; b <= '9' + 1; ++b) out.add(static_cast<uint8_t>(b));
      return;
    case Kind::concat: {
      RegexId at = r;
      while (parts_[at].kind == Kind::concat) {
        const Part q = parts_[at];
        boundaries(q.a, out, depth + 1);
        if (!parts_[q.a].nullable || budget_->spent()) return;
        at = q.b;
      }
      return boundaries(at, out, depth + 1);
    }
    case Kind::repeat:
    case Kind::complement:
      return boundaries(p.a, out, depth + 1);
    case Kind::any_of:
    case Kind::all_of:
      for (uint32_t i = 0; i < p.b; ++i) boundaries(lists_[p.a + i], out, depth + 1);
      return;
  }
}

RegexPool::Span RegexPool::same_derivative(RegexId r, uint8_t byte) {
  ByteSet marks;
  boundaries(r, marks, 0);
  int lo = byte, hi = byte;
  while (lo > 0 && !marks.has(static_cast<uint8_t>(lo))) --lo;
  while (hi < 255 && !marks.has(static_cast<uint8_t>(hi + 1))) ++hi;
  return {lo, hi};
}

bool RegexPool::is_empty(RegexId r) {
  if (emptiness_[r] == 0) search(r);
  return emptiness_[r] == 1 || failed();
}

// Depth first over derivatives until a nullable one: all on the path are then not empty; without
// one, all that was seen is empty.
bool RegexPool::search(RegexId root) {
  struct Frame {
    RegexId r;
    int byte;
  };
  std::vector<Frame> path{{root, 0}};
  std::vector<RegexId> seen{root};
  std::unordered_map<RegexId, bool> visited{{root, true}};
  while (!path.empty() && !failed()) {
    Frame& top = path.back();
    if (parts_[top.r].nullable || emptiness_[top.r] == -1) {
      for (const Frame& f : path) emptiness_[f.r] = -1;
      return true;
    }
    if (top.byte > 255) {
      path.pop_back();
      continue;
    }
    Span span = same_derivative(top.r, static_cast<uint8_t>(top.byte));
    RegexId d = derivative(top.r, static_cast<uint8_t>(top.byte));
    top.byte = span.hi + 1;
    if (d == kEmpty || emptiness_[d] == 1 || visited.count(d)) continue;
    visited.emplace(d, true);
    seen.push_back(d);
    path.push_back({d, 0});
  }
  if (!failed()) {
    for (RegexId r : seen) emptiness_[r] = 1;
  }
  return false;
}

uint32_t RegexPool::count(RegexId r, uint32_t cap) {
  // Every entry of `todo` is another prefix and leads to a string, so found + todo is a bound.
  uint32_t found = 0;
  std::vector<RegexId> todo{r};
  while (!todo.empty() && !failed()) {
    if (found + todo.size() > cap) return cap;
    RegexId at = todo.back();
    todo.pop_back();
    if (is_empty(at)) continue;
    if (parts_[at].nullable) ++found;
    for (int b = 0; b <= 255;) {
      Span span = same_derivative(at, static_cast<uint8_t>(b));
      RegexId d = derivative(at, static_cast<uint8_t>(b));
      if (!is_empty(d)) {
        for (; b <= span.hi && found + todo.size() <= cap; ++b) todo.push_back(d);
      }
      b = span.hi + 1;
    }
  }
  return std::min(found, cap);
}

template <class Visit>
void RegexPool::for_children(const Part& p, Visit&& visit) const {
  switch (p.kind) {
    case Kind::any_of:
    case Kind::all_of:
      for (uint32_t i = 0; i < p.b; ++i) visit(lists_[p.a + i]);
      return;
    case Kind::concat:
      visit(p.a);
      visit(p.b);
      return;
    case Kind::complement:
    case Kind::repeat:
      visit(p.a);
      return;
    case Kind::empty:
    case Kind::eps:
    case Kind::bytes:
    case Kind::mod:
      return;
  }
}

Fingerprint RegexPool::fingerprint(RegexId root, uint32_t longest) {
  // Whether anything is left of an intersection may depend on any count.
  bool exact = parts_[root].boolean;
  auto& known = fingerprints_[exact ? 0 : 1];
  uint32_t most = exact ? kInf : longest + 1;
  std::vector<RegexId> open{root};
  std::vector<Fingerprint> below;
  std::string text;
  while (!open.empty()) {
    RegexId r = open.back();
    if (known.contains(r)) {
      open.pop_back();
      continue;
    }
    const Part& p = parts_[r];
    size_t before = open.size();
    below.clear();
    for_children(p, [&](RegexId c) {
      auto found = known.find(c);
      if (found == known.end()) {
        open.push_back(c);
      } else {
        below.push_back(found->second);
      }
    });
    if (open.size() > before) continue;
    // Alternatives are in the order of their ids, which is the pool's own.
    if (p.kind == Kind::any_of || p.kind == Kind::all_of) {
      std::sort(below.begin(), below.end(), [](const Fingerprint& x, const Fingerprint& y) {
        return x.a != y.a ? x.a < y.a : x.b < y.b;
      });
    }
    auto add = [&](const void* data, size_t size) {
      text.append(static_cast<const char*>(data), size);
    };
    text.assign(1, static_cast<char>(p.kind));
    bool counts = p.kind == Kind::repeat;
    uint32_t numbers[] = {counts ? std::min(p.min, most) : p.min,
                          counts ? std::min(p.max, most) : p.max};
    add(numbers, sizeof numbers);
    if (p.kind == Kind::bytes) add(sets_[p.a].words.data(), sizeof sets_[p.a].words);
    add(below.data(), below.size() * sizeof below[0]);
    budget_->spend(1 + below.size() / 4);
    known.emplace(r, sluice::fingerprint(text));
    open.pop_back();
  }
  return known.at(root);
}

}  // namespace sluice::constrain
